package seal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// WriteFile puts content at path, mode 0600, all or nothing: after a crash the
// file holds what it held before or content. It is safe from a loss of power
// once SyncDir of the directory has returned too. Its temporary files begin
// with a dot.
func WriteFile(path string, content []byte) (err error) {
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithStaticPermissions(0o600))
	if err != nil {
		return fmt.Errorf("cannot make a temporary file: %w", err)
	}
	defer func() {
		if cerr := f.Cleanup(); cerr != nil && err == nil {
			err = fmt.Errorf("cannot remove a temporary file: %w", cerr)
		}
	}()
	if _, err := f.Write(content); err != nil {
		return fmt.Errorf("cannot write: %w", err)
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("cannot put a file in place: %w", err)
	}
	return nil
}

// ReadFile returns the content of a file of at most limit bytes. A longer one is
// ErrUnreadable.
func ReadFile(path string, limit int64) (content []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := f.Close(); cerr != nil && err == nil {
			err = cerr
		}
	}()
	content, err = io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = ErrUnreadable
	}
	return content, err
}

// SyncDir makes what was made, renamed or removed in a directory last.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot open directory: %w", err)
	}
	err = d.Sync()
	if err = errors.Join(err, d.Close()); err != nil {
		return fmt.Errorf("cannot sync directory: %w", err)
	}
	return nil
}
