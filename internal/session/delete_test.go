package session

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

func TestDeleteWaitsForTheRunInHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig(), nil)
		defer w.stop()
		id, ctx := w.create(CreateRequest{}), t.Context()
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { ok(t, w.run(ctx, id, "sleep 5s")) })
		synctest.Wait()
		wg.Go(func() { // was in the queue before the DELETE came
			want(t, w.run(ctx, id, "x"), fault.NotFound, DetailNotFound)
			took(t, start, time.Second)
		})
		time.Sleep(time.Second)
		for range 2 { // the second is as good as the first
			wg.Go(func() {
				ok(t, w.Delete(ctx, id, DeleteRequest{}))
				took(t, start, 5*time.Second)
			})
		}
		synctest.Wait()
		want(t, w.run(ctx, id, "x"), fault.NotFound, DetailNotFound)
		took(t, start, time.Second)
		wg.Wait()
		want(t, w.run(ctx, id, "x"), fault.NotFound, DetailNotFound)
		ok(t, w.Delete(ctx, id, DeleteRequest{}))
		synctest.Wait()
		if n := w.engine.count(); n != 0 {
			t.Errorf("%d runners left", n)
		}
	})
}

func TestDeleteThatGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig(), nil)
		defer w.stop()
		id, ctx := w.create(CreateRequest{}), t.Context()
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { ok(t, w.run(ctx, id, "sleep 14s")) })
		synctest.Wait()
		wg.Go(func() {
			want(t, w.Delete(ctx, id, DeleteRequest{}), fault.Busy, DetailBusy)
			took(t, start, 10*time.Second)
		})
		time.Sleep(2 * time.Second)
		want(t, w.ResetInputs(ctx, id), fault.NotFound, DetailNotFound)
		time.Sleep(9 * time.Second)
		ok(t, w.run(ctx, id, "x"))
		took(t, start, 14*time.Second)

		// A client that goes away while it waits gives up as well.
		gone, cancel := context.WithCancel(ctx)
		wg.Go(func() { ok(t, w.run(ctx, id, "sleep 5s")) })
		synctest.Wait()
		wg.Go(func() {
			if err := w.Delete(gone, id, DeleteRequest{}); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		ok(t, w.run(ctx, id, "x"))
		wg.Wait()
		ok(t, w.Delete(ctx, id, DeleteRequest{}))
	})
}

// TestDeleteTakesOverFromOneThatGaveUp: the second DELETE must not answer 200
// for a session that the first one left alive.
func TestDeleteTakesOverFromOneThatGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig(), nil)
		defer w.stop()
		id, ctx := w.create(CreateRequest{}), t.Context()
		var wg sync.WaitGroup
		wg.Go(func() { ok(t, w.run(ctx, id, "sleep 14s")) })
		synctest.Wait()
		wg.Go(func() { want(t, w.Delete(ctx, id, DeleteRequest{}), fault.Busy, DetailBusy) })
		time.Sleep(5 * time.Second)
		ok(t, w.Delete(ctx, id, DeleteRequest{}))
		want(t, w.ResetInputs(ctx, id), fault.NotFound, DetailNotFound)
		wg.Wait()
	})
}

func TestDeleteEndsTheWaitForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.MaxExecs = 1
		w := newWorld(t, cfg, nil)
		defer w.stop()
		a, b, ctx := w.create(CreateRequest{}), w.create(CreateRequest{}), t.Context()
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { ok(t, w.run(ctx, a, "sleep 5s")) })
		synctest.Wait()
		wg.Go(func() { want(t, w.run(ctx, b, "x"), fault.NotFound, DetailNotFound) })
		synctest.Wait()
		ok(t, w.Delete(ctx, b, DeleteRequest{}))
		took(t, start, 0)
		wg.Wait()
	})
}

func TestDeleteWhileTheRunnerVanishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig(), nil)
		defer w.stop()
		id, ctx := w.create(CreateRequest{}), t.Context()
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { want(t, w.run(ctx, id, "vanish 3s"), fault.NotFound, DetailNotFound) })
		synctest.Wait()
		wg.Go(func() {
			ok(t, w.Delete(ctx, id, DeleteRequest{}))
			took(t, start, 3*time.Second)
		})
		wg.Wait()
		synctest.Wait()
		if w.used() != 0 {
			t.Error("its place is still taken")
		}
	})
}

func TestDeleteAnswersBeforeTheRunnerIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		e.destroyDelay = 4 * time.Second
		cfg := testConfig()
		cfg.MaxSessions = 2
		w := newWorld(t, cfg, e)
		defer w.stop()
		a, _, ctx := w.create(CreateRequest{}), w.create(CreateRequest{}), t.Context()
		_, err := w.Create(ctx, CreateRequest{})
		want(t, err, fault.Busy, DetailMaxSessions)

		start := time.Now()
		ok(t, w.Delete(ctx, a, DeleteRequest{}))
		took(t, start, 0)
		var wg sync.WaitGroup
		wg.Go(func() {
			w.create(CreateRequest{}) // waits for the place
			took(t, start, 4*time.Second)
		})
		synctest.Wait()
		_, err = w.Create(ctx, CreateRequest{}) // there is no second place to wait for
		want(t, err, fault.Busy, DetailMaxSessions)
		took(t, start, 0)
		wg.Wait()
		if e.peak > 2 {
			t.Errorf("%d runners at once", e.peak)
		}
	})
}

func TestRemovalIsTriedUntilItSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.MaxSessions = 1
		w := newWorld(t, cfg, nil)
		defer w.stop()
		id, ctx := w.create(CreateRequest{}), t.Context()
		w.engine.setFail("destroy", errors.New("device busy"))
		ok(t, w.Delete(ctx, id, DeleteRequest{}))
		_, err := w.Create(ctx, CreateRequest{})
		want(t, err, fault.Busy, DetailMaxSessions) // waited, in vain
		time.Sleep(10 * time.Minute)
		w.engine.setFail("destroy", nil)
		time.Sleep(lastRetry)
		synctest.Wait()
		if n := w.engine.count(); n != 0 {
			t.Errorf("%d runners left", n)
		}
		w.create(CreateRequest{})
		if !strings.Contains(w.logs.String(), "device busy") {
			t.Error("nothing in the log")
		}
	})
}
