package session

import "time"

const (
	// refillPause lets an answer leave before a runner is made ahead of need, and
	// is how often it is looked whether anybody waits for an answer.
	refillPause = 50 * time.Millisecond
	// refillPatience bounds how long creations and runs in hand hold that off. So
	// it also bounds how often it disturbs a service that always has some.
	refillPatience = 2 * time.Second
	// poolCheck is how often the pool is searched for dead runners.
	poolCheck = 10 * time.Second
)

// keepPool keeps runners ready for sessions to come, within the limit of all
// sessions: made and opened, so that a creation only has to write them down. They
// are made one at a time. No record names them: what a process leaves of its pool
// is removed by the next.
func (m *Manager) keepPool() {
	defer m.emptyPool()
	afterDeath, afterFailure := firstRetry, firstRetry
	longer := func(pause *time.Duration) bool {
		d := *pause
		*pause = min(2*d, lastRetry)
		return m.sleep(d)
	}
	failing := false
	for {
		died, settled := m.places.dropDead()
		switch {
		case settled:
			afterDeath = firstRetry
		case died && !longer(&afterDeath): // the next one may die of the same
			return
		}
		if !m.places.lacks() {
			if !m.poolChanges() {
				return
			}
			continue
		}
		if !m.calm() {
			return
		}
		tried, err := m.makeAhead()
		switch {
		case m.soft.Err() != nil:
			return
		case err != nil:
			if !failing {
				m.log.Warn("cannot make a runner ahead of need; trying again in the background", "err", err)
			}
			failing = true
			if !longer(&afterFailure) {
				return
			}
		case tried:
			if failing {
				m.log.Info("runners are made ahead of need again")
			}
			failing, afterFailure = false, firstRetry
		}
	}
}

// makeAhead makes a runner for the pool, unless creations have all the slots.
func (m *Manager) makeAhead() (tried bool, err error) {
	if !m.creates.tryAcquire() {
		return false, nil
	}
	defer m.creates.release()
	if !m.places.reserve() {
		return false, nil
	}
	s, err := m.build(m.soft)
	if err == nil {
		m.log.Debug("made a runner ahead of need", "session", s.id, "runner", s.handle)
		m.places.made(s)
		return true, nil
	}
	if s != nil {
		m.abandon(s)
	}
	m.places.unmade(s != nil)
	return true, err
}

// calm waits until no creation and no run is in hand, within bounds, and tells
// whether to go on: a shutdown ends it at once.
func (m *Manager) calm() bool {
	for range refillPatience / refillPause {
		if !m.sleep(refillPause) {
			return false
		}
		if m.pressing.Load() == 0 {
			break
		}
	}
	return true
}

// poolChanges waits until the pool may need something, and tells whether to go
// on: a shutdown ends it at once.
func (m *Manager) poolChanges() bool {
	timer := time.NewTimer(poolCheck)
	defer timer.Stop()
	select {
	case <-m.places.changed:
	case <-timer.C:
	case <-m.stopping:
		return false
	}
	return true
}

// giveUp removes a runner of the pool.
func (m *Manager) giveUp(s *session) {
	if !s.runner.Connected() {
		m.log.Warn("a runner that was made ahead of need is gone", "session", s.id, "runner", s.handle)
	}
	m.abandon(s)
}

// emptyPool removes the pool: its runners serve nobody that the next process
// could know of.
func (m *Manager) emptyPool() {
	for _, s := range m.places.close() {
		m.abandon(s)
	}
}
