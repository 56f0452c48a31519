package session

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

var errNoPlace = errors.New("as many sessions as allowed")

// places counts runners against the session limit: those being made, those in
// use, those being removed and, ahead of need, those of the pool. The host's
// memory is planned by this number, so a runner counts until it is gone.
//
// A runner of the pool that is handed out takes its place along. Who waits will be
// served by a runner of the pool in the making or by a place that is being cleared:
// nobody waits while the pool holds a runner, and while a place is free no more wait
// than runners are in the making.
type places struct {
	stop <-chan struct{}
	// giveUp removes a runner of the pool that is dead or that nobody wants. It
	// takes over the place, which counts as left, and calls free.
	giveUp func(*session)
	// changed is told, where it is not told already, that the pool may have lost a
	// runner or may have room for another.
	changed chan struct{}

	mu      sync.Mutex
	max     int // zero or less lifts the limit
	used    int
	leaving int        // of used: given up, their runners are being removed
	making  int        // of used: runners of the pool in the making
	idle    []*session // of used: the pool, the oldest first
	size    int        // of the pool, at most
	waiters list.List  // of *waiter
}

// waiter is who waits for a runner of the pool or a place.
type waiter struct {
	granted chan struct{} // closed when it is served
	s       *session      // the runner, nil for a place without one
}

// take returns a runner of the pool or, where that is empty, a place for a new
// one: then s is nil. It waits for a runner of the pool that is in the making,
// unless that is spoken for. Else, where every place is in use, it fails at once
// with errNoPlace; where one is merely being cleared it waits for that, in order
// and at most for timeout.
func (p *places) take(ctx context.Context, timeout time.Duration) (s *session, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p.dropDead()
	p.mu.Lock()
	if len(p.idle) > 0 {
		s, p.idle = p.idle[0], p.idle[1:]
		p.mu.Unlock()
		p.tell()
		return s, nil
	}
	unserved := p.waiters.Len() - p.making // by what is in the making
	switch {
	case unserved < 0:
	case p.roomLocked():
		p.used++
		p.mu.Unlock()
		return nil, nil
	case p.used-p.leaving+unserved >= p.max:
		p.mu.Unlock()
		return nil, errNoPlace
	}
	w := &waiter{granted: make(chan struct{})}
	place := p.waiters.PushBack(w)
	p.mu.Unlock()

	err = wait(ctx, timeout, w.granted, nil, p.stop)
	for errors.Is(err, errQueueTimeout) && p.soon(place) {
		err = wait(ctx, max(timeout, time.Second), w.granted, nil, p.stop)
	}
	if err == nil {
		return w.s, nil
	}
	p.mu.Lock()
	select {
	case <-w.granted: // in the same moment
		p.mu.Unlock()
		if errors.Is(err, errQueueTimeout) {
			return w.s, nil
		}
		p.handBack(w.s)
	default:
		p.waiters.Remove(place)
		p.mu.Unlock()
	}
	return nil, err
}

// soon tells whether a waiter is one that a runner in the making is meant for.
// Making one takes as long as it takes, in the pool as elsewhere.
func (p *places) soon(place *list.Element) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for e := p.waiters.Front(); e != nil && n < p.making; e = e.Next() {
		if e == place {
			return true
		}
		n++
	}
	return false
}

// handBack undoes take.
func (p *places) handBack(s *session) {
	if s == nil {
		p.free(false)
		return
	}
	p.offer(s, 0)
}

// add takes a place without asking: the runner is there already.
func (p *places) add() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used++
}

// leave says that the place of a session's runner will come free soon.
func (p *places) leave(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaveLocked(s)
}

func (p *places) leaveLocked(s *session) {
	if !s.left {
		s.left = true
		p.leaving++
	}
}

// free gives a place back; left tells whether leave was called for it.
func (p *places) free(left bool) {
	p.mu.Lock()
	p.used--
	if left {
		p.leaving--
	}
	p.grantLocked()
	p.mu.Unlock()
	p.tell()
}

// grantLocked gives free places to those waiters that nothing in the making will
// serve.
func (p *places) grantLocked() {
	for p.roomLocked() && p.waiters.Len() > p.making {
		p.used++
		p.serveLocked(nil)
	}
}

func (p *places) roomLocked() bool { return p.max <= 0 || p.used < p.max }

// serveLocked serves the longest waiting.
func (p *places) serveLocked(s *session) {
	w := p.waiters.Remove(p.waiters.Front()).(*waiter)
	w.s = s
	close(w.granted)
}

// count returns how many places are taken, and how many of them by the pool.
func (p *places) count() (used, pooled int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used, len(p.idle)
}

// lacks tells whether the pool has room for another runner.
func (p *places) lacks() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lacksLocked()
}

func (p *places) lacksLocked() bool { return len(p.idle)+p.making < p.size && p.roomLocked() }

// reserve takes a place for a runner that is to be made for the pool, unless it
// lacks none. Either made or unmade must follow.
func (p *places) reserve() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.lacksLocked() {
		return false
	}
	p.used++
	p.making++
	return true
}

// made hands over a runner that a place was reserved for.
func (p *places) made(s *session) { p.offer(s, 1) }

// unmade says that a runner which a place was reserved for came to nothing. The
// place is free again, unless leave was called for it.
func (p *places) unmade(left bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.making--
	if !left {
		p.used--
	}
	p.grantLocked()
}

// offer gives a runner to who waits longest, or else to the pool; made counts it
// among those in the making until now. Where the pool is full it is given up.
func (p *places) offer(s *session, made int) {
	p.mu.Lock()
	p.making -= made
	unwanted := false
	switch {
	case p.waiters.Len() > 0:
		p.serveLocked(s)
	case len(p.idle)+p.making < p.size:
		p.idle = append(p.idle, s)
	default:
		unwanted = true
		p.leaveLocked(s)
	}
	p.mu.Unlock()
	if unwanted {
		p.giveUp(s)
	}
}

// dropDead gives up those runners of the pool that are known to be dead. It tells
// whether there were any, and whether one is left that has lived for a while.
func (p *places) dropDead() (some, settled bool) {
	var dead []*session
	p.mu.Lock()
	living := p.idle[:0:0]
	for _, s := range p.idle {
		if !s.runner.Connected() {
			p.leaveLocked(s)
			dead = append(dead, s)
			continue
		}
		living = append(living, s)
		settled = settled || time.Since(s.created) > lastRetry
	}
	p.idle = living
	p.mu.Unlock()
	for _, s := range dead {
		p.giveUp(s)
	}
	return len(dead) > 0, settled
}

// close empties the pool for good.
func (p *places) close() []*session {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := p.idle
	p.idle, p.size = nil, 0
	return idle
}

func (p *places) tell() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}
