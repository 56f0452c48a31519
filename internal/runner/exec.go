package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// result is an agent's answer to exec.
type result struct {
	ExitCode        int     `json:"exit_code"`
	Reason          Reason  `json:"reason"`
	Wall            float64 `json:"wall"`    // seconds
	CPU             float64 `json:"cpu"`     // seconds
	RSS             int64   `json:"rss"`     // KiB
	Collect         float64 `json:"collect"` // seconds
	OOMKills        int64   `json:"oom_kills"`
	OOMHere         int64   `json:"oom_here"`
	StdoutTruncated bool    `json:"stdout_truncated"`
	StderrTruncated bool    `json:"stderr_truncated"`
	Skipped         int     `json:"skipped"`
	Unreadable      int     `json:"unreadable"`
	Complete        bool    `json:"complete"`
	Files           int     `json:"files"`
}

// Exec runs a program and returns when it has ended, its output is in and its
// artifacts are known. A context that ends ends the run: the error is its
// cause. A run that destroys its agent is answered with ReasonLost, without
// artifacts.
func (r *Runner) Exec(ctx context.Context, req ExecRequest) (*Execution, error) {
	for attempt := 0; ; attempt++ {
		if err := r.Open(ctx); err != nil {
			return nil, err
		}
		x, err := r.exec(ctx, req)
		switch {
		case err == nil && ctx.Err() != nil:
			_ = x.Close()
			return nil, context.Cause(ctx)
		case err == nil:
			return x, nil
		case ctx.Err() != nil:
			r.drop()
			return nil, context.Cause(ctx)
		case errors.Is(err, errUnheard):
			err = r.conn.epitaph(err)
			r.drop()
			if attempt > 0 {
				return nil, err
			}
			r.opts.Logf("agent of runner %s did not take a run: %v", r.id, err)
			continue
		case !errors.Is(err, ErrLost) && !errors.Is(err, ErrProtocol):
			return nil, err
		}
		return r.afterLoss(ctx, x, err)
	}
}

// errUnheard means that the agent was gone before it said a word, so that
// nothing ran: it beats before it lets a program go.
var errUnheard = errors.New("request not taken")

// afterLoss answers for a run that took its agent with it. What had come up the
// stream stands. The runner must still be there, and a new agent in it.
func (r *Runner) afterLoss(ctx context.Context, x *Execution, err error) (*Execution, error) {
	r.opts.Logf("runner %s lost its agent during a run: %v", r.id, r.conn.epitaph(err))
	before := r.oomKills
	r.drop()
	if err := r.Open(ctx); err != nil {
		return nil, err
	}
	x.ExitCode, x.Reason = 137, ReasonLost
	if r.oomKills > before {
		x.Reason, x.Usage.OOMKills = ReasonOOM, r.oomKills-before
	}
	return x, nil
}

// exec makes the exchange. On a lost stream the Execution holds what came.
func (r *Runner) exec(ctx context.Context, req ExecRequest) (*Execution, error) {
	c := r.conn
	x := &Execution{}
	c.watch(waking)
	defer c.unwatch()
	// However often the agent beats, and whether or not it obeys a cancel.
	limit := time.AfterFunc(waking+req.Timeout+req.Artifacts.MaxDuration, c.stall)
	defer limit.Stop()
	err := c.sendRequest(request{
		Op:             "exec",
		Timeout:        req.Timeout.Seconds(),
		MaxOutput:      req.MaxOutputBytes,
		MaxFiles:       req.Artifacts.MaxFiles,
		MaxFileBytes:   req.Artifacts.MaxFileBytes,
		MaxTotalBytes:  req.Artifacts.MaxTotalBytes,
		CollectSeconds: req.Artifacts.MaxDuration.Seconds(),
	}, nonNil(req.Code))
	if err != nil {
		return x, fmt.Errorf("%w: %w", errUnheard, err)
	}
	cancelled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cancelled)
		limit.Reset(silence)
		_ = c.send(frameCancel, nil)
	})
	defer func() {
		if !stop() {
			<-cancelled // or it would cancel the next run
		}
	}()
	stopInterrupt := c.interruptOn(req.Interrupt)
	defer stopInterrupt()
	res, err := r.readRun(c, x, req)
	if err != nil {
		return x, err
	}
	if err := x.take(res, req); err != nil {
		return x, err
	}
	r.oomKills = res.OOMKills
	if res.Files > 0 {
		if x.Files, err = readFileList(c, res.Files, req.Artifacts); err != nil {
			return x, err
		}
		x.source = &artifacts{runner: r, conn: c, timeout: req.Artifacts.FileTimeout, files: x.Files}
		return x, nil
	}
	c.rest()
	return x, nil
}

func nonNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// interruptOn interrupts the run once the channel is closed, until it is stopped.
func (c *conn) interruptOn(interrupt <-chan struct{}) (stop func()) {
	if interrupt == nil {
		return func() {}
	}
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-interrupt:
			_ = c.send(frameCancel, []byte{1})
		case <-over:
		}
	}()
	return func() {
		close(over)
		<-ended // or it would interrupt the next run
	}
}

// readRun reads output until the result. The program cannot make it hold more
// than MaxOutputBytes of each stream, whatever the agent sends.
func (r *Runner) readRun(c *conn, x *Execution, req ExecRequest) (result, error) {
	tell := func(stderr bool, p []byte) {
		if req.Output != nil && len(p) > 0 {
			req.Output(stderr, p)
		}
	}
	for heard := false; ; heard = true {
		t, n, err := c.next()
		if err != nil {
			if !heard && errors.Is(err, ErrLost) {
				err = fmt.Errorf("%w: %w", errUnheard, err)
			}
			return result{}, err
		}
		switch t {
		case frameStdout:
			at := len(x.Stdout)
			err = readOutput(c, n, req.MaxOutputBytes, &x.Stdout, &x.StdoutTruncated)
			tell(false, x.Stdout[at:])
		case frameStderr:
			at := len(x.Stderr)
			err = readOutput(c, n, req.MaxOutputBytes, &x.Stderr, &x.StderrTruncated)
			tell(true, x.Stderr[at:])
		case frameBeat:
		case frameResult:
			var res result
			return res, c.readJSON(n, &res)
		case frameError:
			var refusal refusal
			if err := c.readJSON(n, &refusal); err != nil {
				return result{}, err
			}
			c.rest()
			return result{}, refusal.err()
		default:
			err = fmt.Errorf("%w: frame of type %d during a run", ErrProtocol, t)
		}
		if err != nil {
			return result{}, err
		}
	}
}

func readOutput(c *conn, n, limit int, to *[]byte, truncated *bool) error {
	take := min(n, limit-len(*to))
	if take < n {
		*truncated = true
	}
	if take > 0 {
		at := len(*to)
		*to = append(*to, make([]byte, take)...)
		n, err := io.ReadFull(c.br, (*to)[at:])
		*to = (*to)[:at+n]
		if err != nil {
			return lost(err)
		}
	}
	if _, err := c.br.Discard(n - max(take, 0)); err != nil {
		return lost(err)
	}
	return nil
}

// take checks a result and copies it.
func (x *Execution) take(res result, req ExecRequest) error {
	switch res.Reason {
	case ReasonExit, ReasonSignal, ReasonTimeout, ReasonOOM, ReasonCancelled:
	default:
		return fmt.Errorf("%w: run ended by unknown reason %q", ErrProtocol, res.Reason)
	}
	if res.ExitCode < 0 || res.ExitCode > 255 || res.Files < 0 || res.Files > req.Artifacts.MaxFiles ||
		res.Skipped < 0 || res.Unreadable < 0 || res.OOMHere < 0 {
		return fmt.Errorf("%w: result out of range", ErrProtocol)
	}
	x.ExitCode, x.Reason = res.ExitCode, res.Reason
	x.StdoutTruncated = x.StdoutTruncated || res.StdoutTruncated
	x.StderrTruncated = x.StderrTruncated || res.StderrTruncated
	x.Skipped, x.Unreadable, x.Incomplete = res.Skipped, res.Unreadable, !res.Complete
	x.Usage = Usage{
		Wall: seconds(res.Wall), CPU: seconds(res.CPU), Collect: seconds(res.Collect),
		MaxRSS: res.RSS << 10, OOMKills: res.OOMHere,
	}
	return nil
}

// seconds converts a number that may be anything.
func seconds(s float64) time.Duration {
	const most = 1 << 32
	return time.Duration(max(0, min(s, most)) * float64(time.Second))
}

// readFileList reads the frames that announce artifacts.
func readFileList(c *conn, count int, limits ArtifactLimits) ([]Artifact, error) {
	files := make([]Artifact, 0, min(count, 64))
	var total int64
	for range count {
		t, n, err := c.next()
		if err != nil {
			return nil, err
		}
		if t != frameFile {
			return nil, fmt.Errorf("%w: artifact expected, not a frame of type %d", ErrProtocol, t)
		}
		var a Artifact
		if err := c.readJSON(n, &a); err != nil {
			return nil, err
		}
		total += a.Size
		if a.Size < 0 || a.Size > limits.MaxFileBytes || total > limits.MaxTotalBytes {
			return nil, fmt.Errorf("%w: artifact of %d bytes is over the limits", ErrProtocol, a.Size)
		}
		files = append(files, a)
	}
	return files, nil
}
