package session

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

func TestInterrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.MaxExecs = 1
		w := newWorld(t, cfg, nil)
		defer w.stop()
		first, second := w.create(CreateRequest{}), w.create(CreateRequest{})
		start := time.Now()
		type result struct {
			x    *Execution
			err  error
			took time.Duration
		}
		exec := func(id, code string) chan result {
			done := make(chan result, 1)
			go func() {
				x, err := w.Exec(t.Context(), id, ExecRequest{Code: []byte(code), Timeout: time.Minute})
				if err == nil {
					err = x.Close()
				}
				done <- result{x, err, time.Since(start)}
			}()
			synctest.Wait()
			return done
		}
		interrupt := func(id string, want bool) {
			t.Helper()
			if got, err := w.Interrupt(id); got != want || err != nil {
				t.Errorf("%t, %v; want %t", got, err, want)
			}
		}
		interrupt(first, false)
		running, queued, behind := exec(first, "sleep 8s"), exec(second, "sleep 8s"), exec(first, "sleep 1s")
		time.Sleep(3 * time.Second)
		interrupt(second, true) // it waits for a slot
		got := <-queued
		if got.err != nil || got.x.Reason != runner.ReasonCancelled || got.x.ExitCode != 130 || got.took != 3*time.Second {
			t.Errorf("a run that waits for a slot: %+v", got)
		}
		interrupt(second, false)
		interrupt(first, true)
		interrupt(first, true) // once more does no harm
		got = <-running
		if got.err != nil || got.x.Reason != runner.ReasonCancelled || got.took != 3*time.Second {
			t.Errorf("a run: %+v", got)
		}
		// The one behind it was not meant.
		got = <-behind
		if got.err != nil || got.x.Reason != runner.ReasonExit || got.took != 4*time.Second {
			t.Errorf("the run after it: %+v", got)
		}
		interrupt(first, false)

		// A DELETE that waits for a run is helped by it.
		running = exec(first, "sleep 8s")
		deleted := make(chan error, 1)
		go func() { deleted <- w.Delete(t.Context(), first, DeleteRequest{}) }()
		synctest.Wait()
		interrupt(first, true)
		ok(t, (<-running).err)
		ok(t, <-deleted)
		_, err := w.Interrupt(first)
		want(t, err, fault.NotFound, DetailNotFound)
		_, err = w.Interrupt("x")
		want(t, err, fault.Invalid, DetailInvalidID)
	})
}
