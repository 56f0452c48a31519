package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/observe"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/session/spool"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// state is where a session is in its life. A session only ever moves down this
// list, but for a termination that gives up before it has begun.
type state uint8

const (
	starting    state = iota // its runner is being made, or in the pool; nobody knows its id
	ready                    // calls are served, one at a time
	terminating              // a DELETE waits for the run in hand, or the workspace is being kept
	removing                 // over for every client; its runner is on the way out
)

// session is one conversation's runner. Fields without a remark never change
// once the session is ready.
type session struct {
	id      string
	handle  string // the driver's
	runner  Runner
	lock    *gate // of one slot; held for the length of a call
	ttl     time.Duration
	created time.Time
	// archiveKey is empty where the creator named none that is fit.
	archiveKey string
	// restored, lineage and keepPending are as in Record.
	restored, keepPending bool
	lineage               spool.Lineage
	// loaded tells that the session was kept by an earlier process, pooled that its
	// runner was made ahead of need.
	loaded, pooled bool

	// Guarded by Manager.mu; storage, phase, ended and reaped are changed by who
	// holds the lock or has buried the session.
	state     state
	lastUse   time.Time
	notBefore time.Time       // not to be reaped before
	cold      bool            // its agent was let go for being idle
	used      bool            // as in Record
	storage   *storage.Config // remembered; once it has ended, where its workspace goes
	provider  string          // of storage, empty where that keeps nothing
	phase     Phase
	ended     time.Time
	reaped    bool
	usage     Usage
	interrupt func()        // interrupts the run in hand, nil where there is none
	unwanted  bool          // its workspace: discarded, or a younger archive is stored
	dying     chan struct{} // closed when waiting calls must give up
	settled   chan struct{} // closed when a termination has succeeded or given up

	left bool // its place comes free soon; guarded by places.mu

	// saving orders what is written of the session and guards what follows it.
	saving    sync.Mutex
	savedUse  time.Time
	forgotten bool
}

// newID draws a session id: a random UUID in hexadecimal, without dashes.
func newID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return hex.EncodeToString(b[:])
}

// call is one client's call on a session, from the lookup to the release of the
// session's lock.
type call struct {
	m      *Manager
	s      *session
	ctx    context.Context // the client's, bound to a shutdown
	dying  <-chan struct{}
	cancel context.CancelFunc
	once   sync.Once
}

// enter looks a session up and waits for its lock. The call must be ended.
func (m *Manager) enter(ctx context.Context, id string) (*call, error) {
	if !ValidID(id) {
		return nil, fault.New(fault.Invalid, DetailInvalidID)
	}
	if err := m.begin(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	s := m.sessions[id]
	if s == nil || s.state != ready {
		m.mu.Unlock()
		m.end()
		return nil, fault.New(fault.NotFound, DetailNotFound)
	}
	s.lastUse, s.cold = time.Now(), false
	dying := s.dying
	m.mu.Unlock()

	err := queue(ctx, observe.QueueSession, func() error { return s.lock.acquire(ctx, m.cfg.QueueTimeout, dying) })
	if err != nil {
		m.touch(s)
		m.end()
		return nil, queueFault(err, DetailBusy)
	}
	c := &call{m: m, s: s, dying: dying}
	c.ctx, c.cancel = m.bind(ctx)
	m.mu.Lock()
	gone := s.state != ready
	m.mu.Unlock()
	if gone {
		c.end()
		return nil, fault.New(fault.NotFound, DetailNotFound)
	}
	return c, nil
}

// end lets the next call have the session. It is idempotent.
func (c *call) end() {
	c.once.Do(func() {
		c.cancel()
		c.m.touch(c.s)
		c.s.lock.release()
		c.m.end()
	})
}

// use notes, with a session's first run or upload, that it has something to be
// kept. The caller answers only after wait has returned, so that this is known to
// the next process too.
func (c *call) use() (wait func()) {
	c.m.mu.Lock()
	first := !c.s.used
	c.s.used = true
	c.m.mu.Unlock()
	if !first {
		return func() {}
	}
	saved := make(chan struct{})
	c.m.work.Go(func() {
		c.m.trySave(c.s)
		close(saved)
	})
	return func() { <-saved }
}

// touch notes that a session is in use.
func (m *Manager) touch(s *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.lastUse = time.Now()
}

// fail turns an error of the runner into what the client reads. A runner that is
// gone takes its session with it.
func (c *call) fail(doing string, err error) error {
	if errors.Is(err, runner.ErrNotFound) {
		c.m.drop(c.s, err)
		return fault.Wrap(fault.NotFound, DetailNotFound, fmt.Errorf("%s: %w", doing, err))
	}
	if c.ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, context.Cause(c.ctx))
	}
	switch fault.KindOf(err) {
	case fault.Invalid, fault.NotFound, fault.Conflict, fault.TooLarge:
		return err // about the request
	}
	return fault.Wrap(fault.Internal, DetailRunnerFailure, fmt.Errorf("%s: %w", doing, err))
}

// drop gives up a session whose runner vanished. The caller holds its lock.
func (m *Manager) drop(s *session, cause error) {
	m.mu.Lock()
	was := s.state
	if was == ready || was == terminating {
		m.buryLocked(s)
	}
	m.mu.Unlock()
	if was == removing {
		return
	}
	_, span := observe.Start(m.hard, observe.End, slog.String("session", s.id), slog.String("cause", "lost"))
	span.End(cause)
	m.log.Warn("runner is gone; its session ends", "session", s.id, "err", cause)
	m.work.Go(func() { m.remove(s) })
}

// dieLocked makes a ready session answer 404 to all but DELETE.
func (m *Manager) dieLocked(s *session) {
	s.state = terminating
	s.settled = make(chan struct{})
	close(s.dying)
}

// reviveLocked undoes dieLocked.
func (m *Manager) reviveLocked(s *session) {
	s.state = ready
	s.dying = make(chan struct{})
	close(s.settled)
}

// buryLocked ends a session for every client. Its runner is still there and
// still counts; remove must follow.
func (m *Manager) buryLocked(s *session) {
	switch s.state {
	case ready:
		close(s.dying)
	case terminating:
		close(s.settled)
	}
	s.state = removing
	m.places.leave(s)
}
