package session

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

func seconds(n int64) *int64 { return &n }

func TestReaperIsPunctual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig(), nil)
		defer w.stop()
		start := time.Now()
		ids := []string{
			w.create(CreateRequest{IdleTTL: seconds(1000)}),
			w.create(CreateRequest{IdleTTL: seconds(7)}),
			w.create(CreateRequest{IdleTTL: seconds(-5)}),
		}
		alive := func() (n int) {
			for _, id := range ids {
				if w.engine.bySession(id) != nil {
					n++
				}
			}
			return n
		}
		for _, c := range []struct {
			at   time.Duration
			want int
		}{{999 * time.Millisecond, 3}, {1001 * time.Millisecond, 2}, {6999 * time.Millisecond, 2}, {7001 * time.Millisecond, 1},
			{999 * time.Second, 1}, {1001 * time.Second, 0}} {
			time.Sleep(time.Until(start.Add(c.at)))
			synctest.Wait()
			if got := alive(); got != c.want {
				t.Errorf("after %v: %d sessions, want %d", c.at, got, c.want)
			}
		}
		for _, id := range ids {
			want(t, w.ResetInputs(t.Context(), id), fault.NotFound, DetailNotFound)
		}
	})
}

func TestEveryCallIsUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig(), nil)
		defer w.stop()
		ctx := t.Context()
		id := w.create(CreateRequest{IdleTTL: seconds(10)})
		for _, call := range []func() error{
			func() error { return w.run(ctx, id, "x") },
			func() error { return w.WriteFile(ctx, id, "a", strings.NewReader(""), 0) },
			func() error {
				body, _, err := w.ReadFile(ctx, id, "a")
				if err != nil {
					return err
				}
				time.Sleep(20 * time.Second) // a slow reader is use too
				return body.Close()
			},
			func() error { _, err := w.ListFiles(ctx, id); return err },
			func() error { return w.ResetInputs(ctx, id) },
		} {
			time.Sleep(9900 * time.Millisecond)
			ok(t, call())
		}
		// A run longer than the idle time, and the whole idle time after it.
		ok(t, w.run(ctx, id, "sleep 35s"))
		time.Sleep(9900 * time.Millisecond)
		ok(t, w.ResetInputs(ctx, id))
		time.Sleep(10100 * time.Millisecond)
		want(t, w.ResetInputs(ctx, id), fault.NotFound, DetailNotFound)
		synctest.Wait()
		if w.engine.count() != 0 || w.used() != 0 {
			t.Error("leftovers")
		}
	})
}

func TestSweepIntervalIsAtLeastASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.SweepInterval = 0
		w := newWorld(t, cfg, nil)
		defer w.stop()
		start := time.Now()
		w.create(CreateRequest{IdleTTL: seconds(60)})
		time.Sleep(2 * time.Minute) // a reaper without a pause would never let time pass
		took(t, start, 2*time.Minute)
	})
}

func TestIdleAgentsAreLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.SweepInterval = time.Minute
		w := newWorld(t, cfg, nil)
		defer w.stop()
		idle, busy := w.create(CreateRequest{}), w.create(CreateRequest{})
		closed := func(id string) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.sessions[id].runner.(*fakeRunner).closed.Load()
		}
		ended := make(chan error)
		go func() { ended <- w.run(t.Context(), busy, "sleep 20m") }()
		for range 2 { // a session that was used again is let go again
			ok(t, w.run(t.Context(), idle, "x"))
			time.Sleep(coolAfter - time.Second)
			if closed(idle) {
				t.Error("a session that was used has no agent")
			}
			time.Sleep(cfg.SweepInterval + 2*time.Second)
			if !closed(idle) {
				t.Error("an idle session has its agent")
			}
			if closed(busy) {
				t.Error("a run in hand lost its agent")
			}
		}
		ok(t, w.WriteFile(t.Context(), idle, "a", strings.NewReader("a"), 1))
		if closed(idle) {
			t.Error("a call did not dial")
		}
		ok(t, <-ended)
	})
}
