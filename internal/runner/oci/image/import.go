package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// source is an image to be imported.
type source interface {
	// digest names the image's content, "" where only reading it tells.
	digest() (string, error)
	// unpack fills the tree and returns the image's settings, its digest among
	// them. What does not match the digest is an error.
	unpack(t *tree) (*Image, error)
}

// add unpacks an image, unless the store has it, and lets reference mean it. A
// store is as it was before, on any error.
func (s *Store) add(ctx context.Context, src source, reference string, progress func(int64)) (*Image, error) {
	digest, err := src.digest()
	if err != nil {
		return nil, err
	}
	if img, err := s.name(reference, digest); err == nil || !errors.Is(err, ErrNotFound) {
		return img, err
	}
	if err := s.removeLost(); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(s.dir, "new-")
	if err != nil {
		return nil, fmt.Errorf("cannot make a directory for the image: %w", err)
	}
	defer os.RemoveAll(work)
	// Held while the import lives, so that the next one can tell.
	hold, err := os.Open(work)
	if err != nil {
		return nil, fmt.Errorf("cannot make a directory for the image: %w", err)
	}
	defer hold.Close()
	if err := unix.Flock(int(hold.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("cannot lock the image's directory: %w", err)
	}
	img, err := s.unpack(ctx, src, work, progress)
	if err != nil {
		return nil, err
	}
	if err := s.publish(work, img.Digest); err != nil {
		return nil, fmt.Errorf("cannot put image %s in its place: %w", img.Digest, err)
	}
	return s.name(reference, img.Digest)
}

// unpack makes all of an image in a directory and sees to it that it is on disk.
func (s *Store) unpack(ctx context.Context, src source, work string, progress func(int64)) (*Image, error) {
	root := filepath.Join(work, "root")
	err := os.Mkdir(root, 0o755)
	if err == nil {
		err = os.Chmod(root, 0o755) // whatever the umask
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make a directory for the image: %w", err)
	}
	t, err := newTree(ctx, root, progress)
	if err != nil {
		return nil, fmt.Errorf("cannot open the directory for the image: %w", err)
	}
	defer t.close()
	img, err := src.unpack(t)
	if err != nil {
		return nil, err
	}
	if err := t.prepare(img.Volumes); err != nil {
		return nil, fmt.Errorf("cannot prepare the image for runners: %w", err)
	}
	if err := t.finishDirs(); err != nil {
		return nil, fmt.Errorf("cannot set the times of directories: %w", err)
	}
	img.Size, img.Imported = t.written, time.Now().UTC().Truncate(time.Second)
	b, err := json.MarshalIndent(img, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(work, "image.json"), b, 0o600)
	}
	if err == nil {
		err = unix.Syncfs(int(t.root.Fd()))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot write the image: %w", err)
	}
	return img, nil
}

// publish moves a finished image to its place. One that is there already stays.
func (s *Store) publish(work, digest string) error {
	release, err := s.lock(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer release()
	place := s.place(digest)
	if _, err := os.Lstat(place); err == nil {
		return nil
	}
	if err := os.Rename(work, place); err != nil {
		return err
	}
	return syncDir(filepath.Dir(place))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// name lets reference mean an image that the store has.
func (s *Store) name(reference, digest string) (*Image, error) {
	if !digestPattern.MatchString(digest) {
		return nil, fmt.Errorf("%w: %q", ErrNotFound, digest)
	}
	release, err := s.lock(unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer release()
	img, err := s.read(digest)
	if err != nil {
		return nil, err
	}
	names, err := s.references()
	if err != nil {
		return nil, err
	}
	if reference = Normal(reference); names[reference] == digest {
		return img, nil
	}
	names[reference] = digest
	return img, s.setReferences(names)
}

// removeLost removes what imports left that were killed.
func (s *Store) removeLost() error {
	left, err := filepath.Glob(filepath.Join(s.dir, "new-*"))
	if err != nil {
		return err
	}
	for _, dir := range left {
		f, err := os.Open(dir)
		if err != nil {
			continue // it went meanwhile
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			err = os.RemoveAll(dir)
		}
		f.Close()
		if err != nil {
			return fmt.Errorf("cannot remove what a lost import left: %w", err)
		}
	}
	return nil
}

// mountPoints are there in every image, so that runtimes need not make them.
var mountPoints = []string{"/proc", "/dev", "/sys", "/tmp", "/home/sandbox", "/workspace"}

// prepare adds what every runner needs and an image may lack.
func (t *tree) prepare(volumes []string) error {
	for _, dir := range append(mountPoints, volumes...) {
		fd, err := t.parent(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		unix.Close(fd)
	}
	return t.hosts()
}

// hosts sees to it that localhost has an address: engines mount a file for that,
// and leave an empty one in images that they make.
func (t *tree) hosts() error {
	etc, err := t.parent("/etc")
	if err != nil {
		return err
	}
	defer unix.Close(etc)
	var st unix.Stat_t
	err = unix.Fstatat(etc, "hosts", &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && (st.Size > 0 || st.Mode&unix.S_IFMT != unix.S_IFREG) {
		return nil
	}
	fd, err := unix.Openat(etc, "hosts", unix.O_CREAT|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "hosts")
	_, err = io.WriteString(f, "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	return errors.Join(err, f.Chmod(0o644), f.Close())
}
