package session

import "time"

// coolAfter is how long after its last use a session's agent is let go, with the
// modules that it has loaded.
const coolAfter = 5 * time.Minute

// reap ends sessions that nobody has used for their idle time. It wakes at the
// earliest expiry, and at least once in each sweep interval.
func (m *Manager) reap() {
	for {
		next := m.sweep(time.Now())
		timer := time.NewTimer(time.Until(next))
		select {
		case <-timer.C:
		case <-m.wake:
		case <-m.stopping:
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// wakeReaper makes the reaper look again for the earliest expiry.
func (m *Manager) wakeReaper() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// sweep terminates what has expired, lets go of agents that nobody needs for now,
// and returns when to look again.
func (m *Manager) sweep(now time.Time) time.Time {
	next := now.Add(m.cfg.SweepInterval)
	var expired []*session
	m.mu.Lock()
	for _, s := range m.sessions {
		if s.state != ready {
			continue
		}
		expiry := s.lastUse.Add(s.ttl)
		if s.notBefore.After(expiry) {
			expiry = s.notBefore
		}
		if !expiry.After(now) {
			if s.lock.tryAcquire() {
				m.dieLocked(s)
				expired = append(expired, s)
				continue
			}
			expiry = now.Add(s.ttl) // in use: its idle time has not begun
		}
		if expiry.Before(next) {
			next = expiry
		}
		if !s.cold && now.Sub(s.lastUse) >= coolAfter && s.lock.tryAcquire() {
			// All of it under mu, where nobody takes it for use; it does not block.
			s.cold = true
			m.log.Debug("letting go of an idle session's agent", "session", s.id)
			m.closeStream(s)
			s.lock.release()
		}
	}
	m.mu.Unlock()
	for _, s := range expired {
		m.log.Info("session expired", "session", s.id, "idle_ttl", s.ttl)
		m.work.Go(func() { m.finish(s, ending{reaped: true}, make(chan error, 1)) })
	}
	return next
}
