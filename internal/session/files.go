package session

import (
	"context"
	"io"
	"log/slog"

	"github.com/hjxwz123/aivory-sandbox/internal/observe"
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
	err = c.observed("write", func(ctx context.Context) error { return c.s.runner.Write(ctx, path, body, size) })
	if err != nil {
		return c.fail("writing a file", err)
	}
	return nil
}

// observed does one operation on files, and tells the observer.
func (c *call) observed(operation string, do func(context.Context) error) error {
	ctx, span := observe.Start(c.ctx, observe.File, slog.String("session", c.s.id), slog.String("operation", operation))
	err := do(ctx)
	span.End(err)
	return err
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
	ctx, span := observe.Start(c.ctx, observe.File, slog.String("session", id), slog.String("operation", "read"))
	body, size, err = c.s.runner.Read(ctx, path)
	if err != nil {
		span.End(err)
		return nil, 0, c.fail("reading a file", err)
	}
	handed = true
	return &fileReader{ReadCloser: body, end: c.end, span: span}, size, nil
}

// fileReader is a file that is being read, and with it the session's lock.
type fileReader struct {
	io.ReadCloser
	end  func()
	span *observe.Span
}

// Close lets the next call have the session. It is idempotent where the file's
// own Close is.
func (r *fileReader) Close() error {
	defer r.end()
	err := r.ReadCloser.Close()
	r.span.End(err)
	return err
}

// ListFiles returns the regular files of the workspace in path order, at most
// 500 and at most six path components deep.
func (m *Manager) ListFiles(ctx context.Context, id string) ([]FileInfo, error) {
	c, err := m.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	defer c.end()
	var files []FileInfo
	err = c.observed("list", func(ctx context.Context) (err error) {
		files, err = c.s.runner.List(ctx, listFiles, listDepth)
		return err
	})
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
	if err := c.observed("reset", c.s.runner.ResetInputs); err != nil {
		return c.fail("resetting inputs", err)
	}
	return nil
}
