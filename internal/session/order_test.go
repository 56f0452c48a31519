package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := newID()
		if !ValidID(id) || id[12] != '4' || !strings.ContainsRune("89ab", rune(id[16])) || seen[id] {
			t.Fatalf("bad id %q", id)
		}
		seen[id] = true
	}
	for _, id := range []string{"", "abc", strings.Repeat("A", 32), strings.Repeat("a", 31), strings.Repeat("a", 33),
		strings.Repeat("a", 32) + "\n", strings.Repeat("g", 32), strings.Repeat("a", 31) + "/", strings.Repeat("٣", 32)} {
		if ValidID(id) {
			t.Errorf("%q is taken for an id", id)
		}
	}
}

func TestUnknownAndMalformed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig(), nil)
		defer w.stop()
		ctx, gone := t.Context(), strings.Repeat("a", 32)
		for _, c := range []struct {
			id     string
			kind   fault.Kind
			detail string
		}{{gone, fault.NotFound, DetailNotFound}, {"nope", fault.Invalid, DetailInvalidID}} {
			want(t, w.run(ctx, c.id, "x"), c.kind, c.detail)
			want(t, w.WriteFile(ctx, c.id, "a", strings.NewReader(""), 0), c.kind, c.detail)
			_, _, err := w.ReadFile(ctx, c.id, "a")
			want(t, err, c.kind, c.detail)
			_, err = w.ListFiles(ctx, c.id)
			want(t, err, c.kind, c.detail)
			want(t, w.ResetInputs(ctx, c.id), c.kind, c.detail)
		}
		ok(t, w.Delete(ctx, gone, DeleteRequest{}))
		want(t, w.Delete(ctx, "nope", DeleteRequest{}), fault.Invalid, DetailInvalidID)
	})
}

func TestCallsOnOneSessionInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.QueueTimeout = time.Minute
		w := newWorld(t, cfg, nil)
		defer w.stop()
		id := w.create(CreateRequest{})
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				if err := w.run(t.Context(), id, "sleep 3s"); err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
			})
			time.Sleep(time.Millisecond)
		}
		start := time.Now()
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 8 {
			t.Errorf("order %v", order)
		}
		if d := time.Since(start); d != 24*time.Second-8*time.Millisecond {
			t.Errorf("eight runs of 3 s took %v", d)
		}
	})
}

func TestBusySession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig(), nil)
		defer w.stop()
		id, ctx := w.create(CreateRequest{}), t.Context()
		var first sync.WaitGroup
		first.Go(func() { ok(t, w.run(ctx, id, "sleep 15s")) })
		time.Sleep(time.Second)
		start := time.Now()
		var wg sync.WaitGroup
		for _, call := range []func() error{
			func() error { return w.run(ctx, id, "x") },
			func() error { return w.WriteFile(ctx, id, "a", strings.NewReader(""), 0) },
			func() error { _, _, err := w.ReadFile(ctx, id, "a"); return err },
			func() error { _, err := w.ListFiles(ctx, id); return err },
			func() error { return w.ResetInputs(ctx, id) },
		} {
			wg.Go(func() {
				want(t, call(), fault.Busy, DetailBusy)
				took(t, start, 10*time.Second)
			})
		}
		wg.Wait()
		first.Wait()
		ok(t, w.run(ctx, id, "x"))
	})
}

func TestExecutionHoldsTheSessionButNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.MaxExecs = 1
		w := newWorld(t, cfg, nil)
		defer w.stop()
		a, b := w.create(CreateRequest{}), w.create(CreateRequest{})
		x, err := w.Exec(t.Context(), a, ExecRequest{Code: []byte("x")})
		ok(t, err)
		ok(t, w.run(t.Context(), b, "x")) // the only slot is free again
		want(t, w.run(t.Context(), a, "x"), fault.Busy, DetailBusy)
		ok(t, x.Close())
		ok(t, x.Close())
		ok(t, w.run(t.Context(), a, "x"))

		ok(t, w.WriteFile(t.Context(), a, "f", strings.NewReader("data"), 4))
		body, size, err := w.ReadFile(t.Context(), a, "f")
		ok(t, err)
		if size != 4 {
			t.Errorf("size %d", size)
		}
		want(t, w.ResetInputs(t.Context(), a), fault.Busy, DetailBusy)
		ok(t, body.Close())
		ok(t, w.ResetInputs(t.Context(), a))
	})
}

func TestExecSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.MaxExecs = 2
		w := newWorld(t, cfg, nil)
		defer w.stop()
		var ids []string
		for range 4 {
			ids = append(ids, w.create(CreateRequest{}))
		}
		start := time.Now()
		var wg sync.WaitGroup
		for _, id := range ids[:2] {
			wg.Go(func() { ok(t, w.run(t.Context(), id, "sleep 12s")) })
		}
		synctest.Wait()
		wg.Go(func() { // gives up
			want(t, w.run(t.Context(), ids[2], "x"), fault.Busy, DetailExecQueue)
			took(t, start, 10*time.Second)
			ok(t, w.ResetInputs(t.Context(), ids[2])) // files need no slot
		})
		time.Sleep(5 * time.Second)
		ok(t, w.run(t.Context(), ids[3], "x"))
		took(t, start, 12*time.Second)
		wg.Wait()
	})
}

// TestFairBetweenSessions has one session ask for many runs before the others
// ask for one each: nobody waits behind more than one run of the greedy one.
func TestFairBetweenSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.MaxExecs, cfg.QueueTimeout = 1, time.Hour
		w := newWorld(t, cfg, nil)
		defer w.stop()
		greedy := w.create(CreateRequest{})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { ok(t, w.run(t.Context(), greedy, "sleep 1s")) })
		}
		synctest.Wait()
		start := time.Now()
		for range 3 {
			id := w.create(CreateRequest{})
			wg.Go(func() {
				ok(t, w.run(t.Context(), id, "sleep 1s"))
				if d := time.Since(start); d > 5*time.Second {
					t.Errorf("a modest session waited %v", d)
				}
			})
		}
		wg.Wait()
	})
}

func TestClientGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.MaxExecs, cfg.QueueTimeout = 1, time.Hour
		w := newWorld(t, cfg, nil)
		defer w.stop()
		a, b := w.create(CreateRequest{}), w.create(CreateRequest{})
		ctx, cancel := context.WithCancelCause(t.Context())
		bye := errors.New("client went away")
		var wg sync.WaitGroup
		wg.Go(func() { // runs
			if err := w.run(ctx, a, "sleep 1h"); !errors.Is(err, bye) {
				t.Error(err)
			}
		})
		synctest.Wait()
		wg.Go(func() { // waits for the lock
			if err := w.run(ctx, a, "x"); !errors.Is(err, bye) {
				t.Error(err)
			}
		})
		wg.Go(func() { // waits for the slot
			if err := w.run(ctx, b, "x"); !errors.Is(err, bye) {
				t.Error(err)
			}
		})
		synctest.Wait()
		start := time.Now()
		cancel(bye)
		wg.Wait()
		ok(t, w.run(t.Context(), a, "x"))
		ok(t, w.run(t.Context(), b, "x"))
		took(t, start, 0)
	})
}

func TestRunnerErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig(), nil)
		defer w.stop()
		id, ctx := w.create(CreateRequest{}), t.Context()
		for _, cause := range []error{
			runner.ErrLost, runner.ErrProtocol, errors.New("disk on fire"),
			fault.New(fault.Unavailable, "secret engine words"), fault.New(fault.Busy, "x"),
		} {
			w.engine.setFail("write", fmt.Errorf("wrapped: %w", cause))
			err := w.WriteFile(ctx, id, "a", strings.NewReader(""), 0)
			want(t, err, fault.Internal, DetailRunnerFailure)
			if !errors.Is(err, cause) {
				t.Errorf("cause of %v is gone", err)
			}
		}
		for _, kind := range []fault.Kind{fault.Invalid, fault.NotFound, fault.Conflict, fault.TooLarge} {
			w.engine.setFail("write", fault.New(kind, "about the file"))
			want(t, w.WriteFile(ctx, id, "a", strings.NewReader(""), 0), kind, "about the file")
		}
		want(t, w.run(ctx, id, "lost"), fault.Internal, DetailRunnerFailure)
		w.engine.set(func() { w.engine.down = true })
		want(t, w.run(ctx, id, "x"), fault.Internal, DetailRunnerFailure)
		w.engine.set(func() { w.engine.down = false })
		ok(t, w.run(ctx, id, "x")) // it was never given up

		// Removed behind our back: the session ends and its place comes free.
		ok(t, w.engine.Destroy(ctx, w.engine.bySession(id).ID))
		want(t, w.run(ctx, id, "x"), fault.NotFound, DetailNotFound)
		want(t, w.run(ctx, id, "x"), fault.NotFound, DetailNotFound)
		synctest.Wait()
		if n := w.used(); n != 0 {
			t.Errorf("%d places in use", n)
		}
	})
}

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig(), nil)
		defer w.stop()
		if got, want := w.Health(t.Context()), (Health{OK: true, Version: "1.2", Image: "img", ImageReady: true, Driver: "fake"}); got != want {
			t.Errorf("got %+v", got)
		}
		w.engine.set(func() { w.engine.down = true })
		if got := w.Health(t.Context()); got.OK || got.Version != "" || got.Image != "img" {
			t.Errorf("got %+v", got)
		}
	})
}
