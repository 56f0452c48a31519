package session

import (
	"io"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/session/spool"
)

// Spool keeps what could not be done in an object store yet. *spool.Spool is
// one; see there for the meaning of each method.
type Spool interface {
	Add(h spool.Head, write func(io.Writer) error) (spool.Entry, error)
	AddPurge(h spool.Head) (spool.Entry, error)
	Entries() []spool.Entry
	Get(name string) (spool.Entry, bool)
	Open(name string) (io.ReadCloser, error)
	Update(name string, h spool.Head) error
	Remove(name string) error
	SetAside(name string) error
	Usage() (entries int, bytes int64)
}

// pending returns what the spool holds for t, the oldest first.
func (m *Manager) pending(t *target) []spool.Entry {
	var found []spool.Entry
	for _, e := range m.deps.Spool.Entries() {
		if place(e.Storage, e.Key) == t.place() {
			found = append(found, e)
		}
	}
	return found
}

// stampLocked returns the time, later than all that was stamped before, though the
// clock be turned back: archives of one key are ordered by it.
func (m *Manager) stampLocked() time.Time {
	now := time.Now().Round(0)
	if !now.After(m.lastStamp) {
		now = m.lastStamp.Add(1)
	}
	m.lastStamp = now
	return now
}

// stampedLocked tells of a time that an earlier process stamped.
func (m *Manager) stampedLocked(at time.Time) {
	if at.After(m.lastStamp) {
		m.lastStamp = at
	}
}

// supersede forgets what else there is to be done for t, but for one entry of the
// spool, and no younger than what has been made safe now: entries, and sessions
// that ended but could not be archived yet. The caller holds the lock of t.
func (m *Manager) supersede(t *target, at time.Time, but string) {
	for _, e := range m.pending(t) {
		if e.Name != but && !e.Time.After(at) {
			m.removePending(e)
		}
	}
	for _, s := range m.endingAt(t) {
		m.mu.Lock()
		older := s.ended.Before(at)
		if older {
			s.unwanted, s.phase = true, PhaseGone
		}
		m.mu.Unlock()
		if older {
			m.trySave(s)
		}
	}
}

// endingAt returns the sessions that ended and are still to be archived at t.
func (m *Manager) endingAt(t *target) []*session {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []*session
	for _, s := range m.sessions {
		if s.phase != PhaseEnding {
			continue
		}
		if key, err := s.storage.ArchiveKey(s.stem()); err == nil && place(*s.storage, key) == t.place() {
			found = append(found, s)
		}
	}
	return found
}

// waitsFor tells whether an entry of the spool is to wait for the archive of a
// session that ended after it: stored now, it would look the younger one.
func (m *Manager) waitsFor(t *target, e spool.Entry) bool {
	for _, s := range m.endingAt(t) {
		m.mu.Lock()
		younger := s.ended.After(e.Time)
		m.mu.Unlock()
		if younger {
			return true
		}
	}
	return false
}

func (m *Manager) removePending(e spool.Entry) {
	if err := m.deps.Spool.Remove(e.Name); err != nil {
		m.log.Error("cannot remove an entry of the spool", "entry", e.Name, "key", e.Key, "err", err)
	}
}

// setPendingBeside gives archives in the spool that could not be restored a key
// of their own, so that a successor does not supersede them. The caller holds
// the lock of t.
func (m *Manager) setPendingBeside(t *target) {
	for _, e := range m.pending(t) {
		if e.Purge {
			continue
		}
		head := e.Head
		head.Key, head.Lineage = t.keptKey(e.Time, e.Name), spool.Lineage{}
		if err := m.deps.Spool.Update(e.Name, head); err != nil {
			m.log.Error("cannot keep an archive that could not be restored beside its successor", "key", t.key, "err", err)
			continue
		}
		m.log.Warn("keeping an archive that could not be restored beside its successor", "storage", t.storage, "key", head.Key)
	}
}
