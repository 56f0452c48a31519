package runner

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// fileTimeout bounds the wait for a file, on top of a second per MiB.
const fileTimeout = 30 * time.Second

// retry runs op again where the agent was lost and rewind allows it: an agent
// may have died since the last call, by the kernel's hand or the engine's.
func (r *Runner) retry(ctx context.Context, rewind func() error, op func() error) error {
	err := op()
	if err == nil || ctx.Err() != nil || !errors.Is(err, ErrLost) {
		return err
	}
	r.opts.Logf("runner %s lost its agent: %v", r.id, err)
	if rewind != nil {
		if rewindErr := rewind(); rewindErr != nil {
			return err
		}
	}
	return op()
}

// Write stores body, exactly size bytes, at path. Parents are made, a symlink
// inside the workspace is followed, a hard link broken. On any error the file
// is as it was.
func (r *Runner) Write(ctx context.Context, path string, body io.Reader, size int64) error {
	if err := CheckPath(path, true); err != nil {
		return err
	}
	rewind := func() error {
		seeker, ok := body.(io.Seeker)
		if !ok {
			return errors.ErrUnsupported
		}
		_, err := seeker.Seek(0, io.SeekStart)
		return err
	}
	return r.retry(ctx, rewind, func() error {
		c, err := r.ask(ctx, request{Op: "write", Path: path}, func(c *conn) error {
			return c.sendBody(body, size)
		}, &struct{}{}, nil)
		if err == nil {
			c.rest()
		}
		return err
	})
}

// sendBody sends exactly size bytes of body in DATA frames, then END.
func (c *conn) sendBody(body io.Reader, size int64) error {
	buf := make([]byte, frameHeaderSize+min(size, maxFrame))
	for size > 0 {
		n := min(size, maxFrame)
		if _, err := io.ReadFull(body, buf[frameHeaderSize:frameHeaderSize+n]); err != nil {
			return fmt.Errorf("cannot read body: %w", err)
		}
		putHeader(buf, frameData, int(n))
		c.watch(waking)
		if _, err := c.stream.Write(buf[:frameHeaderSize+n]); err != nil {
			return lost(err)
		}
		size -= n
	}
	return c.send(frameEnd, nil)
}

// Read opens a regular file. The reader gives exactly size bytes; the caller
// closes it, and the Runner serves nothing else until then. A context that ends
// ends the reading.
func (r *Runner) Read(ctx context.Context, path string) (body io.ReadCloser, size int64, err error) {
	if err := CheckPath(path, false); err != nil {
		return nil, 0, err
	}
	err = r.retry(ctx, nil, func() error {
		var res struct {
			Size int64 `json:"size"`
		}
		c, err := r.ask(ctx, request{Op: "read", Path: path}, nil, &res, nil)
		if err != nil {
			return err
		}
		if res.Size < 0 {
			r.drop()
			return fmt.Errorf("%w: file of %d bytes", ErrProtocol, res.Size)
		}
		size = res.Size
		body = newDownload(ctx, r, c, size)
		return nil
	})
	return body, size, err
}

// download is a file on its way. It ends the connection with its context.
type download struct {
	*artifacts
	ctx  context.Context
	stop func() bool
}

func newDownload(ctx context.Context, r *Runner, c *conn, size int64) *download {
	a := &artifacts{runner: r, conn: c, timeout: fileTimeout, files: []Artifact{{Size: size}}}
	if _, err := a.next(); err != nil {
		panic(err) // the first of one file is there
	}
	return &download{artifacts: a, ctx: ctx, stop: context.AfterFunc(ctx, c.close)}
}

func (d *download) Read(p []byte) (int, error) {
	n, err := d.body.Read(p)
	if err != nil && err != io.EOF && d.ctx.Err() != nil {
		err = context.Cause(d.ctx)
	}
	return n, err
}

func (d *download) Close() error {
	d.stop()
	return d.close()
}

// List returns the regular files of the workspace: at most limit, in path
// order, with at most depth path components.
func (r *Runner) List(ctx context.Context, limit, depth int) ([]FileInfo, error) {
	var files []FileInfo
	err := r.retry(ctx, nil, func() error {
		c, err := r.ask(ctx, request{Op: "list", Limit: limit, Depth: depth}, nil, &struct{}{}, func(c *conn) (err error) {
			files, err = readListing(c, limit)
			return err
		})
		if err == nil {
			c.rest()
		}
		return err
	})
	return files, err
}

// maxListing bounds a listing on the stream, in bytes: what the agent looks at
// is bounded to a million, and JSON may make six of one.
const maxListing = 8 << 20

func readListing(c *conn, limit int) ([]FileInfo, error) {
	in := &untilEnd{conn: c, left: maxListing}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 4096), maxControl)
	files := []FileInfo{}
	for lines.Scan() {
		var row [2]json.RawMessage
		var f FileInfo
		err := json.Unmarshal(lines.Bytes(), &row)
		if err == nil {
			err = errors.Join(json.Unmarshal(row[0], &f.Path), json.Unmarshal(row[1], &f.Size))
		}
		if err != nil || len(files) >= limit {
			return nil, fmt.Errorf("%w: bad listing", ErrProtocol)
		}
		files = append(files, f)
	}
	err := lines.Err()
	if errors.Is(err, bufio.ErrTooLong) {
		err = fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return files, err
}

// untilEnd reads DATA frames up to END, left bytes at most.
type untilEnd struct {
	conn  *conn
	frame int
	left  int64
	ended bool
}

func (u *untilEnd) Read(p []byte) (int, error) {
	for u.frame == 0 {
		if u.ended {
			return 0, io.EOF
		}
		t, n, err := u.conn.next()
		if err != nil {
			return 0, err
		}
		switch t {
		case frameData:
			if u.left -= int64(n); u.left < 0 {
				return 0, fmt.Errorf("%w: body over its limit", ErrProtocol)
			}
			u.frame = n
		case frameBeat:
		case frameEnd:
			u.ended = true
		default:
			return 0, fmt.Errorf("%w: data expected, not a frame of type %d", ErrProtocol, t)
		}
	}
	n, err := u.conn.br.Read(p[:min(len(p), u.frame)])
	u.frame -= n
	if err == io.EOF && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return n, lost(err)
	}
	return n, nil
}

// ResetInputs empties /workspace/uploads and /workspace/skills.
func (r *Runner) ResetInputs(ctx context.Context) error {
	return r.retry(ctx, nil, func() error {
		c, err := r.ask(ctx, request{Op: "reset"}, nil, &struct{}{}, nil)
		if err == nil {
			c.rest()
		}
		return err
	})
}
