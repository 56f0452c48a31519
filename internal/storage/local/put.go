package local

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// tempDir holds files while they are written. Each is locked by its writer, so
// that one without a lock is known for what a crash left.
const tempDir = ".aivory-tmp"

var errName = errors.New("no file can have that name")

// Put implements storage.Bucket. A file has no content type: it is dropped.
func (s *Store) Put(ctx context.Context, key string, body io.Reader, _ string) (int64, error) {
	if !isName(key) {
		return 0, fail("put object", key, errName)
	}
	temp, err := s.createTemp()
	if err != nil {
		return 0, fail("put object", key, err)
	}
	n, err := s.fill(ctx, temp, body)
	if err == nil {
		err = s.publish(temp, key)
	}
	if err != nil {
		// The lock goes with the descriptor, so the file goes first.
		if rerr := s.root.Remove(temp.Name()); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("and a temporary file is left behind: %w", rerr))
		}
	}
	if cerr := temp.Close(); err == nil {
		err = cerr
	}
	var bodyErr *storage.BodyError
	switch {
	case errors.As(err, &bodyErr):
		return 0, err
	case err != nil:
		return 0, fail("put object", key, err)
	}
	return n, nil
}

// tempFile is a file in tempDir with its path in the root.
type tempFile struct {
	*os.File
	name string
}

func (t *tempFile) Name() string { return t.name }

func (s *Store) createTemp() (*tempFile, error) {
	if err := s.root.MkdirAll(tempDir, dirMode); err != nil {
		return nil, err
	}
	name := path.Join(tempDir, rand.Text())
	f, err := s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot lock temporary file: %w", err), s.root.Remove(name), f.Close())
	}
	return &tempFile{f, name}, nil
}

// fill writes body to the file and to the disk.
func (s *Store) fill(ctx context.Context, to *tempFile, body io.Reader) (int64, error) {
	// Only Write: a file's own ReadFrom would not ask the source for its errors.
	n, err := io.CopyBuffer(struct{ io.Writer }{to}, &source{ctx, body}, make([]byte, 256<<10))
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return 0, err
	}
	return n, to.Sync()
}

// publish gives a complete file its name, durably.
func (s *Store) publish(temp *tempFile, key string) error {
	dir := path.Dir(key)
	if err := s.root.MkdirAll(dir, dirMode); err != nil {
		return err
	}
	if err := s.root.Rename(temp.name, key); err != nil {
		return err
	}
	// Directories may have been made, here or by another Put that is not yet
	// through, so that each entry on the way counts.
	for {
		if err := s.syncDir(dir); err != nil {
			return err
		}
		if dir == "." {
			return nil
		}
		dir = path.Dir(dir)
	}
}

func (s *Store) syncDir(dir string) error {
	f, err := s.root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// sweep removes the temporary files that have no writer.
func (s *Store) sweep() error {
	dir, err := s.root.Open(tempDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close() // read only: nothing is lost
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := s.sweepFile(path.Join(tempDir, name)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) sweepFile(name string) error {
	info, err := s.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // its writer is through with it
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return s.root.RemoveAll(name) // not of this package's making
	}
	f, err := s.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() // read only: nothing is lost
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// source stops giving when its context ends and tells its reader's errors from
// those of the disk.
type source struct {
	ctx context.Context
	r   io.Reader
}

func (s *source) Read(p []byte) (int, error) {
	if err := context.Cause(s.ctx); err != nil {
		return 0, err
	}
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		err = &storage.BodyError{Err: err}
	}
	return n, err
}
