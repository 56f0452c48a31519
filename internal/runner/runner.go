package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

// Options are the same for all runners of a service.
type Options struct {
	// Preload are modules that an idle agent imports ahead of need.
	Preload []string
	// CPUs is the runner's CPU quota, 0 for none; numerical libraries that are
	// preloaded start as many threads.
	CPUs float64
	// DialTimeout bounds starting an agent, its greeting included.
	DialTimeout time.Duration
	// Logf, where set, gets what an operator may want to know of an agent that
	// was lost; it is never given output of a program.
	Logf func(format string, args ...any)
}

// Runner is a live runner: the portable type over a Driver and one handle. It
// dials when it is first needed and again after the agent was lost. Its methods
// serve one call at a time: the caller orders them (a session has a lock).
//
// Paths are workspace paths: "a/b" and "/workspace/a/b" name the same file.
// A path that leaves /workspace by its text or by a symlink is fault.Invalid, a
// missing or non-regular file fault.NotFound, a directory or file in the way
// fault.Invalid. An agent that is lost during a file operation is dialled again
// and the operation tried once more, unless its body cannot be read twice; then
// it is ErrLost. A runner that no longer exists is ErrNotFound.
type Runner struct {
	driver Driver
	id     string
	opts   Options

	conn *conn
	// oomKills is the runner's count when an agent last told.
	oomKills int64
}

// New returns a Runner for a driver's handle. It does not dial.
func New(d Driver, id string, opts Options) *Runner {
	if opts.DialTimeout <= 0 {
		opts.DialTimeout = 30 * time.Second
	}
	if opts.Logf == nil {
		opts.Logf = func(string, ...any) {}
	}
	return &Runner{driver: d, id: id, opts: opts}
}

// dialAttempts is how often an agent is started before the runner is given up,
// within twice DialTimeout. Where a program took all of the processes that a
// runner may have, an engine may need several to get one in.
const dialAttempts = 10

// Open dials unless an agent is connected, makes /workspace/{uploads,outputs,
// skills} where they are missing, and checks that the workspace can be written.
func (r *Runner) Open(ctx context.Context) error {
	if r.conn != nil && !r.conn.gone() {
		return nil
	}
	r.drop()
	ctx, cancel := context.WithTimeoutCause(ctx, 2*r.opts.DialTimeout, errSlowStart)
	defer cancel()
	var err, last error
	attempts := 0
	for ; attempts < dialAttempts; attempts++ {
		var c *conn
		var h hello
		c, h, err = dial(ctx, r.driver, r.id, r.opts)
		if err == nil {
			if h.Problem != "" {
				c.close()
				return fault.Wrap(fault.Internal, "workspace cannot be written",
					fmt.Errorf("uid %d cannot write in the runner: %q", ProgramUID, h.Problem))
			}
			if attempts > 0 {
				r.opts.Logf("agent of runner %s was lost as it started, %d times: %v", r.id, attempts, last)
			}
			r.conn, r.oomKills = c, h.OOMKills
			return nil
		}
		if ctx.Err() != nil || !errors.Is(err, ErrLost) {
			return err
		}
		last = err
	}
	return fmt.Errorf("gave up after %d attempts: %w", attempts, err)
}

// Connected tells whether an agent is connected, as far as that is known without
// asking anybody. A runner that is gone has none.
func (r *Runner) Connected() bool {
	if r.conn != nil && r.conn.gone() {
		r.drop()
	}
	return r.conn != nil
}

// Close ends the agent's stream. The runner lives on.
func (r *Runner) Close() error {
	r.drop()
	return nil
}

// drop forgets the agent. A successor sweeps what it leaves.
func (r *Runner) drop() {
	if r.conn != nil {
		r.conn.close()
		r.conn = nil
	}
}

// ask makes one exchange with the agent: a request, an optional upload, an
// answer into v, an optional listing after it. It drops the connection on any
// error that is not the agent's refusal; after success the caller lets it rest
// once nothing follows any more.
func (r *Runner) ask(ctx context.Context, req request, send func(*conn) error, v any, receive func(*conn) error) (*conn, error) {
	if err := r.Open(ctx); err != nil {
		return nil, err
	}
	c := r.conn
	c.watch(waking)
	stop := context.AfterFunc(ctx, c.close)
	err := c.sendRequest(req, nil)
	if err == nil && send != nil {
		err = send(c)
	}
	if err == nil {
		limit := time.AfterFunc(patience, c.stall)
		err = c.answer(v)
		if err == nil && receive != nil {
			err = receive(c)
		}
		limit.Stop()
	}
	ended := !stop()
	c.unwatch()
	switch {
	case ended:
		r.drop()
		return nil, context.Cause(ctx)
	case err != nil && !isRefusal(err):
		err = c.epitaph(err)
		r.drop()
		return nil, err
	case err != nil:
		c.rest()
		return nil, err
	}
	return c, nil
}

func isRefusal(err error) bool {
	var refused refusal
	return errors.As(err, &refused)
}
