package session

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

// die ends the process as kill -9 does, without a last word to disk.
func (w *world) die() {
	w.t.Helper()
	records := w.store.copy()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	ok(w.t, w.Shutdown(ctx))
	w.store.mu.Lock()
	w.store.records = records
	w.store.mu.Unlock()
}

func (s *memStore) copy() map[string]Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.records)
}

func TestSessionOutlivesTheProcess(t *testing.T) {
	inWorld(t, func(w *world) {
		w.restart() // records are complete from here on
		req := conversation("k")
		req.IdleTTL = seconds(100)
		id := w.create(req)
		w.put(id, "x", "X")
		w.die()
		time.Sleep(30 * time.Second)
		w.start(testConfig())
		if got := w.files(id); got != "x=X" {
			w.t.Errorf("files %q", got)
		}
		time.Sleep(99 * time.Second)
		ok(w.t, w.ResetInputs(w.t.Context(), id))
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{})) // knows its storage
		w.has("k", "x=X")
	})
}

// TestIdleTimeGoesOn: a restart is no use, and neither loses nor adds more than
// what the record may lag behind.
func TestIdleTimeGoesOn(t *testing.T) {
	for _, clean := range []bool{false, true} {
		inWorld(t, func(w *world) {
			w.restart()
			req := conversation("k")
			req.IdleTTL = seconds(100)
			id := w.create(req)
			time.Sleep(200 * time.Millisecond)
			w.put(id, "x", "X")
			time.Sleep(60 * time.Second)
			if clean {
				w.stop()
			} else {
				w.die()
			}
			w.start(testConfig())
			time.Sleep(39*time.Second + 900*time.Millisecond)
			if w.engine.bySession(id) == nil {
				w.t.Fatal("reaped early")
			}
			time.Sleep(lastUseLag + 200*time.Millisecond)
			synctest.Wait()
			if w.engine.bySession(id) != nil {
				w.t.Fatal("not reaped in time")
			}
			w.has("k", "x=X")
		})
	}
}

// TestUseBetweenCloseDeaths: processes that die before they write a last use
// down do not add up to an early end.
func TestUseBetweenCloseDeaths(t *testing.T) {
	inWorld(t, func(w *world) {
		w.restart()
		req := conversation("k")
		req.IdleTTL = seconds(6)
		id := w.create(req)
		for range 5 {
			time.Sleep(2 * time.Second)
			w.put(id, "x", "X")
			w.die()
			time.Sleep(time.Second)
			w.start(testConfig())
		}
		time.Sleep(4 * time.Second) // five since the last use
		if w.engine.bySession(id) == nil {
			w.t.Fatal("reaped early")
		}
	})
}

func TestExpiredWhileNobodyServed(t *testing.T) {
	inWorld(t, func(w *world) {
		w.restart()
		req := conversation("k")
		req.IdleTTL = seconds(10)
		w.put(w.create(req), "x", "X")
		w.die()
		time.Sleep(time.Hour)
		w.start(testConfig())
		time.Sleep(time.Second)
		w.has("k", "x=X")
	})
}

// TestKilledDuringALongRun: a run in hand is use up to the moment of the crash.
func TestKilledDuringALongRun(t *testing.T) {
	inWorld(t, func(w *world) {
		w.restart()
		id := w.create(CreateRequest{IdleTTL: seconds(10)})
		var wg sync.WaitGroup
		wg.Go(func() { _ = w.run(w.t.Context(), id, "sleep 10m") })
		time.Sleep(5 * time.Minute)
		w.die()
		wg.Wait()
		w.start(testConfig())
		time.Sleep(4 * time.Second)
		ok(w.t, w.ResetInputs(w.t.Context(), id))
	})
}

func TestLastUseIsWrittenLazily(t *testing.T) {
	inWorld(t, func(w *world) {
		id := w.create(CreateRequest{})
		ok(w.t, w.run(w.t.Context(), id, "x"))
		time.Sleep(6 * time.Second)
		saves := w.store.saves.Load()
		for range 100 {
			ok(w.t, w.ResetInputs(w.t.Context(), id))
			time.Sleep(100 * time.Millisecond)
		}
		if n := w.store.saves.Load() - saves; n < 2 || n > 3 {
			w.t.Errorf("%d saves in 10 s", n)
		}
		time.Sleep(time.Minute)
		saves = w.store.saves.Load()
		time.Sleep(time.Hour / 4)
		if n := w.store.saves.Load() - saves; n != 0 {
			w.t.Errorf("%d saves of an idle session", n)
		}
	})
}

// TestRunnersWithoutARecord belong to nobody where the records are all, unless
// the older service made them.
func TestRunnersWithoutARecord(t *testing.T) {
	inWorld(t, func(w *world) {
		w.stop()
		orphan := w.engine.put(strings.Repeat("1", 32), true, false)
		legacy := w.engine.put(strings.Repeat("2", 32), true, true)
		w.engine.put(strings.Repeat("3", 32), false, true)
		w.start(testConfig())
		want(w.t, w.run(w.t.Context(), orphan.SessionID, "x"), fault.NotFound, DetailNotFound)
		ok(w.t, w.run(w.t.Context(), legacy.SessionID, "x"))
		if n := w.engine.count(); n != 1 {
			w.t.Errorf("%d runners", n)
		}
		w.restart()
		ok(w.t, w.run(w.t.Context(), legacy.SessionID, "x"))
	})
}

// TestFirstStartThatCannotAdopt: the records are complete only once the runners
// that they miss were adopted, however many processes that takes.
func TestFirstStartThatCannotAdopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		id := strings.Repeat("1", 32)
		e.put(id, true, false).files["x"] = "X"
		e.down = true
		w := newWorld(t, testConfig(), e)
		time.Sleep(time.Hour)
		w.restart()
		w.store.mu.Lock()
		w.store.fail = errors.New("disk full")
		w.store.mu.Unlock()
		e.set(func() { e.down = false })
		time.Sleep(lastRetry)
		ok(t, w.run(t.Context(), id, "x"))
		if _, complete, _ := w.store.Load(t.Context()); complete {
			t.Error("complete without a record")
		}
		w.store.mu.Lock()
		w.store.fail = nil
		w.store.mu.Unlock()
		for range 2 {
			w.restart()
			if got := w.files(id); got != "x=X" {
				t.Errorf("files %q", got)
			}
		}
		if _, complete, _ := w.store.Load(t.Context()); !complete {
			t.Error("not complete")
		}
		w.stop()
	})
}

// TestVanishedRunners: a session whose runner did not outlive the host's restart
// ends, and its place comes free, also where the engine has forgotten it.
func TestVanishedRunners(t *testing.T) {
	inWorld(t, func(w *world) {
		a, b, c := w.create(CreateRequest{}), w.create(CreateRequest{}), w.create(CreateRequest{})
		w.stop()
		w.engine.set(func() {
			w.engine.bySessionLocked(a).Running = false
			delete(w.engine.containers, w.engine.bySessionLocked(b).ID)
		})
		w.start(testConfig())
		synctest.Wait()
		for _, id := range []string{a, b} {
			want(w.t, w.run(w.t.Context(), id, "x"), fault.NotFound, DetailNotFound)
		}
		ok(w.t, w.run(w.t.Context(), c, "x"))
		if w.used() != 1 || w.engine.count() != 1 || len(w.store.copy()) != 1 {
			w.t.Errorf("%d runners, records %v", w.engine.count(), w.store.copy())
		}
	})
}

// TestRunnersByAnotherName: an engine may call a runner what it did not when the
// session was kept.
func TestRunnersByAnotherName(t *testing.T) {
	inWorld(t, func(w *world) {
		id := w.create(CreateRequest{})
		w.put(id, "x", "X")
		w.stop()
		w.engine.set(func() { w.engine.bySessionLocked(id).ID = "renamed" })
		w.start(testConfig())
		synctest.Wait()
		if got := w.files(id); got != "x=X" {
			t.Errorf("files %q", got)
		}
	})
}

func TestEngineDownAtStart(t *testing.T) {
	inWorld(t, func(w *world) {
		id := w.create(conversation("k"))
		w.put(id, "x", "X")
		w.stop()
		w.engine.set(func() { w.engine.down = true })
		w.start(testConfig())
		// It is known, and not taken for lost.
		want(w.t, w.run(w.t.Context(), id, "x"), fault.Internal, DetailRunnerFailure)
		w.engine.set(func() { w.engine.down = false })
		if got := w.files(id); got != "x=X" {
			w.t.Errorf("files %q", got)
		}
	})
}

func TestSessionsOfAnotherDriver(t *testing.T) {
	inWorld(t, func(w *world) {
		id := w.create(CreateRequest{})
		w.stop()
		rec, _ := w.store.get(id)
		rec.Driver = "other"
		w.store.records[id] = rec
		c := w.engine.bySession(id)
		w.engine.set(func() { delete(w.engine.containers, c.ID) }) // this engine knows nothing of it
		w.start(testConfig())
		want(w.t, w.run(w.t.Context(), id, "x"), fault.NotFound, DetailNotFound)
		w.stop()
		rec, found := w.store.get(id)
		if !found {
			w.t.Fatal("its record is gone")
		}
		rec.Driver = "fake"
		w.store.records[id] = rec
		w.engine.set(func() { w.engine.containers[c.ID] = c })
		w.start(testConfig())
		ok(w.t, w.run(w.t.Context(), id, "x"))
	})
}

func TestTombstones(t *testing.T) {
	inWorld(t, func(w *world) {
		id := w.create(conversation("k"))
		w.put(id, "x", "X")
		w.engine.setFail("destroy", errors.New("no"))
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		if rec, _ := w.store.get(id); rec.Phase != PhaseGone {
			w.t.Errorf("phase %q", rec.Phase)
		}
		w.die()
		w.start(testConfig())
		want(w.t, w.run(w.t.Context(), id, "x"), fault.NotFound, DetailNotFound)
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		puts := w.bucket.puts
		w.engine.setFail("destroy", nil)
		time.Sleep(lastRetry)
		synctest.Wait()
		if w.engine.count() != 0 || w.used() != 0 || len(w.store.copy()) != 0 || w.bucket.puts != puts {
			w.t.Error("leftovers, or archived again")
		}
	})
}

func TestRecordCannotBeKept(t *testing.T) {
	inWorld(t, func(w *world) {
		setFail := func(err error) {
			w.store.mu.Lock()
			w.store.fail = err
			w.store.mu.Unlock()
		}
		id := w.create(conversation("k"))
		setFail(errors.New("disk full"))
		_, err := w.Create(w.t.Context(), CreateRequest{})
		want(w.t, err, fault.Internal, DetailRunnerFailure)
		synctest.Wait()
		if w.engine.count() != 1 {
			w.t.Errorf("%d runners", w.engine.count())
		}
		w.put(id, "x", "X")
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		setFail(nil)
		w.has("k", "x=X")
		w.logged("disk full")
	})
	w := &world{t: t, engine: newEngine(t), store: &memStore{fail: errors.New("unreadable")}, logs: &logs{}}
	m := New(testConfig(), Deps{Driver: w.engine, Store: w.store, Log: discardLog})
	if err := m.Start(t.Context()); err == nil {
		t.Error("started without its records")
	}
	ok(t, m.Shutdown(t.Context()))
}

// TestNeverUsed: a session in which nothing was done has nothing to keep, and
// must not get in the way of what others kept under its key.
func TestNeverUsed(t *testing.T) {
	inWorld(t, func(w *world) {
		req := conversation("k")
		req.IdleTTL = seconds(100)
		first, forgotten := w.create(req), w.create(req)
		ok(w.t, w.Delete(w.t.Context(), first, DeleteRequest{})) // better than nothing
		if len(w.bucket.keys()) != 1 {
			w.t.Errorf("keys %v", w.bucket.keys())
		}
		id := w.create(conversation("k"))
		w.put(id, "x", "X")
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		restored := w.create(req)
		w.restart()
		time.Sleep(101 * time.Second)
		synctest.Wait()
		for _, id := range []string{forgotten, restored} {
			want(w.t, w.run(w.t.Context(), id, "x"), fault.NotFound, DetailNotFound)
		}
		w.has("k", "x=X")

		// What was discarded does not come back with it.
		req.IdleTTL = seconds(3)
		w.create(req)
		ok(w.t, w.Delete(w.t.Context(), strings.Repeat("a", 32), DeleteRequest{Discard: true, ArchiveKey: "k", Storage: req.Storage}))
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if len(w.bucket.keys()) != 0 {
			w.t.Errorf("keys %v", w.bucket.keys())
		}

		// Whether there is anything cannot be told: then there is nothing to lose.
		id = w.create(conversation("q"))
		w.bucket.setDown(true)
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		if w.spooled() != 0 {
			w.t.Errorf("%d in the spool", w.spooled())
		}
	})
}

// TestEndedEarlierThanWhatIsStored: a session waits for its engine to hand out
// its workspace while a younger one of the same key is archived.
func TestEndedEarlierThanWhatIsStored(t *testing.T) {
	inWorld(t, func(w *world) {
		a, b := w.create(conversation("k")), w.create(conversation("k"))
		w.put(a, "x", "old")
		w.put(b, "x", "young")
		w.engine.setFail("pack", errors.New("engine restarts"))
		ok(w.t, w.Delete(w.t.Context(), a, DeleteRequest{}))
		w.engine.setFail("pack", nil)
		ok(w.t, w.Delete(w.t.Context(), b, DeleteRequest{}))
		time.Sleep(lastRetry)
		synctest.Wait()
		w.has("k", "x=young")
		if !slices.Equal(w.bucket.keys(), []string{"p/workspaces/k.tgz"}) || w.engine.count() != 0 || w.used() != 0 {
			w.t.Errorf("keys %v, %d runners", w.bucket.keys(), w.engine.count())
		}
	})
}

// TestPendingWaitsForWhatEndedAfterIt: stored first, it would look younger.
func TestPendingWaitsForWhatEndedAfterIt(t *testing.T) {
	inWorld(t, func(w *world) {
		a, b := w.create(conversation("k")), w.create(conversation("k"))
		w.put(a, "x", "old")
		w.put(b, "x", "young")
		w.bucket.setDown(true)
		ok(w.t, w.Delete(w.t.Context(), a, DeleteRequest{}))
		w.engine.setFail("pack", errors.New("engine restarts"))
		ok(w.t, w.Delete(w.t.Context(), b, DeleteRequest{}))
		w.bucket.setDown(false)
		time.Sleep(10 * time.Minute)
		if len(w.bucket.keys()) != 0 || w.spooled() != 1 {
			w.t.Errorf("keys %v", w.bucket.keys())
		}
		w.engine.setFail("pack", nil)
		time.Sleep(lastRetry)
		synctest.Wait()
		w.has("k", "x=young")
		if n := len(w.bucket.keys()); n != 1 || w.spooled() != 0 {
			w.t.Errorf("keys %v", w.bucket.keys())
		}
	})
}

func TestClockTurnedBack(t *testing.T) {
	m := New(testConfig(), Deps{})
	future := time.Now().Add(time.Hour)
	m.stampedLocked(future)
	m.stampedLocked(time.Now())
	last := future
	for range 3 {
		now := m.stampLocked()
		if !now.After(last) {
			t.Errorf("%v is not after %v", now, last)
		}
		last = now
	}
}
