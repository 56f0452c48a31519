package session

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

func TestClampTTL(t *testing.T) {
	m := &Manager{cfg: Config{IdleTTL: 30 * time.Minute, IdleTTLCap: time.Hour}}
	for _, c := range []struct {
		seconds int64
		want    time.Duration
	}{
		{0, 30 * time.Minute}, {-1, time.Second}, {math.MinInt64, time.Second}, {1, time.Second}, {3599, 3599 * time.Second},
		{3600, time.Hour}, {3601, time.Hour}, {math.MaxInt64, time.Hour}, {math.MaxInt64/int64(time.Second) + 1, time.Hour},
	} {
		if got := m.clampTTL(&c.seconds); got != c.want {
			t.Errorf("%d: %v, want %v", c.seconds, got, c.want)
		}
	}
	if got := m.clampTTL(nil); got != 30*time.Minute {
		t.Errorf("nil: %v", got)
	}
	m.cfg.IdleTTL = 2 * time.Hour
	if got := m.clampTTL(nil); got != time.Hour {
		t.Errorf("a default above the cap: %v", got)
	}
}

func TestCreateQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		e.createDelay, e.openDelay = 4*time.Second, 2*time.Second
		cfg := testConfig()
		cfg.MaxCreates = 1
		w := newWorld(t, cfg, e)
		defer w.stop()
		start := time.Now()
		var full, made atomic.Int32
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				_, err := w.Create(t.Context(), CreateRequest{})
				if err == nil {
					made.Add(1)
					return
				}
				want(t, err, fault.Busy, DetailCreateQueue)
				took(t, start, 10*time.Second)
				full.Add(1)
			})
		}
		wg.Wait()
		if full.Load() != 1 || made.Load() != 2 {
			t.Errorf("%d made, %d full", made.Load(), full.Load())
		}
		if w.used() != 2 {
			t.Errorf("%d places in use", w.used())
		}
	})
}

func TestCreateFailsClean(t *testing.T) {
	for _, step := range []string{"create", "start", "open"} {
		t.Run(step, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, testConfig(), nil)
				defer w.stop()
				w.engine.setFail(step, fault.New(fault.Unavailable, "engine words"))
				_, err := w.Create(t.Context(), CreateRequest{})
				want(t, err, fault.Internal, DetailRunnerFailure)
				w.engine.setFail(step, nil)
				time.Sleep(w.cfg.SweepInterval + time.Second) // a dead runner goes at the next sweep
				if n := w.engine.count(); n != 0 {
					t.Errorf("%d runners left", n)
				}
				if w.used() != 0 {
					t.Errorf("%d places in use", w.used())
				}
			})
		})
	}
}

// TestStraysAreLookedForAgain: neither a sweep that cannot list nor one that
// cannot remove forgets a dead runner, and nobody else's are touched.
func TestStraysAreLookedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig(), nil)
		defer w.stop()
		id := w.create(CreateRequest{})
		w.engine.setFail("start", errors.New("no"))
		_, err := w.Create(t.Context(), CreateRequest{})
		want(t, err, fault.Internal, DetailRunnerFailure)
		w.engine.put("", false, true) // not ours to judge outside of a start
		for _, call := range []string{"list", "destroy"} {
			w.engine.setFail(call, errors.New("no"))
			time.Sleep(w.cfg.SweepInterval + time.Second)
			w.engine.setFail(call, nil)
			if n := w.engine.count(); n != 3 {
				t.Fatalf("%d runners", n)
			}
			ok(t, w.run(t.Context(), id, "x"))
		}
		time.Sleep(w.cfg.SweepInterval)
		if n := w.engine.count(); n != 2 {
			t.Fatalf("%d runners", n)
		}
		ok(t, w.run(t.Context(), id, "x"))
	})
}

// TestCreateCancelled cancels a create at every moment of its life.
func TestCreateCancelled(t *testing.T) {
	for at := range 13 {
		synctest.Test(t, func(t *testing.T) {
			e := newEngine(t)
			e.createDelay, e.openDelay, e.destroyDelay = 4*time.Second, 4*time.Second, time.Second
			cfg := testConfig()
			cfg.MaxCreates, cfg.MaxSessions = 1, 3
			w := newWorld(t, cfg, e)
			defer w.stop()
			var wg sync.WaitGroup
			if at%2 == 1 { // once with and once without a queue
				wg.Go(func() { w.create(CreateRequest{}) })
				synctest.Wait()
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(time.Duration(at)*time.Second, cancel)
			id, err := w.Create(ctx, CreateRequest{})
			wg.Wait()
			time.Sleep(time.Minute)
			live := at % 2
			if err == nil {
				live++
				ok(t, w.run(t.Context(), id, "x"))
			} else if fault.KindOf(err) == fault.Internal && !errors.Is(err, context.Canceled) {
				t.Errorf("at %d s: %v", at, err)
			}
			if n := e.count(); n != live || w.used() != live {
				t.Errorf("at %d s: %d runners and %d places, want %d", at, n, w.used(), live)
			}
		})
	}
}
