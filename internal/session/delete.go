package session

import (
	"context"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// Delete releases a session. It waits for the run in hand; where that takes
// longer than the queue timeout it fails with fault.Busy and the session is
// usable again. It returns once the workspace is safe in its store or in the
// spool, or is known to be lost. Releasing a session that does not exist
// succeeds. The runner is removed after the answer.
func (m *Manager) Delete(ctx context.Context, id string, req DeleteRequest) error {
	if !ValidID(id) {
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
			if s != nil && s.state == starting {
				s = nil // nobody was told its id
			}
			m.mu.Unlock()
			if req.Discard {
				m.discardEnded(id, s, req)
			}
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
		return m.deleteDying(ctx, s, req)
	}
}

// discardEnded discards what an ended session has left. s may be nil.
func (m *Manager) discardEnded(id string, s *session, req DeleteRequest) {
	stem, blocks := storage.Stem(req.ArchiveKey, id), []*storage.Config{req.Storage}
	if s != nil {
		m.mu.Lock()
		s.unwanted, s.phase = true, PhaseGone
		blocks = append(blocks, s.storage)
		m.mu.Unlock()
		m.trySave(s)
		stem = s.stemFor(req)
	}
	m.discard(stem, blocks...)
}

// stemFor names the archive that a request to discard means.
func (s *session) stemFor(req DeleteRequest) string {
	if storage.ValidArchiveKey(req.ArchiveKey) {
		return req.ArchiveKey
	}
	return s.stem()
}

// deleteDying waits for the run in hand of a session that was marked, and ends
// the session.
func (m *Manager) deleteDying(ctx context.Context, s *session, req DeleteRequest) error {
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
	told := make(chan error, 1)
	e := ending{discard: req.Discard, stem: s.stemFor(req), storage: req.Storage}
	m.work.Go(func() { m.finish(s, e, told) })
	select {
	case err := <-told:
		return err
	case <-ctx.Done(): // nobody waits any longer; what has begun goes on
		return context.Cause(ctx)
	}
}
