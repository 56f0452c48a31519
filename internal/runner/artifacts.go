package runner

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// artifacts reads the files that follow a result, one after the other. Until it
// is closed, the connection is its own.
type artifacts struct {
	runner  *Runner
	conn    *conn
	timeout time.Duration // for each file, on top of a second per MiB
	files   []Artifact
	body    *body
	failed  error
}

// next skips what is left of the current artifact and opens the one after.
func (a *artifacts) next() (io.Reader, error) {
	if a.failed != nil {
		return nil, a.failed
	}
	if err := a.skip(); err != nil {
		return nil, err
	}
	if len(a.files) == 0 {
		return nil, io.EOF
	}
	size := a.files[0].Size
	a.body = &body{conn: a.conn, left: size, patience: a.timeout + time.Duration(min(size>>20, 1<<20))*time.Second}
	a.files = a.files[1:]
	return a.body, nil
}

func (a *artifacts) skip() error {
	if a.body == nil {
		return nil
	}
	_, err := io.Copy(io.Discard, a.body)
	a.body = nil
	if err != nil {
		a.failed = err
	}
	return err
}

// close takes the rest off the stream, so that the agent can go on. Where that
// takes longer than it takes to start a new agent, the old one is given up.
func (a *artifacts) close() error {
	limit := time.AfterFunc(5*time.Second, a.conn.stall)
	defer limit.Stop()
	defer a.conn.unwatch()
	for {
		if _, err := a.next(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			a.runner.drop()
			return nil //nolint:nilerr // the next call dials again
		}
	}
	if err := a.conn.end(); err != nil {
		a.runner.drop()
		return nil
	}
	a.conn.rest()
	return nil
}

// end reads the frame that ends a body.
func (c *conn) end() error {
	t, _, err := c.next()
	if err == nil && t != frameEnd {
		err = fmt.Errorf("%w: end expected, not a frame of type %d", ErrProtocol, t)
	}
	return err
}

// body reads exactly left bytes from DATA frames.
type body struct {
	conn  *conn
	left  int64 // of the body
	frame int   // of the current frame
	// patience is what is left of the time to wait for bytes. A reader's own
	// time does not count, so that a slow client costs the agent nothing.
	patience time.Duration
}

func (b *body) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	start := time.Now()
	b.conn.watch(b.patience)
	defer func() {
		b.conn.unwatch()
		b.patience -= time.Since(start)
	}()
	if b.frame == 0 {
		t, n, err := b.conn.next()
		if err != nil {
			return 0, err
		}
		switch {
		case t != frameData || n == 0:
			return 0, fmt.Errorf("%w: data expected, not a frame of type %d with %d bytes", ErrProtocol, t, n)
		case int64(n) > b.left:
			return 0, fmt.Errorf("%w: more data than announced", ErrProtocol)
		}
		b.frame = n
	}
	n, err := b.conn.br.Read(p[:min(len(p), b.frame)])
	b.frame -= n
	b.left -= int64(n)
	if err == io.EOF && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return n, lost(err)
	}
	return n, nil
}
