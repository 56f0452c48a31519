package session

import (
	"context"
	"fmt"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// Create makes a session and returns its id. It fails with fault.Busy where a
// limit or the create queue is full and with fault.Internal where the engine
// fails. Where it fails, or ctx ends, no runner stays.
func (m *Manager) Create(ctx context.Context, req CreateRequest) (string, error) {
	if err := m.begin(); err != nil {
		return "", err
	}
	defer m.end()
	if err := m.places.take(ctx, m.cfg.QueueTimeout); err != nil {
		return "", queueFault(err, DetailMaxSessions)
	}
	ctx, cancel := m.bind(ctx)
	defer cancel()
	s, err := m.make(ctx, m.clampTTL(req.IdleTTL))
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	s.state = ready
	s.lastUse = time.Now()
	m.mu.Unlock()
	m.wakeReaper()
	m.log.Info("session created", "session", s.id, "idle_ttl", s.ttl)
	return s.id, nil
}

// make makes a session's runner, in a place that the caller has taken. On error
// the place is given back as soon as nothing of the runner is left.
func (m *Manager) make(ctx context.Context, ttl time.Duration) (*session, error) {
	if err := m.creates.acquire(ctx, m.cfg.QueueTimeout, nil); err != nil {
		m.places.free(false)
		return nil, queueFault(err, DetailCreateQueue)
	}
	defer m.creates.release()

	s := m.newSession(newID(), ttl)
	m.mu.Lock()
	m.sessions[s.id] = s
	if m.made != nil {
		m.made[s.id] = struct{}{}
	}
	m.mu.Unlock()

	handle, err := m.deps.Driver.Create(ctx, runner.Spec{SessionID: s.id, CreatedAt: s.created, Limits: m.cfg.Limits})
	if err != nil {
		m.mu.Lock()
		delete(m.sessions, s.id)
		m.strays = true
		m.mu.Unlock()
		m.places.free(false)
		return nil, createFault(ctx, fmt.Errorf("creating a runner: %w", err))
	}
	m.mu.Lock()
	s.handle, s.runner = handle, m.deps.NewRunner(handle)
	m.mu.Unlock()
	if err := s.runner.Open(ctx); err != nil {
		m.mu.Lock()
		m.buryLocked(s)
		m.mu.Unlock()
		m.work.Go(func() { m.remove(s) })
		return nil, createFault(ctx, fmt.Errorf("opening a new runner: %w", err))
	}
	return s, nil
}

// createFault is what a client reads when its session could not be made.
func createFault(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	return fault.Wrap(fault.Internal, DetailRunnerFailure, err)
}

func (m *Manager) newSession(id string, ttl time.Duration) *session {
	now := time.Now()
	return &session{
		id:      id,
		lock:    newGate(1, m.stopping),
		ttl:     ttl,
		created: now,
		lastUse: now,
		dying:   make(chan struct{}),
	}
}

// clampTTL applies default, minimum and cap to what a client asked for.
func (m *Manager) clampTTL(seconds *int64) time.Duration {
	if seconds == nil || *seconds == 0 {
		return min(m.cfg.IdleTTL, m.cfg.IdleTTLCap)
	}
	if *seconds < 0 {
		return time.Second
	}
	if *seconds > int64(m.cfg.IdleTTLCap/time.Second) {
		return m.cfg.IdleTTLCap
	}
	return time.Duration(*seconds) * time.Second
}
