package session

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

func TestShutdownFinishesRunsInHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.MaxExecs = 1
		w := newWorld(t, cfg, nil)
		a, b, ctx := w.create(CreateRequest{}), w.create(CreateRequest{}), t.Context()
		var wg sync.WaitGroup
		wg.Go(func() { ok(t, w.run(ctx, a, "sleep 20s")) })
		synctest.Wait()
		start := time.Now()
		waiting := []func() error{
			func() error { return w.run(ctx, a, "x") },                // for the lock
			func() error { return w.run(ctx, b, "x") },                // for the slot
			func() error { return w.Delete(ctx, a, DeleteRequest{}) }, // for the run in hand
		}
		for _, call := range waiting {
			wg.Go(func() {
				if err := call(); !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.NotFound) {
					t.Error(err)
				}
				took(t, start, 0)
			})
			synctest.Wait()
		}
		bound, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		wg.Go(func() {
			time.Sleep(time.Second)
			_, err := w.Create(ctx, CreateRequest{})
			want(t, err, fault.Unavailable, detailStopping)
			want(t, w.run(ctx, b, "x"), fault.Unavailable, detailStopping)
		})
		// Waiting calls end at once, the run in hand in its own time.
		ok(t, w.Shutdown(bound))
		took(t, start, 20*time.Second)
		wg.Wait()
		if w.engine.count() != 2 {
			t.Errorf("%d runners left alive, want 2", w.engine.count())
		}
		for _, s := range w.sessions {
			if !s.runner.(*fakeRunner).closed.Load() {
				t.Error("a stream is still open")
			}
		}
		// The next process goes on with both.
		w.start(cfg)
		defer w.stop()
		ok(t, w.run(ctx, a, "x"))
		ok(t, w.run(ctx, b, "x"))
	})
}

func TestShutdownRunsOutOfPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig(), nil)
		id := w.create(CreateRequest{})
		var wg sync.WaitGroup
		wg.Go(func() {
			want(t, w.run(t.Context(), id, "sleep 10m"), fault.Unavailable, detailStopping)
		})
		synctest.Wait()
		start := time.Now()
		bound, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		ok(t, w.Shutdown(bound))
		took(t, start, 30*time.Second)
		wg.Wait()
		if w.engine.count() != 1 {
			t.Error("the runner is gone")
		}
	})
}

func TestShutdownLeavesFailedRemovalsToTheNextProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig(), nil)
		id := w.create(CreateRequest{})
		w.engine.setFail("destroy", context.DeadlineExceeded)
		ok(t, w.Delete(t.Context(), id, DeleteRequest{}))
		time.Sleep(time.Hour)
		start := time.Now()
		w.stop()
		took(t, start, 0)
		if !strings.Contains(w.logs.String(), "cannot remove a runner") {
			t.Error("nothing in the log")
		}
	})
}

func TestShutdownWithoutStart(t *testing.T) {
	m := New(testConfig(), Deps{Driver: newEngine(t)})
	ok(t, m.Shutdown(t.Context()))
	ok(t, m.Shutdown(t.Context()))
	want(t, m.Start(t.Context()), fault.Unavailable, detailStopping)
}
