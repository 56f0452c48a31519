package session

import (
	"context"
	"io"
)

// Bounds of a listing.
const (
	listFiles = 500
	listDepth = 6
)

// WriteFile stores body, exactly size bytes, at a workspace path.
func (m *Manager) WriteFile(ctx context.Context, id, path string, body io.Reader, size int64) error {
	c, err := m.enter(ctx, id)
	if err != nil {
		return err
	}
	defer c.end()
	defer c.use()()
	if err := c.s.runner.Write(c.ctx, path, body, size); err != nil {
		return c.fail("writing a file", err)
	}
	return nil
}

// ReadFile opens a regular file. The reader gives exactly size bytes; the caller
// closes it, and until then the session is locked.
func (m *Manager) ReadFile(ctx context.Context, id, path string) (body io.ReadCloser, size int64, err error) {
	c, err := m.enter(ctx, id)
	if err != nil {
		return nil, 0, err
	}
	handed := false
	defer func() {
		if !handed {
			c.end()
		}
	}()
	body, size, err = c.s.runner.Read(c.ctx, path)
	if err != nil {
		return nil, 0, c.fail("reading a file", err)
	}
	handed = true
	return &fileReader{ReadCloser: body, end: c.end}, size, nil
}

// fileReader is a file that is being read, and with it the session's lock.
type fileReader struct {
	io.ReadCloser
	end func()
}

// Close lets the next call have the session. It is idempotent where the file's
// own Close is.
func (r *fileReader) Close() error {
	defer r.end()
	return r.ReadCloser.Close()
}

// ListFiles returns the regular files of the workspace in path order, at most
// 500 and at most six path components deep.
func (m *Manager) ListFiles(ctx context.Context, id string) ([]FileInfo, error) {
	c, err := m.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	defer c.end()
	files, err := c.s.runner.List(c.ctx, listFiles, listDepth)
	if err != nil {
		return nil, c.fail("listing files", err)
	}
	return files, nil
}

// ResetInputs empties the directories that the client stages its inputs in.
func (m *Manager) ResetInputs(ctx context.Context, id string) error {
	c, err := m.enter(ctx, id)
	if err != nil {
		return err
	}
	defer c.end()
	if err := c.s.runner.ResetInputs(c.ctx); err != nil {
		return c.fail("resetting inputs", err)
	}
	return nil
}
