package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// listTimeout bounds asking the engine for its runners.
const listTimeout = time.Minute

// tidy adopts, unless that is done, as soon as the engine can be reached, and
// from then on removes what failed creations leave. The pool is for the places
// that adopted sessions leave.
func (m *Manager) tidy(complete, adopted bool) {
	for pause := firstRetry; !adopted; pause = min(2*pause, lastRetry) {
		if !m.sleep(pause) {
			return
		}
		if err := m.adopt(m.hard, complete); err != nil {
			m.log.Warn("cannot look for runners of an earlier process yet", "err", err)
			continue
		}
		adopted = true
	}
	if m.cfg.PoolSize > 0 {
		m.work.Go(m.keepPool)
	}
	for m.sleep(m.cfg.SweepInterval) {
		m.sweepStrays()
	}
}

// adopt settles what becomes of the runners that an earlier process left. One
// that a record names goes on as it was. Of the others those of the older service
// become sessions, and where the records may not be all, every one does; else
// they belong to nobody and are removed, as are dead ones.
func (m *Manager) adopt(ctx context.Context, complete bool) error {
	found, err := m.list(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	// By the session as well: an engine has more than one way to name a runner.
	alive := make(map[string]bool)
	allSaved := true
	for _, inst := range found {
		if inst.Running {
			alive[inst.ID], alive[inst.SessionID] = true, true
		}
		m.mu.Lock()
		_, ours := m.made[inst.SessionID]
		_, known := m.sessions[inst.SessionID]
		m.mu.Unlock()
		switch {
		case inst.SessionID != "" && (ours || known):
			// Kept, or made since this process began to serve.
		case inst.Running && ValidID(inst.SessionID) && (inst.Legacy || !complete):
			if err := m.adoptOne(inst, now); err != nil {
				allSaved = false
				m.log.Error("cannot keep the record of an adopted session", "session", inst.SessionID, "err", err)
			}
		case inst.Running && inst.Legacy:
			m.log.Warn("leaving alone a runner of the older service without a usable session id", "runner", inst.ID)
		default:
			m.removeStray(inst)
		}
	}
	m.dropVanished(alive)
	m.mu.Lock()
	m.made = nil
	m.mu.Unlock()
	if complete || !allSaved {
		return nil
	}
	if err := m.deps.Store.SetComplete(ctx); err != nil {
		m.log.Error("cannot note that session records are complete", "err", err)
	}
	return nil
}

// adoptOne makes a session of a runner, used now and with the default idle time.
func (m *Manager) adoptOne(inst runner.Instance, now time.Time) error {
	s := m.newSession(inst.SessionID, m.clampTTL(nil))
	s.handle, s.runner = inst.ID, m.deps.NewRunner(inst.ID)
	s.created, s.lastUse = inst.CreatedAt, now
	s.state, s.phase, s.used = ready, PhaseLive, true
	m.places.add()
	m.mu.Lock()
	m.sessions[s.id] = s
	m.mu.Unlock()
	m.wakeReaper()
	m.log.Info("adopted a runner", "session", s.id, "runner", inst.ID, "legacy", inst.Legacy)
	return m.save(s)
}

// dropVanished ends kept sessions whose runners are not alive any more. Those
// that are in use or ending find out for themselves.
func (m *Manager) dropVanished(alive map[string]bool) {
	var vanished []*session
	m.mu.Lock()
	for _, s := range m.sessions {
		if s.loaded && s.state == ready && !alive[s.handle] && !alive[s.id] && s.lock.tryAcquire() {
			vanished = append(vanished, s)
		}
	}
	m.mu.Unlock()
	for _, s := range vanished {
		m.drop(s, errVanished)
		s.lock.release()
	}
}

var errVanished = errors.New("it did not outlive the earlier process")

// removeStray removes a runner that belongs to no session.
func (m *Manager) removeStray(inst runner.Instance) {
	if err := m.destroy(inst.ID); err != nil {
		m.log.Warn("cannot remove a leftover runner", "runner", inst.ID, "err", err)
		m.mu.Lock()
		m.strays = true
		m.mu.Unlock()
		return
	}
	m.log.Info("removed a leftover runner", "runner", inst.ID, "session", inst.SessionID, "running", inst.Running)
}

// sweepStrays removes dead runners that failed creations may have left.
func (m *Manager) sweepStrays() {
	m.mu.Lock()
	look := m.strays
	m.strays = false
	m.mu.Unlock()
	if !look {
		return
	}
	found, err := m.list(m.hard)
	if err != nil {
		m.log.Warn("cannot look for leftover runners", "err", err)
		m.mu.Lock()
		m.strays = true
		m.mu.Unlock()
		return
	}
	for _, inst := range found {
		m.mu.Lock()
		_, known := m.sessions[inst.SessionID]
		m.mu.Unlock()
		if !known && !inst.Running && !inst.Legacy {
			m.removeStray(inst)
		}
	}
}

func (m *Manager) list(ctx context.Context) ([]runner.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	found, err := m.deps.Driver.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing runners: %w", err)
	}
	return found, nil
}
