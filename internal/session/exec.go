package session

import (
	"context"

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
	if err := m.execs.acquire(c.ctx, m.cfg.QueueTimeout, c.dying); err != nil {
		return nil, queueFault(err, DetailExecQueue)
	}
	defer m.execs.release()
	m.pressing.Add(1)
	defer m.pressing.Add(-1)
	defer c.use()()
	x, err := c.s.runner.Exec(c.ctx, runner.ExecRequest{
		Code:           req.Code,
		Timeout:        req.Timeout,
		MaxOutputBytes: m.cfg.MaxOutputBytes,
		Artifacts:      m.cfg.Artifacts,
	})
	if err != nil {
		return nil, c.fail("running a program", err)
	}
	return x, nil
}
