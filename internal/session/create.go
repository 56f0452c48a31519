package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/observe"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// Create makes a session and returns its id. It fails with fault.Busy where a
// limit or the create queue is full and with fault.Internal where the engine
// fails. Where it fails, or ctx ends, no runner stays. An archive that cannot be
// restored is no reason to fail.
func (m *Manager) Create(ctx context.Context, req CreateRequest) (string, error) {
	if err := m.begin(); err != nil {
		return "", err
	}
	defer m.end()
	m.pressing.Add(1)
	defer m.pressing.Add(-1)
	ctx, cancel := m.bind(ctx)
	defer cancel()
	ctx, span := observe.Start(ctx, observe.Create)
	id, err := m.create(ctx, req, span)
	span.End(err)
	return id, err
}

func (m *Manager) create(ctx context.Context, req CreateRequest, span *observe.Span) (string, error) {
	s, err := m.obtain(ctx, req)
	if err != nil {
		return "", err
	}
	if s, err = m.fill(ctx, s, req); err != nil {
		return "", err
	}
	span.Set(slog.String("session", s.id), slog.Bool("pooled", s.pooled), slog.Bool("restored", s.restored))
	m.mu.Lock()
	s.phase, s.lastUse = PhaseLive, time.Now()
	m.mu.Unlock()
	if err := m.save(s); err != nil {
		m.abandon(s)
		return "", fault.Wrap(fault.Internal, DetailRunnerFailure, err)
	}
	m.mu.Lock()
	s.state, s.lastUse = ready, time.Now()
	m.mu.Unlock()
	m.wakeReaper()
	m.log.Info("session created", "session", s.id, "idle_ttl", s.ttl)
	return s.id, nil
}

// obtain returns a session with an open runner, from the pool where one is to be
// had, else a new one.
func (m *Manager) obtain(ctx context.Context, req CreateRequest) (*session, error) {
	var s *session
	err := queue(ctx, observe.QueuePlace, func() (err error) {
		s, err = m.places.take(ctx, m.cfg.QueueTimeout)
		return err
	})
	if err != nil {
		return nil, queueFault(err, DetailMaxSessions)
	}
	if s != nil {
		s.pooled = true
	} else if s, err = m.make(ctx); err != nil {
		return nil, err
	}
	provider := m.provider(ctx, req.Storage)
	m.mu.Lock()
	defer m.mu.Unlock()
	s.created, s.ttl = time.Now(), m.clampTTL(req.IdleTTL)
	if storage.ValidArchiveKey(req.ArchiveKey) {
		s.archiveKey = req.ArchiveKey
	}
	if req.Storage != nil {
		remembered := *req.Storage
		s.storage, s.provider = &remembered, provider
	}
	return s, nil
}

// make makes a session's runner, in a place that the caller has taken. On error
// the place is given back as soon as nothing of the runner is left.
func (m *Manager) make(ctx context.Context) (*session, error) {
	err := queue(ctx, observe.QueueCreate, func() error { return m.creates.acquire(ctx, m.cfg.QueueTimeout, nil) })
	if err != nil {
		m.places.free(false)
		return nil, queueFault(err, DetailCreateQueue)
	}
	defer m.creates.release()
	s, err := m.build(ctx)
	switch {
	case err == nil:
		return s, nil
	case s == nil:
		m.places.free(false)
	default:
		m.abandon(s)
	}
	return nil, createFault(ctx, err)
}

// build makes a runner and opens it, for a session that has its id and nothing
// else yet. Where it fails, the caller gives up what it returns, or the place
// where that is nil.
func (m *Manager) build(ctx context.Context) (*session, error) {
	s := m.newSession(newID(), 0)
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
		return nil, fmt.Errorf("creating a runner: %w", err)
	}
	m.mu.Lock()
	s.handle, s.runner = handle, m.deps.NewRunner(handle)
	m.mu.Unlock()
	if err := s.runner.Open(ctx); err != nil {
		return s, fmt.Errorf("opening a new runner: %w", err)
	}
	return s, nil
}

// maxRemakes bounds how often an archive may take a new runner down.
const maxRemakes = 3

// fill restores what is kept for a session that was made, if there is anything.
// An archive that takes the runner down costs its files: the session is another
// one then, and in the end one without any.
func (m *Manager) fill(ctx context.Context, s *session, req CreateRequest) (*session, error) {
	if s.archiveKey == "" { // archived under its own id, which is new
		return s, nil
	}
	t := m.target(ctx, s.archiveKey, s.storage)
	if t == nil {
		return s, nil
	}
	for remakes := 0; ; remakes++ {
		err := m.restore(ctx, s, t)
		if err == nil {
			return s, nil
		}
		m.abandon(s)
		if !errors.Is(err, runner.ErrNotFound) {
			return nil, createFault(ctx, err)
		}
		m.log.Error("an archive took its runner down; making another without it", "session", s.id, "key", t.key, "err", err)
		next, err := m.obtain(ctx, req)
		if err != nil {
			return nil, err
		}
		next.lineage.Bad, next.keepPending = s.lineage.Bad, s.keepPending
		s = next
		if remakes == maxRemakes {
			s.restored, s.lineage.Partial = true, true
			return s, nil
		}
	}
}

// abandon gives up a session that nobody knows yet.
func (m *Manager) abandon(s *session) {
	m.mu.Lock()
	m.buryLocked(s)
	m.mu.Unlock()
	m.work.Go(func() { m.remove(s) })
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
