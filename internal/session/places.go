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
// use, those being removed and, ahead of need, those of a pool. The host's
// memory is planned by this number, so a runner counts until it is gone.
type places struct {
	stop <-chan struct{}

	mu      sync.Mutex
	max     int // zero or less lifts the limit
	used    int
	leaving int       // of used: given up, their runners are being removed
	waiters list.List // of chan struct{}, closed when the place is theirs
}

// take waits for a place. Where every place is in use it fails at once with
// errNoPlace; where one is merely being cleared it waits for that, in order and
// at most for timeout.
func (p *places) take(ctx context.Context, timeout time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.mu.Lock()
	switch {
	case p.max <= 0 || p.used < p.max:
		p.used++
		p.mu.Unlock()
		return nil
	case p.used-p.leaving+p.waiters.Len() >= p.max:
		p.mu.Unlock()
		return errNoPlace
	}
	granted := make(chan struct{})
	place := p.waiters.PushBack(granted)
	p.mu.Unlock()

	err := wait(ctx, timeout, granted, nil, p.stop)
	if err == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-granted:
		p.used--
		p.grantLocked()
	default:
		p.waiters.Remove(place)
	}
	return err
}

// add takes a place without asking: the runner is there already.
func (p *places) add() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used++
}

// leave says that a taken place will come free soon.
func (p *places) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaving++
}

// free gives a place back; left tells whether leave was called for it.
func (p *places) free(left bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used--
	if left {
		p.leaving--
	}
	p.grantLocked()
}

func (p *places) grantLocked() {
	for p.used < p.max && p.waiters.Len() > 0 {
		p.used++
		close(p.waiters.Remove(p.waiters.Front()).(chan struct{}))
	}
}

// count returns how many places are taken.
func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}
