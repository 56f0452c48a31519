package session

import (
	"context"
	"time"
)

const (
	// destroyTimeout bounds one try to remove a runner.
	destroyTimeout = 2 * time.Minute
	// lastDestroy bounds it once a shutdown has begun: the next process removes
	// what is left.
	lastDestroy = 5 * time.Second
	// firstRetry and lastRetry bound the pause before something is tried again
	// with an engine or a store that failed.
	firstRetry = 500 * time.Millisecond
	lastRetry  = time.Minute
)

// remove removes the runner of a buried session, however often that must be
// tried, and gives its place back. A shutdown ends the trying; the next process
// goes on with it.
func (m *Manager) remove(s *session) {
	m.closeStream(s)
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		err := m.destroy(s.handle)
		if err == nil {
			break
		}
		m.log.Warn("cannot remove a runner; trying again", "session", s.id, "runner", s.handle, "in", pause, "err", err)
		if !m.sleep(pause) {
			return
		}
	}
	m.forget(s)
	m.mu.Lock()
	delete(m.sessions, s.id)
	m.mu.Unlock()
	m.places.free(true)
}

// destroy removes a runner whether or not somebody still waits for it.
func (m *Manager) destroy(handle string) error {
	ctx, cancel := context.WithTimeout(m.hard, destroyTimeout)
	defer cancel()
	unhook := context.AfterFunc(m.soft, func() {
		select {
		case <-time.After(lastDestroy):
			cancel()
		case <-ctx.Done():
		}
	})
	defer unhook()
	return m.deps.Driver.Destroy(ctx, handle)
}

// sleep pauses for d and tells whether to go on: a shutdown ends it at once.
func (m *Manager) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-m.stopping:
		return false
	}
}
