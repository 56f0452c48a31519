package session

import (
	"context"
	"time"
)

// lastUseLag is how far the record of a session's last use may lag behind. What
// a restart does not know of, it takes for use.
const lastUseLag = 5 * time.Second

// recordLocked is what must survive of a session.
func (m *Manager) recordLocked(s *session) Record {
	return Record{
		ID: s.id, Driver: m.driver, Handle: s.handle, Phase: s.phase,
		Created: s.created.Round(0), LastUse: s.lastUse.Round(0), IdleTTL: s.ttl,
		ArchiveKey: s.archiveKey, Storage: s.storage,
		Used: s.used, Restored: s.restored, Lineage: s.lineage, KeepPending: s.keepPending,
		Ended: s.ended.Round(0), Reaped: s.reaped,
	}
}

// save makes the session as it is now survive. Saves of one session are in
// order: a later one is of a later state.
func (m *Manager) save(s *session) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	if s.forgotten {
		return nil
	}
	m.mu.Lock()
	rec := m.recordLocked(s)
	m.mu.Unlock()
	if err := m.deps.Store.Save(context.WithoutCancel(m.hard), rec); err != nil {
		return err
	}
	s.savedUse = rec.LastUse
	return nil
}

// trySave saves where there is nobody to tell of a failure.
func (m *Manager) trySave(s *session) {
	if err := m.save(s); err != nil {
		m.log.Error("cannot keep the record of a session", "session", s.id, "err", err)
	}
}

// forget removes a session's record for good.
func (m *Manager) forget(s *session) {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.forgotten = true
	if err := m.deps.Store.Delete(context.WithoutCancel(m.hard), s.id); err != nil {
		m.log.Error("cannot remove the record of a session", "session", s.id, "err", err)
	}
}

// keepTime saves the last use of sessions, every few seconds of those that were
// used.
func (m *Manager) keepTime() {
	for m.sleep(lastUseLag) {
		m.saveLastUses()
	}
}

func (m *Manager) saveLastUses() {
	now := time.Now()
	var live []*session
	m.mu.Lock()
	for _, s := range m.sessions {
		if s.phase == PhaseLive && s.state != starting {
			if s.state == ready && s.lock.busy() {
				s.lastUse = now // a run in hand is use
			}
			live = append(live, s)
		}
	}
	m.mu.Unlock()
	for _, s := range live {
		if m.lastUseIsNews(s) {
			m.trySave(s)
		}
	}
}

func (m *Manager) lastUseIsNews(s *session) bool {
	s.saving.Lock()
	defer s.saving.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	return s.lastUse.Round(0).After(s.savedUse)
}
