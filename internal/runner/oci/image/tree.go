package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of one image, all layers together, far beyond any real one.
const (
	maxBytes   = 64 << 30
	maxEntries = 4 << 20
)

// tree unpacks layers, one over the other, into a directory. Whatever names and
// links a layer has, nothing outside of the directory is reached: the kernel
// resolves every path with the directory as its root. Its caller must own the
// directory alone.
//
// Owners, modes, times and hard links are kept. Extended attributes are not, for
// file capabilities are of no use in a runner; device nodes and pipes are left
// out, for a runner has its own.
type tree struct {
	ctx      context.Context
	root     *os.File
	progress func(bytes int64) // may be nil

	read, written int64
	entries       int
	// dirs are the times of directories, set when all is in them.
	dirs map[string]time.Time
}

func newTree(ctx context.Context, dir string, progress func(int64)) (*tree, error) {
	root, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	return &tree{ctx: ctx, root: root, progress: progress, dirs: map[string]time.Time{}}, nil
}

func (t *tree) close() { t.root.Close() }

// Read bounds what a layer can hold, and ends with the context. It reads from
// the tree's bound, not from a layer: see apply.
type bounded struct {
	t *tree
	r io.Reader
}

func (b bounded) Read(p []byte) (int, error) {
	if err := b.t.ctx.Err(); err != nil {
		return 0, context.Cause(b.t.ctx)
	}
	n, err := b.r.Read(p)
	b.t.read += int64(n)
	if b.t.read > maxBytes {
		return 0, fmt.Errorf("the image is larger than %d GiB", maxBytes>>30)
	}
	if b.t.progress != nil {
		b.t.progress(b.t.read)
	}
	return n, err
}

// apply unpacks a tar over what is there. Where it is a layer, whiteouts in it
// remove what is below. r is read to its end.
func (t *tree) apply(r io.Reader, layer bool) error {
	r = bounded{t, r}
	archive := tar.NewReader(r)
	made := map[string]bool{} // in this layer
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("cannot read the archive: %w", err)
		}
		if t.entries++; t.entries > maxEntries {
			return fmt.Errorf("the image has more than %d files", maxEntries)
		}
		if err := t.entry(h, archive, layer, made); err != nil {
			return fmt.Errorf("cannot unpack %.200q: %w", h.Name, err)
		}
	}
	_, err := io.Copy(io.Discard, r) // what follows the end counts for the digest
	return err
}

var errName = errors.New("the name leads out of the image")

// clean returns a name as a path from the root, "/" for the root itself.
func clean(name string) (string, error) {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", errName
		}
	}
	if strings.ContainsRune(name, 0) {
		return "", errors.New("the name holds a zero byte")
	}
	return path.Clean("/" + name), nil
}

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	aufs     = ".wh..wh." // other notes of an older kind of layer
)

func (t *tree) entry(h *tar.Header, content io.Reader, layer bool, made map[string]bool) error {
	switch h.Typeflag {
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo, tar.TypeXGlobalHeader:
		return nil
	}
	name, err := clean(h.Name)
	if err != nil {
		return err
	}
	dir, base := path.Split(name)
	if name == "/" {
		if h.Typeflag != tar.TypeDir {
			return errors.New("the root is no directory")
		}
		return t.finish(int(t.root.Fd()), ".", name, h)
	}
	parent, err := t.parent(dir)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if layer && strings.HasPrefix(base, whiteout) {
		switch hidden := strings.TrimPrefix(base, whiteout); {
		case base == opaque:
			return t.clear(parent, path.Clean(dir), made)
		case strings.HasPrefix(base, aufs):
			return nil
		case hidden == "" || hidden == "." || hidden == "..":
			return errName
		default:
			return removeAt(parent, hidden)
		}
	}
	made[name] = true
	if err := t.make(parent, base, h, content); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeLink {
		return nil // the file has its owner and mode
	}
	return t.finish(parent, base, name, h)
}

// make makes what an entry describes in place of what has its name.
func (t *tree) make(parent int, base string, h *tar.Header, content io.Reader) error {
	var st unix.Stat_t
	err := unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	isDir := err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case err == nil && h.Typeflag == tar.TypeDir && isDir:
		return nil
	case err == nil:
		if err := removeAt(parent, base); err != nil {
			return err
		}
	case !errors.Is(err, unix.ENOENT):
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return unix.Mkdirat(parent, base, 0o700)
	case tar.TypeReg, tar.TypeGNUSparse:
		return t.file(parent, base, content)
	case tar.TypeSymlink:
		return unix.Symlinkat(h.Linkname, parent, base)
	case tar.TypeLink:
		target, err := clean(h.Linkname)
		if err != nil {
			return err
		}
		dir, name := path.Split(target)
		from, err := t.open(dir)
		if err != nil {
			return fmt.Errorf("cannot find the directory of %.200q: %w", h.Linkname, err)
		}
		defer unix.Close(from)
		return unix.Linkat(from, name, parent, base, 0)
	default:
		return fmt.Errorf("entries of type %q are not known", h.Typeflag)
	}
}

func (t *tree) file(parent int, base string, content io.Reader) error {
	fd, err := unix.Openat(parent, base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	n, err := io.Copy(f, io.LimitReader(content, maxBytes-t.written+1))
	if t.written += n; t.written > maxBytes { // holes are not in the archive
		err = fmt.Errorf("the image is larger than %d GiB", maxBytes>>30)
	}
	return errors.Join(err, f.Close())
}

// finish gives an entry its owner, mode and time. What another user than root
// unpacks is that user's, who is root in the runners that can be made of it.
func (t *tree) finish(parent int, base, name string, h *tar.Header) error {
	if os.Geteuid() == 0 {
		if err := unix.Fchownat(parent, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	if h.Typeflag != tar.TypeSymlink {
		// After the owner: a change of owner clears setuid bits.
		if err := unix.Fchmodat(parent, base, uint32(h.Mode&0o7777), 0); err != nil {
			return err
		}
	}
	if h.Typeflag == tar.TypeDir {
		t.dirs[name] = h.ModTime
		return nil
	}
	return setTime(parent, base, h.ModTime)
}

func setTime(parent int, base string, mod time.Time) error {
	ts, err := unix.TimeToTimespec(mod)
	if err != nil {
		return err
	}
	return unix.UtimesNanoAt(parent, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// finishDirs sets the times of directories, once all layers are unpacked.
func (t *tree) finishDirs() error {
	for name, mod := range t.dirs {
		fd, err := t.openFlags(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // removed or replaced by a later layer
		}
		if err != nil {
			return err
		}
		err = setTime(fd, ".", mod)
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

// open opens a directory of the image. Links on the way are followed as from
// inside a runner.
func (t *tree) open(dir string) (int, error) {
	return t.openFlags(dir, unix.O_PATH|unix.O_DIRECTORY)
}

func (t *tree) openFlags(name string, flags uint64) (int, error) {
	for {
		fd, err := unix.Openat2(int(t.root.Fd()), name, &unix.OpenHow{
			Flags:   flags | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
		})
		if errors.Is(err, unix.ENOSYS) {
			err = errors.New("the kernel has no openat2: Linux 5.6 or later is needed")
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// parent opens a directory for an entry in it, and makes it where it is missing.
func (t *tree) parent(dir string) (int, error) {
	fd, err := t.open(dir)
	if !errors.Is(err, unix.ENOENT) || dir == "/" {
		return fd, err
	}
	up, base := path.Split(path.Clean(dir))
	above, err := t.parent(up)
	if err != nil {
		return -1, err
	}
	defer unix.Close(above)
	if err := unix.Mkdirat(above, base, 0o755); err != nil {
		return -1, err // a link to nowhere has the name
	}
	if err := unix.Fchmodat(above, base, 0o755, 0); err != nil { // whatever the umask
		return -1, err
	}
	return t.open(dir)
}

// clear removes what is in a directory but was not made by this layer.
func (t *tree) clear(dir int, name string, made map[string]bool) error {
	entries, err := readDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		child := path.Join(name, e.Name())
		switch {
		case !made[child] && !below(made, child):
			err = removeAt(dir, e.Name())
		case e.IsDir():
			var fd int
			if fd, err = unix.Openat(dir, e.Name(), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
				err = t.clear(fd, child, made)
				unix.Close(fd)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// below tells whether something below a directory was made, whose own entry may
// come later or not at all.
func below(made map[string]bool, dir string) bool {
	for name := range made {
		if strings.HasPrefix(name, dir+"/") {
			return true
		}
	}
	return false
}

func readDir(dir int) ([]os.DirEntry, error) {
	return os.ReadDir(fmt.Sprintf("/proc/self/fd/%d", dir))
}

// removeAt removes a name from an open directory, with all below it.
func removeAt(dir int, base string) error {
	err := unix.Unlinkat(dir, base, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", dir))
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(base)
}
