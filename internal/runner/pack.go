package runner

import (
	"context"
	"fmt"
	"io"
)

// PackStats says what Pack or Unpack carried and what it left out.
type PackStats struct {
	Files    int      `json:"files"`
	Dirs     int      `json:"dirs"`
	Bytes    int64    `json:"bytes"`    // of regular files
	Left     int      `json:"left"`     // entries that could not be carried
	Examples []string `json:"examples"` // a few of them with the reason; from inside the runner, so quote them
}

// Pack writes the workspace, but for the top-level uploads and skills, to w as
// a gzip-compressed tar whose members begin with "./". What cannot be carried
// is left out and counted. It fails with ErrTooLarge before more than maxBytes
// compressed bytes are written. After an error of w's the agent is given up.
func (r *Runner) Pack(ctx context.Context, w io.Writer, maxBytes int64) (PackStats, error) {
	if err := r.Open(ctx); err != nil {
		return PackStats{}, err
	}
	c := r.conn
	c.watch(waking)
	defer c.unwatch()
	stop := context.AfterFunc(ctx, c.close)
	defer stop()
	stats, err := c.pack(w, maxBytes)
	switch {
	case err == nil:
		c.rest()
		return stats, nil
	case isRefusal(err):
		c.rest()
		return PackStats{}, err
	}
	r.drop()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return PackStats{}, err
}

func (c *conn) pack(w io.Writer, maxBytes int64) (PackStats, error) {
	if err := c.sendRequest(request{Op: "pack"}, nil); err != nil {
		return PackStats{}, err
	}
	buf := make([]byte, 64<<10)
	for {
		t, n, err := c.next()
		if err != nil {
			return PackStats{}, err
		}
		switch t {
		case frameBeat:
		case frameData:
			if maxBytes -= int64(n); maxBytes < 0 {
				return PackStats{}, ErrTooLarge
			}
			if err := c.passOn(w, n, buf); err != nil {
				return PackStats{}, err
			}
		case frameResult:
			var stats PackStats
			return stats, c.readJSON(n, &stats)
		case frameError:
			var refusal refusal
			if err := c.readJSON(n, &refusal); err != nil {
				return PackStats{}, err
			}
			return PackStats{}, refusal.err()
		default:
			return PackStats{}, fmt.Errorf("%w: archive expected, not a frame of type %d", ErrProtocol, t)
		}
	}
}

// passOn writes the next n bytes to w, which has a clock of its own.
func (c *conn) passOn(w io.Writer, n int, buf []byte) error {
	for n > 0 {
		part := buf[:min(n, len(buf))]
		if _, err := io.ReadFull(c.br, part); err != nil {
			return lost(err)
		}
		n -= len(part)
		c.unwatch()
		if _, err := w.Write(part); err != nil {
			return fmt.Errorf("cannot pass on archive: %w", err)
		}
		c.watch(waking)
	}
	return nil
}

// Unpack reads a gzip-compressed tar from body, to its end, into the workspace,
// then empties uploads and skills. Members that would leave the workspace,
// devices and the like are skipped and counted as Left. An archive that is
// broken half-way leaves what came before it, and an error. After an error of
// body's the agent is given up, and its successor finds the runner usable.
func (r *Runner) Unpack(ctx context.Context, body io.Reader) (PackStats, error) {
	var stats PackStats
	c, err := r.ask(ctx, request{Op: "unpack"}, func(c *conn) error {
		return c.sendAll(body)
	}, &stats, nil)
	if err != nil {
		return PackStats{}, err
	}
	c.rest()
	return stats, nil
}

// sendAll sends a body of unknown length in DATA frames, then END.
func (c *conn) sendAll(body io.Reader) error {
	buf := make([]byte, frameHeaderSize+64<<10)
	for {
		c.unwatch() // body has a clock of its own
		n, err := io.ReadFull(body, buf[frameHeaderSize:])
		c.watch(waking)
		if n > 0 {
			putHeader(buf, frameData, n)
			if _, err := c.stream.Write(buf[:frameHeaderSize+n]); err != nil {
				return lost(err)
			}
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return c.send(frameEnd, nil)
		default:
			return fmt.Errorf("cannot read archive: %w", err)
		}
	}
}
