package session

import (
	"slices"
	"strings"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// Info tells of a session, for whoever watches it. It holds no secret.
type Info struct {
	ID string
	// State is "ready", "busy" while a call is served, or "terminating".
	State   string
	Created time.Time
	// IdleTTL is the idle time after which it expires, IdleLeft what is left of it:
	// all of it while a call is served, none where it has expired already.
	IdleTTL, IdleLeft time.Duration
	// ArchiveKey is empty where the creator named none that is fit.
	ArchiveKey string
	// Provider is the one of the storage block that is remembered; empty is none, or
	// one that keeps nothing.
	Provider string
	Usage    Usage
}

// Usage is what a session's runs have cost, since its creation or the start of
// this process.
type Usage struct {
	Runs      int64
	Wall, CPU time.Duration
	MaxRSS    int64 // bytes, of the largest process so far
}

// add counts a run.
func (u *Usage) add(x runner.Usage) {
	u.Runs++
	u.Wall += x.Wall
	u.CPU += x.CPU
	u.MaxRSS = max(u.MaxRSS, x.MaxRSS)
}

// Session tells of one session. Asking is no use of it, and waits for nothing.
func (m *Manager) Session(id string) (Info, error) {
	if !ValidID(id) {
		return Info{}, fault.New(fault.Invalid, DetailInvalidID)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sessions[id]; s != nil && s.known() {
		return s.infoLocked(time.Now()), nil
	}
	return Info{}, fault.New(fault.NotFound, DetailNotFound)
}

// Sessions tells of all sessions, the oldest first.
func (m *Manager) Sessions() []Info {
	now := time.Now()
	m.mu.Lock()
	infos := make([]Info, 0, len(m.sessions))
	for _, s := range m.sessions {
		if s.known() {
			infos = append(infos, s.infoLocked(now))
		}
	}
	m.mu.Unlock()
	slices.SortFunc(infos, func(a, b Info) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return infos
}

// known tells whether a client may have the session's id and it is not over.
func (s *session) known() bool { return s.state == ready || s.state == terminating }

func (s *session) infoLocked(now time.Time) Info {
	i := Info{
		ID: s.id, State: "ready", Created: s.created, IdleTTL: s.ttl, ArchiveKey: s.archiveKey, Provider: s.provider, Usage: s.usage,
	}
	switch {
	case s.state == terminating:
		i.State = "terminating"
	case s.lock.busy():
		i.State, i.IdleLeft = "busy", s.ttl
	default:
		expiry := s.lastUse.Add(s.ttl)
		if s.notBefore.After(expiry) {
			expiry = s.notBefore
		}
		i.IdleLeft = max(expiry.Sub(now), 0)
	}
	return i
}
