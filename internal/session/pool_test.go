package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

// In a pool world making a runner takes createTime and removing one removeTime.
const (
	createTime = 4 * time.Second
	removeTime = time.Second
	// fillTime is more than it takes until one runner more is in the pool of a
	// service that nobody uses.
	fillTime = createTime + time.Second
)

// inPool calls test in a bubble with a world that has a pool, filled, and records
// that are complete.
func inPool(t *testing.T, size, limit int, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		e.createDelay, e.openDelay, e.destroyDelay = createTime/2, createTime/2, removeTime
		cfg := testConfig()
		cfg.PoolSize, cfg.MaxSessions = size, limit
		w := newWorld(t, cfg, e)
		time.Sleep(time.Duration(max(0, w.cfg.PoolSize)) * fillTime)
		test(t, w)
		w.stop()
	})
}

// holds fails the test unless there are so many sessions and runners in the pool.
func (w *world) poolHolds(sessions, pooled int) {
	w.t.Helper()
	synctest.Wait()
	s := w.Stats()
	if s.Sessions != sessions || s.Pooled != pooled {
		w.t.Errorf("%d sessions and %d runners in the pool, want %d and %d", s.Sessions, s.Pooled, sessions, pooled)
	}
	w.used()
}

// at fails the test unless a session is made within d, to the moment.
func (w *world) at(d time.Duration, req CreateRequest) string {
	w.t.Helper()
	start := time.Now()
	id := w.create(req)
	took(w.t, start, d)
	return id
}

func TestPoolServesCreations(t *testing.T) {
	inPool(t, 2, 16, func(t *testing.T, w *world) {
		w.poolHolds(0, 2)
		time.Sleep(48 * time.Hour) // a runner of the pool is never too old
		saves := w.store.saves.Load()
		a := w.at(0, CreateRequest{})
		if n := w.store.saves.Load() - saves; n != 1 {
			t.Errorf("%d writes", n)
		}
		b := w.at(0, CreateRequest{})
		w.poolHolds(2, 0)
		for _, id := range []string{a, b} {
			ok(t, w.run(t.Context(), id, "x"))
			if rec, found := w.store.get(id); !found || rec.Phase != PhaseLive || rec.Handle != w.engine.bySession(id).ID {
				t.Errorf("record %+v", rec)
			}
		}
		time.Sleep(2 * fillTime)
		w.poolHolds(2, 2)
	})
}

// TestPooledSessionBeginsAtItsClaim: what a client asked for holds from then on.
func TestPooledSessionBeginsAtItsClaim(t *testing.T) {
	inPool(t, 1, 16, func(t *testing.T, w *world) {
		id := w.create(conversation("k"))
		w.put(id, "x", "X")
		ok(t, w.Delete(t.Context(), id, DeleteRequest{}))
		time.Sleep(time.Hour)

		req := conversation("k")
		req.IdleTTL = seconds(100)
		id = w.at(0, req)
		if rec, _ := w.store.get(id); !rec.Created.Equal(time.Now()) || !rec.LastUse.Equal(time.Now()) || rec.IdleTTL != 100*time.Second || rec.ArchiveKey != "k" {
			t.Errorf("record %+v", rec)
		}
		time.Sleep(99 * time.Second)
		if got := w.files(id); got != "x=X" {
			t.Errorf("files %q", got)
		}
		w.put(id, "y", "Y")
		time.Sleep(101 * time.Second) // reaped, and archived
		want(t, w.run(t.Context(), id, "x"), fault.NotFound, DetailNotFound)
		if got := w.files(w.at(0, conversation("k"))); got != "x=X y=Y" {
			t.Errorf("files %q", got)
		}
	})
}

func TestNobodyKnowsTheRunnersOfThePool(t *testing.T) {
	inPool(t, 1, 16, func(t *testing.T, w *world) {
		id := w.engine.get(w.pooled()[0]).SessionID
		want(t, w.run(t.Context(), id, "x"), fault.NotFound, DetailNotFound)
		ok(t, w.Delete(t.Context(), id, DeleteRequest{}))
		time.Sleep(time.Hour)
		w.poolHolds(0, 1)
		if w.engine.made() != 1 || len(w.store.copy()) != 0 {
			t.Errorf("%d runners were made, records %v", w.engine.made(), w.store.copy())
		}
	})
}

func TestNoPool(t *testing.T) {
	inPool(t, 0, 16, func(t *testing.T, w *world) {
		time.Sleep(time.Hour)
		w.at(createTime, CreateRequest{})
		time.Sleep(time.Minute)
		if w.engine.made() != 1 {
			t.Errorf("%d runners were made", w.engine.made())
		}
	})
}

// TestPoolWithinTheLimit: pool and sessions never exceed it, and a creation finds
// no place taken by the pool alone.
func TestPoolWithinTheLimit(t *testing.T) {
	inPool(t, 100, 3, func(t *testing.T, w *world) {
		w.poolHolds(0, 3)
		var ids []string
		for range 3 {
			ids = append(ids, w.at(0, CreateRequest{}))
			time.Sleep(time.Minute)
		}
		_, err := w.Create(t.Context(), CreateRequest{})
		want(t, err, fault.Busy, DetailMaxSessions)
		ok(t, w.Delete(t.Context(), ids[0], DeleteRequest{}))
		ids = append(ids[1:], w.at(removeTime+createTime, CreateRequest{})) // waits for the place
		ok(t, w.Delete(t.Context(), ids[0], DeleteRequest{}))
		time.Sleep(removeTime + fillTime)
		w.poolHolds(2, 1)
		w.at(0, CreateRequest{})
		if w.engine.peak != 3 {
			t.Errorf("%d runners at once", w.engine.peak)
		}
	})
}

func TestPoolWithoutALimit(t *testing.T) {
	inPool(t, 3, 0, func(t *testing.T, w *world) {
		w.poolHolds(0, 3)
		for range 3 {
			w.at(0, CreateRequest{})
		}
		// The one in the making serves one more, before a new one could.
		time.Sleep(refillPause)
		synctest.Wait()
		time.Sleep(createTime - time.Second)
		w.at(time.Second, CreateRequest{})
		time.Sleep(3 * fillTime)
		w.poolHolds(4, 3)
	})
}

// TestCreationWaitsForTheOneInTheMaking rather than being refused for it, however
// short the queue timeout.
func TestCreationWaitsForTheOneInTheMaking(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Millisecond, 10 * time.Second} {
		inPool(t, 1, 1, func(t *testing.T, w *world) {
			w.cfg.QueueTimeout = timeout
			ok(t, w.Delete(t.Context(), w.at(0, CreateRequest{}), DeleteRequest{}))
			time.Sleep(removeTime + refillPause + time.Millisecond)
			w.poolHolds(0, 0)
			var wg sync.WaitGroup
			wg.Go(func() { w.at(createTime-time.Millisecond, CreateRequest{}) })
			synctest.Wait()
			// It is spoken for.
			_, err := w.Create(t.Context(), CreateRequest{})
			want(t, err, fault.Busy, DetailMaxSessions)
			wg.Wait()
			time.Sleep(time.Minute)
			w.poolHolds(1, 0)
		})
	}
}

// TestTheOneInTheMakingFails: who waits for it makes a runner in its place.
func TestTheOneInTheMakingFails(t *testing.T) {
	for _, step := range []string{"start", "open"} {
		inPool(t, 1, 1, func(t *testing.T, w *world) {
			ok(t, w.Delete(t.Context(), w.at(0, CreateRequest{}), DeleteRequest{}))
			time.Sleep(removeTime + refillPause + time.Millisecond)
			w.engine.setFail(step, errors.New("no"))
			var wg sync.WaitGroup
			wg.Go(func() {
				d := createTime/2 - time.Millisecond + createTime
				if step == "open" {
					d += removeTime // of the one that was made
				}
				w.at(d, CreateRequest{})
			})
			time.Sleep(createTime/2 + time.Millisecond)
			w.engine.setFail(step, nil)
			wg.Wait()
			time.Sleep(time.Minute + w.cfg.SweepInterval)
			w.poolHolds(1, 0)
			if n := w.engine.count(); n != 1 {
				t.Errorf("%d runners", n)
			}
		})
	}
}

// TestWaitersForTheOneInTheMakingGoAway: the next of them has it, or the pool.
func TestWaitersForTheOneInTheMakingGoAway(t *testing.T) {
	inPool(t, 1, 2, func(t *testing.T, w *world) {
		first := w.at(0, CreateRequest{})
		time.Sleep(refillPause + time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := w.Create(ctx, CreateRequest{}); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
		w.engine.set(func() { w.engine.destroyDelay = time.Minute })
		ok(t, w.Delete(t.Context(), first, DeleteRequest{}))
		var second string
		wg.Go(func() { second = w.at(createTime-time.Millisecond, CreateRequest{}) }) // queues for the place that is being cleared
		synctest.Wait()
		cancel()
		wg.Wait()
		w.poolHolds(1, 0)
		time.Sleep(2 * time.Minute)
		w.poolHolds(1, 1)

		ok(t, w.Delete(t.Context(), second, DeleteRequest{}))
		time.Sleep(time.Minute)
		w.create(CreateRequest{})
		time.Sleep(refillPause + time.Millisecond)
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := w.Create(ctx, CreateRequest{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(fillTime)
		w.poolHolds(1, 1)
		if n := w.engine.made(); n != 4 {
			t.Errorf("%d runners were made", n)
		}
		w.engine.set(func() { w.engine.destroyDelay = 0 })
	})
}

// made returns how many runners were made.
func (e *engine) made() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seq
}

// pooled returns the handles of the pool.
func (w *world) pooled() (handles []string) {
	w.places.mu.Lock()
	defer w.places.mu.Unlock()
	for _, s := range w.places.idle {
		handles = append(handles, s.handle)
	}
	return handles
}

// kill lets every runner end.
func (e *engine) kill() {
	e.set(func() {
		for _, c := range e.containers {
			c.Running = false
		}
	})
}

// TestRemakeFromThePool: an archive that takes its runner down costs another of
// the pool, and where that is empty the place of the first is enough.
func TestRemakeFromThePool(t *testing.T) {
	for _, size := range []int{1, 2} {
		inPool(t, size, size, func(t *testing.T, w *world) {
			w.bucket.store("p/workspaces/k.tgz", "bomb")
			start := time.Now()
			id := w.create(conversation("k"))
			if size == 1 {
				took(t, start, removeTime+createTime)
			} else {
				took(t, start, 0)
			}
			ok(t, w.run(t.Context(), id, "x"))
			time.Sleep(2 * fillTime)
			w.poolHolds(1, size-1)
		})
	}
}

// TestFailedClaim: a session whose record cannot be written is none, and its
// runner goes.
func TestFailedClaim(t *testing.T) {
	inPool(t, 1, 1, func(t *testing.T, w *world) {
		w.store.mu.Lock()
		w.store.fail = errors.New("disk full")
		w.store.mu.Unlock()
		_, err := w.Create(t.Context(), CreateRequest{})
		want(t, err, fault.Internal, DetailRunnerFailure)
		w.store.mu.Lock()
		w.store.fail = nil
		w.store.mu.Unlock()
		time.Sleep(removeTime + fillTime)
		w.poolHolds(0, 1)
		if n := w.engine.count(); n != 1 || w.engine.made() != 2 {
			t.Errorf("%d runners of %d", n, w.engine.made())
		}
	})
}

// TestAdoptedSessionsCountFirst: the pool has what they leave, and does not begin
// before they are known.
func TestAdoptedSessionsCountFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		var ids []string
		for i := range 2 {
			ids = append(ids, strings.Repeat(fmt.Sprint(i), 32))
			e.put(ids[i], true, false)
		}
		e.fail["list"] = errors.New("still starting")
		cfg := testConfig()
		cfg.MaxSessions, cfg.PoolSize = 3, 2
		w := newWorld(t, cfg, e)
		defer w.stop()
		time.Sleep(time.Hour)
		w.poolHolds(0, 0)
		e.setFail("list", nil)
		time.Sleep(time.Hour / 4)
		w.poolHolds(2, 1)
		for _, id := range ids {
			ok(t, w.run(t.Context(), id, "x"))
		}
		if e.peak != 3 {
			t.Errorf("%d runners at once", e.peak)
		}
	})
}

// TestPoolAcrossProcesses: what one leaves of its pool, however it ended, the
// next removes, and sessions that were claimed go on.
func TestPoolAcrossProcesses(t *testing.T) {
	for _, killed := range []bool{false, true} {
		inPool(t, 2, 16, func(t *testing.T, w *world) {
			id := w.create(CreateRequest{})
			time.Sleep(fillTime)
			old := w.pooled()
			if killed {
				w.engine.setFail("destroy", errDead)
				w.die()
				w.engine.setFail("destroy", nil)
			} else {
				w.stop()
			}
			if n := w.engine.count(); !killed && n != 1 || killed && n != 3 {
				t.Errorf("%d runners between the processes, killed %v", n, killed)
			}
			w.start(w.cfg)
			time.Sleep(2 * fillTime)
			w.poolHolds(1, 2)
			ok(t, w.run(t.Context(), id, "x"))
			for _, handle := range old {
				if w.engine.get(handle) != nil {
					t.Error("a runner of the last process's pool is still there")
				}
			}
		})
	}
}

// TestPoolOfAProcessWhoseRecordsAreLost: its runners cannot be told from sessions.
// They go when they were idle for long enough.
func TestPoolOfAProcessWhoseRecordsAreLost(t *testing.T) {
	inPool(t, 1, 16, func(t *testing.T, w *world) {
		w.engine.setFail("destroy", errDead)
		w.die()
		w.engine.setFail("destroy", nil)
		w.store.complete = false
		w.start(w.cfg)
		w.poolHolds(1, 0)
		time.Sleep(w.cfg.IdleTTL + time.Minute)
		w.poolHolds(0, 1)
		if n := w.engine.count(); n != 1 {
			t.Errorf("%d runners", n)
		}
	})
}

// TestPoolRaces lets creations, refilling, dying runners and the shutdown meet,
// in real time. Nobody is refused: there are as many clients as places.
func TestPoolRaces(t *testing.T) {
	for range 10 {
		e := newEngine(t)
		cfg := testConfig()
		cfg.PoolSize, cfg.MaxSessions = 3, 4
		w := newWorld(t, cfg, e)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					id, err := w.Create(t.Context(), CreateRequest{})
					if err == nil {
						err = w.Delete(t.Context(), id, DeleteRequest{})
					}
					if fault.Is(err, fault.Unavailable) {
						return
					}
					if err != nil {
						t.Error(err)
					}
					time.Sleep(time.Duration(rand.IntN(120)) * time.Millisecond)
				}
			})
		}
		for range 50 {
			e.set(func() {
				for _, c := range e.containers {
					c.Running = c.Running && rand.IntN(4) > 0
				}
			})
			time.Sleep(8 * time.Millisecond)
		}
		w.stop()
		wg.Wait()
		if e.peak > cfg.MaxSessions {
			t.Errorf("%d runners at once", e.peak)
		}
		if n := e.count(); n != w.Stats().Sessions {
			t.Errorf("%d runners of %d sessions", n, w.Stats().Sessions)
		}
	}
}
