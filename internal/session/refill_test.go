package session

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

// TestDeadInThePool: a creation passes over them, and in time they are replaced.
func TestDeadInThePool(t *testing.T) {
	inPool(t, 2, 2, func(t *testing.T, w *world) {
		w.engine.kill()
		w.at(removeTime+createTime, CreateRequest{}) // all places are taken by dead ones
		time.Sleep(2 * fillTime)
		w.poolHolds(1, 1)
		if n := w.engine.count(); n != 2 {
			t.Errorf("%d runners", n)
		}
	})
	inPool(t, 2, 5, func(t *testing.T, w *world) {
		first := w.engine.get(w.pooled()[0])
		w.engine.set(func() { first.Running = false })
		if id := w.at(0, CreateRequest{}); id == first.SessionID {
			t.Error("claimed a dead runner")
		}
		time.Sleep(2 * fillTime)
		w.poolHolds(1, 2)
		second := w.pooled()[1]
		w.engine.set(func() { delete(w.engine.containers, second) })
		time.Sleep(poolCheck + firstRetry + fillTime + time.Millisecond)
		w.poolHolds(1, 2)
		if n := w.engine.count(); n != 3 {
			t.Errorf("%d runners", n)
		}
	})
}

// TestRunnersThatKeepDying are replaced less and less often.
func TestRunnersThatKeepDying(t *testing.T) {
	for _, c := range []struct{ size, limit int }{{1, 16}, {3, 16}, {3, 3}} {
		inPool(t, c.size, c.limit, func(t *testing.T, w *world) {
			before := w.engine.made()
			for range 3600 {
				w.engine.kill()
				time.Sleep(time.Second)
			}
			if n := w.engine.made() - before; n < 40 || n > 80*c.size {
				t.Errorf("%d runners were made in an hour, pool of %d", n, c.size)
			}
			time.Sleep(2 * time.Minute)
			w.poolHolds(0, c.size)
			time.Sleep(2 * time.Minute)
			w.engine.kill()
			time.Sleep(poolCheck + firstRetry + removeTime + time.Duration(c.size)*fillTime)
			w.poolHolds(0, c.size)
		})
	}
}

// TestPoolWhileTheEngineFails: it is tried again with growing pauses, said once
// and said again when it is over.
func TestPoolWhileTheEngineFails(t *testing.T) {
	for _, size := range []int{1, 2} { // the second lives on
		inPool(t, size, 16, func(t *testing.T, w *world) {
			tries := 0
			w.engine.set(func() {
				w.engine.step = func(what string) error {
					if what == "create" {
						tries++
					}
					return nil
				}
			})
			for range 3 {
				w.create(CreateRequest{})
				w.engine.setFail("create", errors.New("no such image"))
				w.engine.set(func() { tries = 0 })
				time.Sleep(time.Hour)
				w.engine.set(func() {
					if tries < 55 || tries > 70 {
						t.Errorf("%d tries in an hour", tries)
					}
				})
				w.engine.setFail("create", nil)
				time.Sleep(lastRetry + fillTime)
			}
			w.poolHolds(0, size)
			log := w.logs.String()
			for _, says := range []string{"cannot make a runner ahead of need", "runners are made ahead of need again"} {
				if n := strings.Count(log, says); n != 3 {
					t.Errorf("the log says %d times %q", n, says)
				}
			}
		})
	}
}

// TestRefillingHoldsOff for creations and runs in hand, but not for ever.
func TestRefillingHoldsOff(t *testing.T) {
	inPool(t, 1, 16, func(t *testing.T, w *world) {
		id := w.create(CreateRequest{})
		var wg sync.WaitGroup
		wg.Go(func() { ok(t, w.run(t.Context(), id, "sleep 1s")) })
		time.Sleep(time.Second - refillPause/2)
		if w.engine.made() != 1 {
			t.Error("a runner is made while a program is running")
		}
		time.Sleep(2 * refillPause)
		synctest.Wait()
		if w.engine.made() != 2 {
			t.Error("no runner is made while nobody waits")
		}
		wg.Wait()
		time.Sleep(fillTime)

		w.create(CreateRequest{})
		wg.Go(func() { ok(t, w.run(t.Context(), id, "sleep 10m")) })
		time.Sleep(refillPatience - refillPause/2)
		if w.engine.made() != 2 {
			t.Error("a runner is made while a program is running")
		}
		time.Sleep(refillPause)
		if w.engine.made() != 3 {
			t.Error("a long run keeps the pool from being filled")
		}
		wg.Wait()
	})
}

// TestCreationsGoFirst: the pool takes no slot that a creation could have.
func TestCreationsGoFirst(t *testing.T) {
	inPool(t, 1, 16, func(t *testing.T, w *world) {
		w.create(CreateRequest{})
		var wg sync.WaitGroup
		start := time.Now()
		for range 6 {
			wg.Go(func() { w.create(CreateRequest{}) })
		}
		wg.Wait()
		took(t, start, 3*createTime) // two at a time
		w.poolHolds(7, 0)
		time.Sleep(fillTime)
		w.poolHolds(7, 1)
	})
}

// TestShutdownEmptiesThePool in no more time than that takes, whatever it is just
// doing.
func TestShutdownEmptiesThePool(t *testing.T) {
	for name, c := range map[string]struct {
		at   time.Duration // since a claim
		last time.Duration // what it takes
	}{
		"at once":               {0, removeTime},
		"before it is refilled": {refillPause / 2, removeTime},
		"while one is created":  {refillPause + time.Second, removeTime},
		"while one is opened":   {refillPause + createTime - time.Second, removeTime},
		"when it is filled":     {fillTime, removeTime},
	} {
		t.Run(name, func(t *testing.T) {
			inPool(t, 2, 3, func(t *testing.T, w *world) {
				w.create(CreateRequest{})
				time.Sleep(c.at)
				start := time.Now()
				w.stop()
				took(t, start, c.last)
				if n := w.engine.count(); n != 1 {
					t.Errorf("%d runners left", n)
				}
			})
		})
	}
	t.Run("while one is waited for", func(t *testing.T) {
		inPool(t, 1, 1, func(t *testing.T, w *world) {
			ok(t, w.Delete(t.Context(), w.create(CreateRequest{}), DeleteRequest{}))
			time.Sleep(removeTime + refillPause + time.Second)
			var wg sync.WaitGroup
			wg.Go(func() {
				_, err := w.Create(t.Context(), CreateRequest{})
				want(t, err, fault.Unavailable, detailStopping)
			})
			synctest.Wait()
			w.stop()
			wg.Wait()
			if n := w.engine.count(); n != 0 {
				t.Errorf("%d runners left", n)
			}
		})
	})
	t.Run("of an engine that hangs", func(t *testing.T) {
		inPool(t, 2, 3, func(t *testing.T, w *world) {
			w.engine.set(func() { w.engine.destroyDelay = time.Hour })
			start := time.Now()
			w.stop()
			took(t, start, lastDestroy)
			w.engine.set(func() { w.engine.destroyDelay = 0 })
			w.start(w.cfg) // removes what is left
			time.Sleep(2 * fillTime)
			if n := w.engine.count(); n != 2 {
				t.Errorf("%d runners", n)
			}
		})
	})
}
