package session

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

func TestAdoption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		live, legacy := strings.Repeat("1", 32), strings.Repeat("2", 32)
		e.put(live, true, false).files["f"] = "data"
		e.put(legacy, true, true)
		e.put(strings.Repeat("3", 32), false, false) // dead
		e.put(strings.Repeat("4", 32), false, true)  // dead, of the older service
		e.put("", true, false)                       // ours, and nobody can ask for it
		stranger := e.put("", true, true)            // may be anybody's
		cfg := testConfig()
		cfg.MaxSessions = 1
		w := newWorld(t, cfg, e)
		defer w.stop()
		for _, id := range []string{live, legacy} {
			ok(t, w.run(t.Context(), id, "x"))
		}
		body, _, err := w.ReadFile(t.Context(), live, "f")
		ok(t, err)
		ok(t, body.Close())
		if n := e.count(); n != 3 || e.get(stranger.ID) == nil {
			t.Errorf("%d runners", n)
		}
		// They count, even beyond the limit.
		_, err = w.Create(t.Context(), CreateRequest{})
		want(t, err, fault.Busy, DetailMaxSessions)
		ok(t, w.Delete(t.Context(), legacy, DeleteRequest{}))
		synctest.Wait()
		_, err = w.Create(t.Context(), CreateRequest{})
		want(t, err, fault.Busy, DetailMaxSessions)
		ok(t, w.Delete(t.Context(), live, DeleteRequest{}))
		synctest.Wait()
		w.create(CreateRequest{})
		if n := e.count(); n != 2 {
			t.Errorf("%d runners", n)
		}
	})
}

func TestAdoptionWithTheDefaultIdleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		id := strings.Repeat("1", 32)
		e.put(id, true, false)
		time.Sleep(time.Hour)
		w := newWorld(t, testConfig(), e)
		defer w.stop()
		time.Sleep(w.cfg.IdleTTL - time.Second)
		if e.bySession(id) == nil {
			t.Fatal("reaped early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if e.bySession(id) != nil {
			t.Fatal("not reaped")
		}
	})
}

// TestAdoptionAfterTheEngineIsBack serves meanwhile, and takes nothing that this
// process made for an orphan, whatever has become of it.
func TestAdoptionAfterTheEngineIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		old := strings.Repeat("1", 32)
		e.put(old, true, false)
		e.down = true
		w := newWorld(t, testConfig(), e)
		defer w.stop()
		_, err := w.Create(t.Context(), CreateRequest{})
		want(t, err, fault.Internal, DetailRunnerFailure)
		want(t, w.run(t.Context(), old, "x"), fault.NotFound, DetailNotFound)
		time.Sleep(time.Minute)

		// The engine answers again, but for List: sessions come and go.
		e.set(func() {
			e.down = false
			e.fail["list"] = errors.New("still starting")
			e.fail["destroy"] = errors.New("no")
		})
		kept, ended := w.create(CreateRequest{}), w.create(CreateRequest{})
		ok(t, w.Delete(t.Context(), ended, DeleteRequest{}))
		e.setFail("list", nil)
		time.Sleep(lastRetry)
		synctest.Wait()
		ok(t, w.run(t.Context(), old, "x"))
		ok(t, w.run(t.Context(), kept, "x"))
		want(t, w.run(t.Context(), ended, "x"), fault.NotFound, DetailNotFound)
		e.setFail("destroy", nil)
		time.Sleep(lastRetry)
		synctest.Wait()
		if n := e.count(); n != 2 || w.used() != 2 {
			t.Errorf("%d runners, %d places", n, w.used())
		}
	})
}
