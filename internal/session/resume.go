package session

import (
	"context"
	"time"
)

// resume goes on with the sessions that an earlier process kept: live ones are
// served, endings finished, and runners removed that were to be. Complete tells
// whether a runner that no record names belongs to nobody.
func (m *Manager) resume(ctx context.Context) (complete bool, err error) {
	records, complete, err := m.deps.Store.Load(ctx)
	if err != nil {
		return false, err
	}
	now := time.Now()
	m.mu.Lock()
	for _, r := range records {
		m.stampedLocked(r.Ended)
	}
	for _, e := range m.deps.Spool.Entries() {
		m.stampedLocked(e.Time)
		t := &target{storage: e.Storage, key: e.Key}
		m.soilLocked(t, e.Lineage)
		m.untidy[t.place()] = max(m.untidy[t.place()], e.Untidy)
	}
	m.mu.Unlock()
	for _, r := range records {
		if r.Driver != m.driver {
			m.log.Warn("leaving alone a session of another driver", "session", r.ID, "driver", r.Driver)
			continue
		}
		m.resumeOne(ctx, r, now)
	}
	if !complete {
		m.log.Info("session records are new, or were lost in part: runners of this instance that are found become sessions")
	}
	return complete, nil
}

func (m *Manager) resumeOne(ctx context.Context, r Record, now time.Time) {
	s := m.newSession(r.ID, r.IdleTTL)
	s.handle, s.runner = r.Handle, m.deps.NewRunner(r.Handle)
	s.created, s.archiveKey, s.storage = r.Created, r.ArchiveKey, r.Storage
	s.provider = m.provider(ctx, s.storage)
	s.used, s.restored, s.lineage, s.keepPending = r.Used, r.Restored, r.Lineage, r.KeepPending
	s.ended, s.reaped = r.Ended, r.Reaped
	s.loaded, s.state, s.phase = true, ready, r.Phase
	s.savedUse = r.LastUse
	// It may have been used since that was written.
	s.lastUse = r.LastUse.Add(lastUseLag)
	if s.lastUse.After(now) {
		s.lastUse = now
	}
	m.places.add()
	m.mu.Lock()
	m.sessions[s.id] = s
	switch r.Phase {
	case PhaseEnding:
		s.lock.tryAcquire() // it is new, so it is free
		m.dieLocked(s)
		if s.storage != nil {
			if key, err := s.storage.ArchiveKey(s.stem()); err == nil {
				m.soilLocked(&target{storage: *s.storage, key: key}, s.lineage)
			}
		}
	case PhaseGone:
		m.buryLocked(s)
	}
	m.mu.Unlock()
	log := m.log.With("session", s.id, "runner", s.handle)
	switch r.Phase {
	case PhaseEnding:
		log.Info("finishing what ended with an earlier process")
		m.work.Go(func() {
			m.finish(s, ending{reaped: r.Reaped, late: true}, make(chan error, 1))
		})
	case PhaseGone:
		log.Info("removing a runner that an earlier process gave up")
		m.work.Go(func() { m.remove(s) })
	default:
		log.Info("session goes on", "idle_ttl", s.ttl, "last_use", s.lastUse)
	}
}
