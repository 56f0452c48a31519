package session

import (
	"context"
	"log/slog"

	"github.com/hjxwz123/aivory-sandbox/internal/observe"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// Exec runs a program in a session and returns when it has ended. A ctx that
// ends ends the run. The caller closes the Execution; until then the session is
// locked. The slot among all sessions' runs is free again when Exec returns.
func (m *Manager) Exec(ctx context.Context, id string, req ExecRequest) (*Execution, error) {
	c, err := m.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	handed := false
	defer func() {
		if !handed {
			c.end()
		}
	}()
	x, err := c.exec(req)
	if err != nil {
		return nil, err
	}
	handed = true
	return &Execution{Execution: x, release: c.end}, nil
}

// exec runs a program once a global slot is free.
func (c *call) exec(req ExecRequest) (*runner.Execution, error) {
	m := c.m
	err := queue(c.ctx, observe.QueueExec, func() error { return m.execs.acquire(c.ctx, m.cfg.QueueTimeout, c.dying) })
	if err != nil {
		return nil, queueFault(err, DetailExecQueue)
	}
	defer m.execs.release()
	m.pressing.Add(1)
	defer m.pressing.Add(-1)
	defer c.use()()
	ctx, span := observe.Start(c.ctx, observe.Run, slog.String("session", c.s.id))
	x, err := c.s.runner.Exec(ctx, runner.ExecRequest{
		Code:           req.Code,
		Timeout:        req.Timeout,
		MaxOutputBytes: m.cfg.MaxOutputBytes,
		Artifacts:      m.cfg.Artifacts,
	})
	if err != nil {
		span.End(err)
		return nil, c.fail("running a program", err)
	}
	m.mu.Lock()
	c.s.usage.add(x.Usage)
	m.mu.Unlock()
	span.Set(describe(x)...)
	span.End(nil)
	return x, nil
}

// describe says what an observer may know of a run.
func describe(x *runner.Execution) []slog.Attr {
	var artifacts int64
	for _, f := range x.Files {
		artifacts += f.Size
	}
	return []slog.Attr{
		slog.String("reason", string(x.Reason)), slog.Int("exit_code", x.ExitCode),
		slog.Duration("wall", x.Usage.Wall), slog.Duration("collect", x.Usage.Collect), slog.Duration("cpu", x.Usage.CPU),
		slog.Int64("peak_memory", x.Usage.MaxRSS), slog.Int("output", len(x.Stdout)+len(x.Stderr)), slog.Int64("artifacts", artifacts),
	}
}
