package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// stateDir is the service's directory for what must survive a restart, held by
// one process at a time.
type stateDir struct {
	path string
	lock *os.File
}

// openStateDir makes the directory with mode 0700 where it is missing, makes it
// private where it is not, and locks it. The caller closes it.
func openStateDir(path string) (*stateDir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the state directory: %w", err)
	}
	if info, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("cannot look at the state directory: %w", err)
	} else if info.Mode().Perm()&0o077 != 0 {
		// It holds secrets; a volume is often made open to all.
		if err := os.Chmod(path, 0o700); err != nil {
			return nil, fmt.Errorf("cannot make the state directory private: %w", err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot write in the state directory: %w", err)
	}
	// The kernel lets go of the lock when the process ends, however it ends.
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("another service uses the state directory %s; give each its own SANDBOX_STATE_DIR", path)
		}
		return nil, fmt.Errorf("cannot lock the state directory %s: %w", path, err)
	}
	return &stateDir{path: path, lock: lock}, nil
}

// fresh returns the path of an empty directory below the state directory, for
// files that do not outlive the process.
func (d *stateDir) fresh(name string) (string, error) {
	path := filepath.Join(d.path, name)
	if err := os.RemoveAll(path); err != nil {
		return "", fmt.Errorf("cannot remove old temporary files: %w", err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return "", fmt.Errorf("cannot make a directory for temporary files: %w", err)
	}
	return path, nil
}

// Close lets go of the directory; its content stays.
func (d *stateDir) Close() error { return d.lock.Close() }
