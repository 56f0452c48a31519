// Package local keeps objects as files under one directory of this machine.
//
// The file of an object has the object's key as its path. Nothing outside the
// directory is read or written, whatever a key or a symbolic link in it says.
package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

const (
	// dirMode and fileMode keep tenants' archives from other users.
	dirMode  = 0o700
	fileMode = 0o600
)

// Store is a storage.Bucket in a directory. Objects appear and change at once,
// and are on the disk when Put returns. Several stores, of one process or of
// several on one machine, may share a directory.
type Store struct {
	root *os.Root
}

// Open makes the directory if it is missing, removes what a crash left half
// written in it, and returns its store, which the caller closes.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, fmt.Errorf("cannot make storage directory: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot open storage directory: %w", err)
	}
	s := &Store{root}
	if err := s.sweep(); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot clear leftovers in storage directory: %w", err), root.Close())
	}
	return s, nil
}

// Close lets go of the directory. Methods fail afterwards.
func (s *Store) Close() error { return s.root.Close() }

// Driver returns the driver whose only bucket is this store.
func (s *Store) Driver() storage.Driver {
	return func(context.Context, storage.Config) (storage.Bucket, bool, error) { return s, true, nil }
}

// Get implements storage.Bucket.
func (s *Store) Get(_ context.Context, key string) (io.ReadCloser, storage.Object, error) {
	if !isName(key) {
		return nil, storage.Object{}, storage.NotExist("get object", key)
	}
	// Without O_NONBLOCK, opening a FIFO that somebody planted would never return.
	f, err := s.root.OpenFile(key, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if isMissing(err) {
		return nil, storage.Object{}, storage.NotExist("get object", key)
	}
	if err != nil {
		return nil, storage.Object{}, fail("get object", key, err)
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() {
		return f, storage.Object{Key: key, Size: info.Size(), ModTime: info.ModTime()}, nil
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, storage.Object{}, fail("get object", key, err)
	}
	return nil, storage.Object{}, storage.NotExist("get object", key)
}

// Delete implements storage.Bucket. The directories of the key stay.
func (s *Store) Delete(_ context.Context, key string) error {
	if !isName(key) {
		return nil
	}
	info, err := s.root.Lstat(key)
	if isMissing(err) || err == nil && info.IsDir() {
		return nil
	}
	if err == nil {
		err = s.root.Remove(key)
	}
	if isMissing(err) {
		return nil
	}
	if err == nil {
		err = s.syncDir(path.Dir(key))
	}
	if err != nil {
		return fail("delete object", key, err)
	}
	return nil
}

// RemoveLeftovers implements storage.Bucket. What a killed process left of a file
// has a name of its own, and Open removes it.
func (s *Store) RemoveLeftovers(context.Context, string) error { return nil }

// PresignGet implements storage.Bucket: a file has no URL.
func (s *Store) PresignGet(context.Context, string, time.Duration) (string, error) {
	return "", storage.ErrNoPresign
}

// List implements storage.Bucket. Links and special files are no objects.
func (s *Store) List(ctx context.Context, prefix string, fn func(storage.Object) error) error {
	// All keys with the prefix are below its last slash.
	top := path.Dir(prefix + "x")
	if top != "." && !isName(top) {
		return nil
	}
	for todo := []string{top}; len(todo) > 0; {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		below, err := s.listDir(ctx, dir, prefix, fn)
		if err != nil {
			return err
		}
		todo = append(todo, below...)
	}
	return nil
}

// listDir calls fn for the objects of one directory and returns the directories
// in it.
func (s *Store) listDir(ctx context.Context, dir, prefix string, fn func(storage.Object) error) (below []string, err error) {
	f, err := s.root.OpenFile(dir, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_DIRECTORY, 0)
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fail("list objects under", prefix, err)
	}
	defer f.Close() // read only: nothing is lost
	for {
		entries, err := f.ReadDir(1000)
		for _, e := range entries {
			if err := context.Cause(ctx); err != nil {
				return nil, err
			}
			key := path.Join(dir, e.Name())
			switch {
			case key == tempDir:
			case e.IsDir():
				if strings.HasPrefix(key+"/", prefix) {
					below = append(below, key)
				}
			case e.Type().IsRegular() && strings.HasPrefix(key, prefix):
				info, err := e.Info()
				if isMissing(err) {
					continue // deleted since
				}
				if err != nil {
					return nil, fail("list objects under", prefix, err)
				}
				if err := fn(storage.Object{Key: key, Size: info.Size(), ModTime: info.ModTime()}); err != nil {
					return nil, err
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return below, nil
		}
		if err != nil {
			return nil, fail("list objects under", prefix, err)
		}
	}
}

// isName tells whether a key can be an object here: what would be another key's
// path, or lead to the temporary files, is none.
func isName(key string) bool {
	first, _, _ := strings.Cut(key, "/")
	return fs.ValidPath(key) && key != "." && first != tempDir && !strings.Contains(key, "\x00")
}

// isMissing tells an error that means that no object has the key.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) ||
		errors.Is(err, syscall.ENOTDIR) || // a part of the path is a file
		errors.Is(err, syscall.ENAMETOOLONG)
}

func fail(op, key string, err error) error { return storage.NewError(op, key, err, "", 0) }
