package session

import (
	"log/slog"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/observe"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// ending says how a session ends.
type ending struct {
	reaped  bool // for being idle; else by a DELETE
	discard bool // its workspace is not kept, and what was kept under stem goes
	stem    string
	storage *storage.Config // forwarded with the DELETE
	late    bool            // it had ended before
}

// cause is what an observer calls it.
func (e ending) cause() string {
	switch {
	case e.discard:
		return "discarded"
	case e.reaped:
		return "expired"
	}
	return "deleted"
}

// keepPatience is how long a workspace is asked for from an agent that does not
// hand it out while the engine is well. A program can make its agent so.
const keepPatience = 15 * time.Minute

// finish ends a dying session whose lock the caller holds: it keeps or discards
// the workspace, says so on told, and removes the runner. An ending that a
// shutdown interrupts is finished by the next process. A session that expired
// but cannot be kept anywhere lives on.
func (m *Manager) finish(s *session, e ending, told chan<- error) {
	_, span := observe.Start(m.hard, observe.End, slog.String("session", s.id), slog.String("cause", e.cause()))
	t, o := m.keepWorkspace(s, e)
	switch {
	case o == interrupted: // the next process ends it
		s.lock.release()
		told <- fault.New(fault.Unavailable, detailStopping)
		return
	case o == refused && e.reaped:
		m.revive(s)
		told <- nil
		return
	case o == refused:
		m.log.Error("workspace is lost: it can be kept neither in its store nor in the spool", "session", s.id)
	}
	if o == refused || o == lost {
		m.lost.Add(1)
		m.cleanSoon(t)
	}
	m.mu.Lock()
	m.buryLocked(s)
	if o != failed {
		s.phase = PhaseGone
	}
	m.mu.Unlock()
	m.trySave(s)
	span.End(nil)
	s.lock.release()
	told <- nil
	if o == failed && !m.keepLater(s, t, e) {
		return
	}
	m.remove(s)
}

// keepWorkspace does with the workspace what the ending asks for.
func (m *Manager) keepWorkspace(s *session, e ending) (*target, outcome) {
	if e.discard {
		m.discard(e.stem, e.storage, s.storage)
		return nil, kept
	}
	t := m.target(m.hard, s.stem(), e.storage, s.storage)
	if t == nil {
		return nil, kept
	}
	return t, m.archive(s, t, e)
}

// revive lets a session that cannot be kept anywhere go on. It is tried again
// after a while, unless it is used.
func (m *Manager) revive(s *session) {
	m.mu.Lock()
	m.reviveLocked(s)
	s.phase = PhaseLive
	s.notBefore = time.Now().Add(max(m.cfg.SweepInterval, s.ttl))
	m.mu.Unlock()
	m.trySave(s)
	s.lock.release()
	m.log.Warn("an expired session lives on until its workspace can be kept", "session", s.id)
	m.wakeReaper()
}

// keepLater goes on trying to keep the workspace of a buried session whose runner
// could not be asked for it, and tells whether the runner may be removed now.
func (m *Manager) keepLater(s *session, t *target, e ending) bool {
	began := time.Now()
	e.late = true
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		if !m.sleep(pause) {
			return false
		}
		o := m.archive(s, t, e)
		switch {
		case o == interrupted:
			return false
		case o == refused && e.reaped:
			continue
		case o == failed && (time.Since(began) < keepPatience || !m.engineWell()):
			continue
		case o != kept:
			m.log.Error("workspace is lost: its runner does not hand it out", "session", s.id)
			m.lost.Add(1)
			m.cleanSoon(t)
		}
		m.mu.Lock()
		s.phase = PhaseGone
		m.mu.Unlock()
		m.trySave(s)
		return true
	}
}
