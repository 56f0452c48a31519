package session

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// inWorld runs a test in a bubble with a Manager of its own.
func inWorld(t *testing.T, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig(), nil)
		defer func() { w.stop() }()
		f(w)
	})
}

func TestArchiveRoundTrip(t *testing.T) {
	inWorld(t, func(w *world) {
		id := w.create(conversation("k"))
		w.put(id, "a.txt", "A")
		w.put(id, "uploads/u", "U")
		w.put(id, "skills/s", "S")
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		if keys := w.bucket.keys(); !slices.Equal(keys, []string{"p/workspaces/k.tgz"}) {
			w.t.Errorf("keys %v", keys)
		}
		w.has("k", "a.txt=A")
		w.has("K", "")
		w.logged(`evil\\nname`) // what was left out, quoted and cut
		if strings.Contains(w.logs.String(), strings.Repeat("x", 300)) {
			w.t.Error("a long name in the log")
		}
	})
}

func TestStemIsTheSessionsID(t *testing.T) {
	for _, bad := range []string{"", "a/b", "conv.1", "键", strings.Repeat("k", 129), "abc\n"} {
		inWorld(t, func(w *world) {
			id := w.create(conversation(bad))
			w.put(id, "a", "A")
			ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{ArchiveKey: "ignored"}))
			if keys := w.bucket.keys(); !slices.Equal(keys, []string{"p/workspaces/" + id + ".tgz"}) {
				w.t.Errorf("keys %v", keys)
			}
			w.has(id, "a=A")
		})
	}
}

func TestWhichStorageCounts(t *testing.T) {
	good := &storage.Config{Provider: "local", Prefix: "g"}
	other := &storage.Config{Provider: "local", Prefix: "o/"}
	none := &storage.Config{Provider: "Local"}
	broken := &storage.Config{Provider: "broken", Prefix: "b"}
	climbing := &storage.Config{Provider: "local", Prefix: "../esc"}
	for _, c := range []struct {
		name            string
		atCreate, atEnd *storage.Config
		want            string
	}{
		{"none", nil, nil, ""},
		{"remembered", good, nil, "g/workspaces/k.tgz"},
		{"forwarded", nil, good, "g/workspaces/k.tgz"},
		{"forwarded wins", other, good, "g/workspaces/k.tgz"},
		{"ineffective falls back", good, none, "g/workspaces/k.tgz"},
		{"broken falls back", good, broken, "g/workspaces/k.tgz"},
		{"ineffective", none, none, ""},
		{"broken", broken, nil, ""},
		{"climbing", climbing, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				id := w.create(CreateRequest{ArchiveKey: "k", Storage: c.atCreate})
				w.put(id, "a", "A")
				ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{Storage: c.atEnd}))
				if got := strings.Join(w.bucket.keys(), " "); got != c.want {
					w.t.Errorf("keys %q, want %q", got, c.want)
				}
				synctest.Wait()
				if w.used() != 0 || w.spooled() != 0 {
					w.t.Error("leftovers")
				}
			})
		})
	}
}

func TestReapArchives(t *testing.T) {
	inWorld(t, func(w *world) {
		req := conversation("k")
		req.IdleTTL = seconds(2)
		id := w.create(req)
		w.put(id, "x", "X")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		want(w.t, w.ResetInputs(w.t.Context(), id), fault.NotFound, DetailNotFound)
		w.has("k", "x=X")
	})
}

// TestComeBackWhileBeingReaped: the conversation of a session that is just being
// archived finds its files, not those of the time before.
func TestComeBackWhileBeingReaped(t *testing.T) {
	inWorld(t, func(w *world) {
		req := conversation("k")
		req.IdleTTL = seconds(2)
		id := w.create(req)
		w.put(id, "x", "X")
		w.bucket.set(func() { w.bucket.delay = 5 * time.Second })
		time.Sleep(2100 * time.Millisecond)
		synctest.Wait()
		want(w.t, w.ResetInputs(w.t.Context(), id), fault.NotFound, DetailNotFound)
		start := time.Now()
		w.has("k", "x=X")
		if d := time.Since(start); d < 4*time.Second || d > 6*time.Second {
			w.t.Errorf("took %v", d)
		}
	})
}

func TestTooLargeOrTooSlow(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cfg.MaxArchiveBytes = 50
		id := w.create(conversation("k"))
		w.put(id, "x", strings.Repeat("x", 100))
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		w.logged("too large")
		w.cfg.MaxArchiveBytes = 1 << 20
		w.engine.set(func() { w.engine.packDelay = time.Hour })
		id = w.create(conversation("k"))
		start := time.Now()
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		took(w.t, start, 2*w.cfg.ArchiveTimeout)
		w.logged("takes too long")
		if n := w.Stats().LostArchives; n != 2 {
			w.t.Errorf("%d lost", n)
		}
		if len(w.bucket.keys()) != 0 || w.spooled() != 0 {
			w.t.Error("something was kept")
		}
	})
}

func TestStoreDown(t *testing.T) {
	for name, breakIt := range map[string]func(b *bucket){
		"refuses":  func(b *bucket) { b.setDown(true) },
		"hangs":    func(b *bucket) { b.set(func() { b.hang = true }) },
		"half-way": func(b *bucket) { b.setFail("put end", errors.New("reset by peer")) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				a, b := w.create(conversation("a")), w.create(conversation("b"))
				w.put(a, "x", "X")
				w.put(b, "y", "Y")
				breakIt(w.bucket)
				for _, id := range []string{a, b} {
					ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
				}
				if w.spooled() != 2 || len(w.bucket.keys()) != 0 {
					w.t.Fatalf("%d in the spool, keys %v", w.spooled(), w.bucket.keys())
				}
				w.has("a", "x=X") // the spool is looked at first
				time.Sleep(3 * time.Hour)
				if w.spooled() != 2 {
					w.t.Fatalf("%d in the spool", w.spooled())
				}
				puts := w.bucket.puts
				w.restart()
				w.has("b", "y=Y")
				w.bucket.set(func() { clear(w.bucket.fail); w.bucket.hang = false })
				time.Sleep(lastDelivery + w.cfg.ArchiveTimeout)
				synctest.Wait()
				if w.spooled() != 0 || w.bucket.puts-puts != 2 {
					w.t.Errorf("%d in the spool, %d stored", w.spooled(), w.bucket.puts-puts)
				}
				w.has("a", "x=X")
				w.has("b", "y=Y")
				if w.Stats().LostArchives != 0 {
					w.t.Error("something was lost")
				}
			})
		})
	}
}

// TestDeliveryBacksOff counts how often a store that is down is asked.
func TestDeliveryBacksOff(t *testing.T) {
	inWorld(t, func(w *world) {
		id := w.create(conversation("a"))
		w.bucket.setFail("put", errors.New("no"))
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		tries := 0
		w.bucket.set(func() {
			w.bucket.step = func(what string) error {
				if what == "bucket put" {
					tries++
				}
				return nil
			}
		})
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if tries < 24*6-2 || tries > 24*6+12 {
			w.t.Errorf("tried %d times in a day", tries)
		}
	})
}

// TestPoisonHoldsUpNothing: what can never be stored does not keep the rest of
// its store from being stored.
func TestPoisonHoldsUpNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		w.bucket.setDown(true)
		for _, key := range []string{"poison", "a", "b"} {
			id := w.create(conversation(key))
			w.put(id, "x", key)
			ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		}
		w.bucket.setDown(false)
		w.bucket.set(func() { w.bucket.poison = "p/workspaces/poison.tgz" })
		time.Sleep(lastDelivery + time.Minute)
		if w.spooled() != 1 {
			w.t.Errorf("%d in the spool", w.spooled())
		}
	})
}

func TestYoungerArchiveSupersedes(t *testing.T) {
	inWorld(t, func(w *world) {
		a, b := w.create(conversation("k")), w.create(conversation("k"))
		w.put(a, "x", "old")
		w.put(b, "x", "new")
		w.bucket.setFail("put", errors.New("no"))
		ok(w.t, w.Delete(w.t.Context(), a, DeleteRequest{}))
		w.has("k", "x=old")
		time.Sleep(time.Minute)
		w.bucket.setDown(false)
		ok(w.t, w.Delete(w.t.Context(), b, DeleteRequest{}))
		if w.spooled() != 0 {
			w.t.Errorf("%d in the spool", w.spooled())
		}
		time.Sleep(time.Hour)
		w.has("k", "x=new")
		if n := len(w.bucket.keys()); n != 1 {
			w.t.Errorf("keys %v", w.bucket.keys())
		}
	})
}

func TestYoungerInTheSpoolSupersedes(t *testing.T) {
	inWorld(t, func(w *world) {
		w.bucket.setDown(true)
		for _, text := range []string{"1", "2", "3"} {
			id := w.create(conversation("k"))
			w.put(id, "x", text)
			ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
			w.has("k", "x="+text)
		}
		if w.spooled() != 1 {
			w.t.Errorf("%d in the spool", w.spooled())
		}
	})
}

func TestSpoolFull(t *testing.T) {
	inWorld(t, func(w *world) {
		w.bucket.setDown(true)
		req := conversation("reaped")
		req.IdleTTL = seconds(10)
		reaped, deleted := w.create(req), w.create(conversation("deleted"))
		for _, id := range []string{reaped, deleted} {
			w.put(id, "x", strings.Repeat("x", spoolBytes))
		}
		ok(w.t, w.Delete(w.t.Context(), deleted, DeleteRequest{}))
		w.logged("workspace is lost")
		if n := w.Stats().LostArchives; n != 1 {
			w.t.Errorf("%d lost", n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		ok(w.t, w.run(w.t.Context(), reaped, "x")) // it lives on
		if _, used := w.spool.Usage(); used != 0 {
			w.t.Errorf("%d bytes in the spool", used)
		}
		w.bucket.setDown(false)
		time.Sleep(w.cfg.SweepInterval + 11*time.Second)
		synctest.Wait()
		want(w.t, w.run(w.t.Context(), reaped, "x"), fault.NotFound, DetailNotFound)
		w.has("reaped", "x="+strings.Repeat("x", spoolBytes))
		w.has("deleted", "")
	})
}

func TestDiscard(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx := w.t.Context()
		keep := func(key string) string {
			id := w.create(conversation(key))
			w.put(id, "x", "X")
			ok(w.t, w.Delete(ctx, id, DeleteRequest{}))
			return id
		}
		w.bucket.objects["p/workspaces/a.kept-1.tgz"] = object{data: "{}"}
		w.bucket.objects["p/workspaces/ab.tgz"] = object{data: "{}"}
		keep("a")
		id := w.create(conversation("a"))
		ok(w.t, w.Delete(ctx, id, DeleteRequest{Discard: true})) // its own key
		if keys := w.bucket.keys(); !slices.Equal(keys, []string{"p/workspaces/ab.tgz"}) {
			w.t.Errorf("keys %v", keys)
		}
		old := keep("b")
		ok(w.t, w.Delete(ctx, old, DeleteRequest{Discard: true, ArchiveKey: "b", Storage: conversation("b").Storage}))
		w.has("b", "")
		keep("c")
		id = w.create(CreateRequest{})
		ok(w.t, w.Delete(ctx, id, DeleteRequest{Discard: true, ArchiveKey: "c", Storage: conversation("c").Storage}))
		w.has("c", "")
		if w.spooled() != 0 {
			w.t.Errorf("%d in the spool", w.spooled())
		}
	})
}

func TestDiscardWithTheStoreDown(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx := w.t.Context()
		a := w.create(conversation("k"))
		w.put(a, "x", "X")
		ok(w.t, w.Delete(ctx, a, DeleteRequest{}))
		b := w.create(conversation("k"))
		w.bucket.setDown(true)
		ok(w.t, w.Delete(ctx, b, DeleteRequest{Discard: true}))
		w.bucket.setFail("get", nil) // it can be read again, not changed
		w.has("k", "")
		w.restart()
		w.has("k", "")
		w.bucket.setDown(false)
		time.Sleep(lastDelivery)
		synctest.Wait()
		if w.spooled() != 0 || len(w.bucket.keys()) != 0 {
			w.t.Errorf("%d in the spool, keys %v", w.spooled(), w.bucket.keys())
		}
	})
}

// TestDiscardThenArchive: a deletion that waits does not hit a younger archive.
func TestDiscardThenArchive(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx := w.t.Context()
		a, b := w.create(conversation("k")), w.create(conversation("k"))
		w.put(b, "x", "X")
		w.bucket.setFail("delete", errors.New("no"))
		ok(w.t, w.Delete(ctx, a, DeleteRequest{Discard: true}))
		time.Sleep(time.Second)
		ok(w.t, w.Delete(ctx, b, DeleteRequest{}))
		w.bucket.setDown(false)
		time.Sleep(lastDelivery)
		w.has("k", "x=X")
	})
}

func TestDiscardOfWhatIsInTheSpool(t *testing.T) {
	for _, withStorage := range []bool{true, false} {
		inWorld(t, func(w *world) {
			ctx := w.t.Context()
			id := w.create(conversation("k"))
			w.put(id, "x", "X")
			w.bucket.setDown(true)
			ok(w.t, w.Delete(ctx, id, DeleteRequest{}))
			req := DeleteRequest{Discard: true, ArchiveKey: "k"}
			if withStorage {
				req.Storage = conversation("k").Storage
			}
			ok(w.t, w.Delete(ctx, id, req))
			w.bucket.setDown(false)
			time.Sleep(time.Hour)
			if len(w.bucket.keys()) != 0 || w.spooled() != 0 {
				w.t.Errorf("keys %v, %d in the spool", w.bucket.keys(), w.spooled())
			}
			w.has("k", "")
		})
	}
}

func TestDiscardWithoutAnyStorage(t *testing.T) {
	inWorld(t, func(w *world) {
		ok(w.t, w.Delete(w.t.Context(), w.create(CreateRequest{}), DeleteRequest{Discard: true}))
		ok(w.t, w.Delete(w.t.Context(), strings.Repeat("a", 32), DeleteRequest{Discard: true, ArchiveKey: "k"}))
	})
}

// TestEngineFailsWhileArchiving: the DELETE is answered, and the workspace kept
// as soon as the engine hands it out.
func TestEngineFailsWhileArchiving(t *testing.T) {
	for _, cause := range []error{errors.New("engine restarts"), runner.ErrLost} {
		inWorld(t, func(w *world) {
			id := w.create(conversation("k"))
			w.put(id, "x", "X")
			w.engine.setFail("pack", cause)
			start := time.Now()
			ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
			took(w.t, start, 0)
			want(w.t, w.run(w.t.Context(), id, "x"), fault.NotFound, DetailNotFound)
			time.Sleep(5 * time.Minute)
			w.restart()
			time.Sleep(5 * time.Minute)
			w.engine.setFail("pack", nil)
			time.Sleep(lastRetry)
			synctest.Wait()
			w.has("k", "x=X")
			synctest.Wait()
			if w.used() != 0 || w.engine.count() != 0 || w.spooled() != 0 {
				w.t.Error("leftovers")
			}
		})
	}
}

func TestEngineDownForLong(t *testing.T) {
	inWorld(t, func(w *world) {
		id := w.create(conversation("k"))
		w.put(id, "x", "X")
		w.engine.set(func() { w.engine.down = true })
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		time.Sleep(10 * keepPatience)
		w.engine.set(func() { w.engine.down = false })
		time.Sleep(lastRetry)
		synctest.Wait()
		w.has("k", "x=X")
	})
}

func TestAgentThatNeverHandsItOut(t *testing.T) {
	inWorld(t, func(w *world) {
		id := w.create(conversation("k"))
		w.engine.setFail("pack", runner.ErrLost)
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		time.Sleep(keepPatience + 2*lastRetry)
		synctest.Wait()
		if w.used() != 0 || w.engine.count() != 0 || w.Stats().LostArchives != 1 {
			w.t.Errorf("%d runners", w.engine.count())
		}
		w.logged("does not hand it out")
	})
}

// TestDiscardAfterAll: a DELETE that discards comes while an earlier one, which
// does not, still waits for the engine.
func TestDiscardAfterAll(t *testing.T) {
	inWorld(t, func(w *world) {
		id := w.create(conversation("k"))
		w.put(id, "x", "X")
		w.engine.setFail("pack", errors.New("engine restarts"))
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{Discard: true}))
		w.engine.setFail("pack", nil)
		time.Sleep(lastRetry)
		synctest.Wait()
		if len(w.bucket.keys()) != 0 || w.spooled() != 0 || w.used() != 0 {
			w.t.Errorf("keys %v, %d in the spool", w.bucket.keys(), w.spooled())
		}
	})
}

func TestClientGoesAwayWhileArchiving(t *testing.T) {
	inWorld(t, func(w *world) {
		id := w.create(conversation("k"))
		w.put(id, "x", "X")
		w.bucket.set(func() { w.bucket.delay = 10 * time.Second })
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		defer cancel()
		if err := w.Delete(ctx, id, DeleteRequest{}); !errors.Is(err, context.DeadlineExceeded) {
			w.t.Error(err)
		}
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{})) // waits for it
		w.has("k", "x=X")
	})
}

func TestShutdownInterruptsArchiving(t *testing.T) {
	inWorld(t, func(w *world) {
		id := w.create(conversation("k"))
		w.put(id, "x", "X")
		w.bucket.set(func() { w.bucket.delay = time.Minute })
		var wg sync.WaitGroup
		wg.Go(func() { want(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}), fault.Unavailable, detailStopping) })
		synctest.Wait()
		wg.Go(func() { want(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}), fault.Unavailable, detailStopping) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		defer cancel()
		ok(w.t, w.Shutdown(ctx))
		wg.Wait()
		if len(w.bucket.keys()) != 0 || w.spooled() != 0 || w.engine.count() != 1 {
			w.t.Fatal("it was not interrupted")
		}
		w.bucket.set(func() { w.bucket.delay = 0 })
		w.start(w.cfg)
		time.Sleep(time.Second)
		synctest.Wait()
		w.has("k", "x=X")
		synctest.Wait()
		if w.used() != 0 || w.engine.count() != 0 {
			w.t.Error("leftovers")
		}
	})
}
