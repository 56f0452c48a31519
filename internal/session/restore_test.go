package session

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// plant puts an archive into the bucket as somebody else would.
func (w *world) plant(key, data string, at time.Time) {
	w.bucket.set(func() { w.bucket.objects[key] = object{data, at} })
}

// kept returns the one key of what was kept beside the archive of k.
func (w *world) kept() string {
	w.t.Helper()
	var found []string
	for _, key := range w.bucket.keys() {
		if strings.HasPrefix(key, "p/workspaces/k.kept-") && strings.HasSuffix(key, ".tgz") {
			found = append(found, key)
		}
	}
	if len(found) != 1 {
		w.t.Fatalf("kept beside: %v", found)
	}
	return found[0]
}

// TestArchiveThatCannotBeRestored is kept, whatever kept it from being restored
// and whether the store is there when its successor comes.
func TestArchiveThatCannotBeRestored(t *testing.T) {
	const original = `{"x":"original"}`
	for name, c := range map[string]struct {
		data string
		call string // that fails while it is restored
	}{
		"store down":  {original, "get"},
		"breaks off":  {original, "read"},
		"damaged":     {`{"x":"orig`, ""},
		"too large":   {`{"x":"` + strings.Repeat("x", 2<<20) + `"}`, ""},
		"agent fails": {original, "unpack"},
	} {
		for _, down := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				inWorld(t, func(w *world) {
					w.plant("p/workspaces/k.tgz", c.data, time.Now())
					w.bucket.setFail(c.call, errors.New("no"))
					w.engine.setFail(c.call, errors.New("no"))
					id := w.create(conversation("k"))
					w.bucket.setFail(c.call, nil)
					w.engine.setFail(c.call, nil)
					w.logged("cannot restore a workspace")
					if got := w.files(id); got != "" {
						w.t.Errorf("files %q", got)
					}
					w.put(id, "y", "Y")
					if down {
						w.bucket.setDown(true)
					}
					w.restart() // it is not forgotten either
					ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
					if down {
						if w.spooled() != 1 {
							w.t.Fatal("not in the spool")
						}
						w.restart()
						w.has("k", "y=Y")
						w.bucket.setDown(false)
						time.Sleep(lastDelivery)
						synctest.Wait()
					}
					w.has("k", "y=Y")
					if got := w.bucket.data(w.kept()); got != c.data {
						w.t.Errorf("%q was kept", got[:min(len(got), 100)])
					}
					// Once it was kept, its successors are ordinary ones.
					id = w.create(conversation("k"))
					ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
					w.kept()
				})
			})
		}
	}
}

// TestOriginalOutlivesAChainOfSpooledArchives: a session that restores from the
// spool takes over the duty to keep what the one before could not restore.
func TestOriginalOutlivesAChainOfSpooledArchives(t *testing.T) {
	inWorld(t, func(w *world) {
		w.plant("p/workspaces/k.tgz", `{"x":"original"}`, time.Now())
		w.bucket.setDown(true)
		for _, text := range []string{"1", "2"} {
			id := w.create(conversation("k"))
			w.put(id, "y", text)
			ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		}
		id := w.create(conversation("k"))
		w.put(id, "y", "3")
		w.bucket.setDown(false)
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		if got := w.bucket.data(w.kept()); got != `{"x":"original"}` {
			w.t.Errorf("%q was kept", got)
		}
		w.has("k", "y=3")
	})
}

// TestSpooledArchiveThatCannotBeRestored is kept beside its successor.
func TestSpooledArchiveThatCannotBeRestored(t *testing.T) {
	for _, up := range []bool{false, true} {
		inWorld(t, func(w *world) {
			id := w.create(conversation("k"))
			w.put(id, "x", "X")
			w.bucket.setDown(true)
			ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
			w.engine.setFail("unpack", errors.New("no"))
			id = w.create(conversation("k"))
			w.engine.setFail("unpack", nil)
			w.put(id, "y", "Y")
			time.Sleep(time.Second)
			if up {
				w.bucket.set(func() { clear(w.bucket.fail) })
			}
			ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
			w.bucket.setDown(false)
			time.Sleep(2 * lastDelivery)
			synctest.Wait()
			w.has("k", "y=Y")
			if got := w.bucket.data(w.kept()); got != `{"x":"X"}` {
				w.t.Errorf("%q was kept", got)
			}
			if w.spooled() != 0 {
				w.t.Errorf("%d in the spool", w.spooled())
			}
		})
	}
}

func TestInputsAreEmptyAfterARestore(t *testing.T) {
	for _, data := range []string{`{"keep":"k","uploads/u":"old","skills/s":"old"}`} {
		inWorld(t, func(w *world) {
			w.plant("p/workspaces/k.tgz", data, time.Now())
			w.has("k", "keep=k")
		})
	}
}

// TestArchiveThatTakesTheRunnerDown costs its files, not the conversation.
func TestArchiveThatTakesTheRunnerDown(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cfg.MaxSessions = 1
		w.places.max = 1
		w.plant("p/workspaces/k.tgz", "bomb", time.Now())
		id := w.create(conversation("k"))
		w.put(id, "y", "Y")
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		if got := w.bucket.data(w.kept()); got != "bomb" {
			w.t.Errorf("%q was kept", got)
		}
		synctest.Wait()
		if w.used() != 0 || w.engine.count() != 0 || w.engine.peak > 1 {
			w.t.Error("leftovers")
		}
	})
}

// TestOlderArchiveOfAnotherTime: the spool holds an archive from before a younger
// one was stored, of which nobody here knows.
func TestStoreHasAYoungerOne(t *testing.T) {
	for _, coarse := range []bool{false, true} {
		inWorld(t, func(w *world) {
			w.bucket.coarse = coarse
			id := w.create(conversation("k"))
			w.put(id, "x", "old")
			w.bucket.setDown(true)
			ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
			time.Sleep(3 * time.Second)
			w.plant("p/workspaces/k.tgz", `{"x":"young"}`, time.Now())
			w.bucket.setDown(false)
			time.Sleep(lastDelivery)
			synctest.Wait()
			w.has("k", "x=young")
			if got := w.bucket.data(w.kept()); got != `{"x":"old"}` || w.spooled() != 0 {
				w.t.Errorf("%q was kept, %d in the spool", got, w.spooled())
			}
		})
	}
}

// TestStoresClockRunsAhead must not make an older archive pass for a younger.
func TestStoresClockRunsAhead(t *testing.T) {
	for _, ahead := range []time.Duration{time.Hour, 10 * time.Minute, -time.Hour} {
		for _, original := range []bool{false, true} {
			inWorld(t, func(w *world) {
				w.bucket.ahead, w.bucket.coarse = ahead, true
				w.plant("p/workspaces/k.tgz", `{"x":"old"}`, time.Now().Add(ahead))
				if original { // and it could not be restored either
					w.bucket.setDown(true)
				}
				id := w.create(conversation("k"))
				w.put(id, "x", "young")
				time.Sleep(3 * time.Second)
				w.bucket.setDown(true)
				ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
				w.bucket.setDown(false)
				time.Sleep(lastDelivery)
				synctest.Wait()
				w.has("k", "x=young")
				if original {
					if got := w.bucket.data(w.kept()); got != `{"x":"old"}` {
						w.t.Errorf("%q was kept", got)
					}
				} else if len(w.bucket.keys()) != 1 || w.spooled() != 0 {
					w.t.Errorf("keys %v", w.bucket.keys())
				}
			})
		}
	}
}

func TestStoreTellsNoTimes(t *testing.T) {
	inWorld(t, func(w *world) {
		w.bucket.noClock = true
		for _, text := range []string{"1", "2"} {
			id := w.create(conversation("k"))
			w.put(id, "x", text)
			w.bucket.setFail("put", errors.New("no"))
			ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
			w.bucket.setDown(false)
			time.Sleep(lastDelivery)
			w.has("k", "x="+text)
		}
	})
}

// TestDamagedInTheSpool: what cannot be read is kept aside, and holds up nothing.
func TestDamagedInTheSpool(t *testing.T) {
	for name, damage := range map[string]func(b []byte) []byte{
		"header":  func(b []byte) []byte { b[3] ^= 1; return b },
		"content": func(b []byte) []byte { b[len(b)-20] ^= 1; return b },
		"cut":     func(b []byte) []byte { return b[:len(b)-1] },
		"empty":   func([]byte) []byte { return nil },
	} {
		for _, restored := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				inWorld(t, func(w *world) {
					w.plant("p/workspaces/k.tgz", `{"x":"before"}`, time.Now())
					id := w.create(conversation("k"))
					w.put(id, "x", "X")
					w.bucket.setFail("put", errors.New("no"))
					ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
					bodies, err := filepath.Glob(filepath.Join(w.state, "spool", "*.body"))
					ok(w.t, err)
					data, err := os.ReadFile(bodies[0])
					ok(w.t, err)
					ok(w.t, os.WriteFile(bodies[0], damage(data), 0o600))
					if restored { // it shows when it is restored, or else when it is stored
						id = w.create(conversation("k"))
						ok(w.t, w.run(w.t.Context(), id, "x"))
					}
					w.bucket.setDown(false)
					time.Sleep(lastDelivery)
					synctest.Wait()
					if w.spooled() != 0 {
						w.t.Errorf("%d in the spool", w.spooled())
					}
					w.logged("damaged")
					aside, err := filepath.Glob(filepath.Join(w.state, "kept", "*"))
					ok(w.t, err)
					if len(aside) != 2 {
						w.t.Errorf("kept aside: %v", aside)
					}
					if got := w.bucket.data("p/workspaces/k.tgz"); got != `{"x":"before"}` {
						w.t.Errorf("%q is stored", got)
					}
				})
			})
		}
	}
}

func TestTwoSessionsShareAKey(t *testing.T) {
	inWorld(t, func(w *world) {
		a, b := w.create(conversation("k")), w.create(conversation("k"))
		w.put(a, "x", "A")
		w.put(b, "x", "B")
		w.bucket.set(func() { w.bucket.delay = 5 * time.Second })
		var wg sync.WaitGroup
		for _, id := range []string{a, b} {
			wg.Go(func() { ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{})) })
			time.Sleep(time.Second)
		}
		wg.Wait()
		w.bucket.set(func() { w.bucket.delay = 0 })
		w.has("k", "x=B")
		if !slices.Equal(w.bucket.keys(), []string{"p/workspaces/k.tgz"}) {
			w.t.Errorf("keys %v", w.bucket.keys())
		}
	})
}

func TestRestoreGivesUp(t *testing.T) {
	inWorld(t, func(w *world) {
		// Another session's archive of that key takes for ever.
		a := w.create(conversation("k"))
		w.bucket.set(func() { w.bucket.hang = true })
		w.cfg.ArchiveTimeout = time.Hour
		var wg sync.WaitGroup
		wg.Go(func() { ok(w.t, w.Delete(w.t.Context(), a, DeleteRequest{})) })
		synctest.Wait()
		w.cfg.ArchiveTimeout = time.Minute
		start := time.Now()
		b := w.create(conversation("k"))
		took(w.t, start, w.cfg.QueueTimeout+time.Minute)
		w.bucket.set(func() { w.bucket.hang = false })
		wg.Wait()
		ok(w.t, w.Delete(w.t.Context(), b, DeleteRequest{}))
	})
}
