package session

import (
	"context"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

// Delete releases a session. It waits for the run in hand; where that takes
// longer than the queue timeout it fails with fault.Busy and the session is
// usable again. Releasing a session that does not exist succeeds. The runner is
// removed after the answer.
func (m *Manager) Delete(ctx context.Context, id string, _ DeleteRequest) error {
	if !validID(id) {
		return fault.New(fault.Invalid, DetailInvalidID)
	}
	if err := m.begin(); err != nil {
		return err
	}
	defer m.end()
	for {
		m.mu.Lock()
		s := m.sessions[id]
		if s == nil || s.state == starting || s.state == removing {
			m.mu.Unlock()
			return nil
		}
		if s.state == terminating { // by another DELETE or the reaper
			settled := s.settled
			m.mu.Unlock()
			if err := wait(ctx, m.cfg.QueueTimeout, settled, nil, m.stopping); err != nil {
				return queueFault(err, DetailBusy)
			}
			continue
		}
		m.dieLocked(s)
		m.mu.Unlock()
		return m.deleteDying(ctx, s)
	}
}

// deleteDying waits for the run in hand of a session that was marked, and ends
// the session.
func (m *Manager) deleteDying(ctx context.Context, s *session) error {
	if err := s.lock.acquire(ctx, m.cfg.QueueTimeout, nil); err != nil {
		m.mu.Lock()
		if s.state == terminating {
			m.reviveLocked(s)
			s.lastUse = time.Now()
		}
		gone := s.state == removing
		m.mu.Unlock()
		if gone {
			return nil
		}
		m.wakeReaper()
		return queueFault(err, DetailBusy)
	}
	m.mu.Lock()
	gone := s.state == removing // its runner vanished under the run in hand
	m.mu.Unlock()
	if gone {
		s.lock.release()
		return nil
	}
	done := make(chan struct{})
	m.work.Go(func() {
		m.terminate(s)
		close(done)
		m.remove(s)
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done(): // nobody waits any longer; what has begun goes on
		return context.Cause(ctx)
	}
}

// terminate ends a dying session whose lock the caller holds, up to the point
// where a client may be told. remove must follow.
func (m *Manager) terminate(s *session) {
	defer s.lock.release()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.buryLocked(s)
}
