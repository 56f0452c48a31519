package session

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
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
	interrupt := make(chan struct{})
	ctx, leave := context.WithCancelCause(c.ctx)
	defer leave(nil)
	m.setInterrupt(c.s, sync.OnceFunc(func() {
		close(interrupt)
		leave(errInterrupted)
	}))
	defer m.setInterrupt(c.s, nil)
	err := queue(ctx, observe.QueueExec, func() error { return m.execs.acquire(ctx, m.cfg.QueueTimeout, c.dying) })
	if errors.Is(err, errInterrupted) { // it has not even begun
		return &runner.Execution{Reason: runner.ReasonCancelled, ExitCode: exitInterrupted}, nil
	}
	if err != nil {
		return nil, queueFault(err, DetailExecQueue)
	}
	defer m.execs.release()
	m.pressing.Add(1)
	defer m.pressing.Add(-1)
	defer c.use()()
	watched, span := observe.Start(c.ctx, observe.Run, slog.String("session", c.s.id))
	x, err := c.s.runner.Exec(watched, runner.ExecRequest{
		Code:           req.Code,
		Timeout:        req.Timeout,
		MaxOutputBytes: m.cfg.MaxOutputBytes,
		Artifacts:      m.cfg.Artifacts,
		Interrupt:      interrupt,
		Output:         req.Output,
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

// exitInterrupted is what a shell says of a program that SIGINT ended.
const exitInterrupted = 130

// errInterrupted ends the wait of a run that was interrupted before it began.
var errInterrupted = errors.New("interrupted")

func (m *Manager) setInterrupt(s *session, interrupt func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.interrupt = interrupt
}

// Interrupt interrupts the run that a session has in hand, also one that waits
// for a slot as yet, and tells whether there was one. It does not wait for the
// run's end. The run is answered with ReasonCancelled.
func (m *Manager) Interrupt(id string) (bool, error) {
	if !ValidID(id) {
		return false, fault.New(fault.Invalid, DetailInvalidID)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sessions[id]
	if s == nil || !s.known() {
		return false, fault.New(fault.NotFound, DetailNotFound)
	}
	if s.interrupt == nil {
		return false, nil
	}
	s.interrupt()
	return true, nil
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
