package session

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// Reasons for a wait to end without what was waited for.
var (
	errQueueTimeout = errors.New("waited for the whole queue timeout")
	errAborted      = errors.New("what was waited for is going away")
	errStopping     = errors.New("service is shutting down")
)

// gate hands out a number of slots strictly in the order of asking. With one
// slot it is a lock.
type gate struct {
	stop <-chan struct{} // closed when nobody shall wait any longer

	mu        sync.Mutex
	unlimited bool
	free      int
	waiters   list.List // of chan struct{}, closed when the slot is theirs
}

// newGate returns a gate of n slots; zero or less lifts the limit.
func newGate(n int, stop <-chan struct{}) *gate {
	return &gate{stop: stop, unlimited: n <= 0, free: n}
}

// acquire waits for a slot, at most for timeout. It fails with errQueueTimeout,
// with errAborted once abort is closed, with errStopping, or with the cause of
// ctx. A nil abort never closes. A caller that fails holds nothing.
func (g *gate) acquire(ctx context.Context, timeout time.Duration, abort <-chan struct{}) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if g.unlimited {
		return nil
	}
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		return nil
	}
	granted := make(chan struct{})
	place := g.waiters.PushBack(granted)
	g.mu.Unlock()

	err := wait(ctx, timeout, granted, abort, g.stop)
	if err == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-granted: // in the same moment: it is ours, so pass it on
		g.releaseLocked()
	default:
		g.waiters.Remove(place)
	}
	return err
}

// tryAcquire takes a slot if one is free.
func (g *gate) tryAcquire() bool {
	if g.unlimited {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.free == 0 {
		return false
	}
	g.free--
	return true
}

// busy tells whether no slot is free.
func (g *gate) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.unlimited && g.free == 0
}

// release gives a slot back, to the longest waiting caller if there is one.
func (g *gate) release() {
	if g.unlimited {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.releaseLocked()
}

func (g *gate) releaseLocked() {
	if first := g.waiters.Front(); first != nil {
		close(g.waiters.Remove(first).(chan struct{}))
		return
	}
	g.free++
}

// noTimeout is a wait that only its context ends.
const noTimeout time.Duration = -1

// wait returns nil once done is closed, and else why it gave up.
func wait(ctx context.Context, timeout time.Duration, done, abort, stop <-chan struct{}) error {
	var expired <-chan time.Time
	if timeout != noTimeout {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-abort:
		return errAborted
	case <-stop:
		return errStopping
	case <-expired:
		return errQueueTimeout
	}
}
