package session

import (
	"context"
	"fmt"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// listTimeout bounds asking the engine for its runners.
const listTimeout = time.Minute

// tidy adopts, unless that is done, as soon as the engine can be reached, and
// from then on removes what failed creations leave.
func (m *Manager) tidy(adopted bool) {
	for pause := firstRetry; !adopted; pause = min(2*pause, lastRetry) {
		if !m.sleep(pause) {
			return
		}
		if err := m.adopt(m.hard); err != nil {
			m.log.Warn("cannot look for runners of an earlier process yet", "err", err)
			continue
		}
		adopted = true
	}
	for m.sleep(m.cfg.SweepInterval) {
		m.sweepStrays()
	}
}

// adopt makes sessions of the running runners that an earlier process left and
// removes its dead ones.
func (m *Manager) adopt(ctx context.Context) error {
	found, err := m.list(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	for _, inst := range found {
		m.mu.Lock()
		_, ours := m.made[inst.SessionID]
		_, known := m.sessions[inst.SessionID]
		m.mu.Unlock()
		switch {
		case inst.SessionID != "" && (ours || known):
			// This process made it after it started to serve.
		case inst.Running && validID(inst.SessionID):
			m.adoptOne(inst, now)
		case inst.Running && inst.Legacy:
			m.log.Warn("leaving alone a runner of the older service without a usable session id", "runner", inst.ID)
		default:
			m.removeStray(inst)
		}
	}
	m.mu.Lock()
	m.made = nil
	m.mu.Unlock()
	return nil
}

// adoptOne makes a session of a runner, used now and with the default idle time.
func (m *Manager) adoptOne(inst runner.Instance, now time.Time) {
	s := m.newSession(inst.SessionID, m.clampTTL(nil))
	s.handle, s.runner = inst.ID, m.deps.NewRunner(inst.ID)
	s.created, s.lastUse = inst.CreatedAt, now
	s.state = ready
	m.places.add()
	m.mu.Lock()
	m.sessions[s.id] = s
	m.mu.Unlock()
	m.wakeReaper()
	m.log.Info("adopted a runner", "session", s.id, "runner", inst.ID, "legacy", inst.Legacy)
}

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
