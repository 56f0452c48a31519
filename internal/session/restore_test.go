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

// TestArchiveThatCannotBeRestored is kept beside its successor, whether or not
// the store is there when that comes.
func TestArchiveThatCannotBeRestored(t *testing.T) {
	for name, c := range map[string]struct {
		data string
		call string // that fails while it is restored
	}{
		"damaged":     {`{"x":"orig`, ""},
		"too large":   {`{"x":"` + strings.Repeat("x", 2<<20) + `"}`, ""},
		"agent fails": {`{"x":"original"}`, "unpack"},
	} {
		for _, down := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				inWorld(t, func(w *world) {
					w.plant("p/workspaces/k.tgz", c.data, time.Now())
					w.engine.setFail(c.call, errors.New("no"))
					id := w.create(conversation("k"))
					w.engine.setFail(c.call, nil)
					w.logged("cannot restore a workspace from an archive")
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
					w.put(id, "y", "Z")
					ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
					w.has("k", "y=Z")
					w.kept()
				})
			})
		}
	}
}

// TestStoreCannotBeRead: a session that begins while its store cannot be read
// sees nothing of what is there, and hides nothing of it from its successors.
func TestStoreCannotBeRead(t *testing.T) {
	for _, call := range []string{"get", "read"} {
		for _, down := range []bool{false, true} { // also when it ends
			for _, again := range []bool{false, true} { // twice
				inWorld(t, func(w *world) {
					w.plant("p/workspaces/k.tgz", `{"x":"original","y":"original"}`, time.Now())
					begin := func(file string) {
						w.bucket.setFail(call, errors.New("no"))
						id := w.create(conversation("k"))
						w.bucket.setFail(call, nil)
						w.logged("cannot restore a workspace")
						w.put(id, file, "new")
						if down {
							w.bucket.setDown(true)
						}
						w.restart()
						ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
						if down {
							w.restart()
							w.bucket.setDown(false)
							time.Sleep(lastDelivery)
							synctest.Wait()
						}
						time.Sleep(time.Second)
					}
					begin("y")
					want := "x=original y=new"
					if again {
						begin("z")
						want = "x=original y=new z=new"
					}
					w.has("k", want)
					if n := len(w.bucket.keys()); n < 2 {
						w.t.Errorf("keys %v", w.bucket.keys())
					}
					// A session that saw it all puts it together.
					id := w.create(conversation("k"))
					w.put(id, "x", "newer")
					ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
					w.has("k", strings.Replace(want, "x=original", "x=newer", 1))
					if keys := w.bucket.keys(); !slices.Equal(keys, []string{"p/workspaces/k.tgz"}) {
						w.t.Errorf("keys %v", keys)
					}
				})
			}
		}
	}
}

// TestStoreIsBackBeforeTheSpoolIsDelivered: what is stored lies below what is in
// the spool.
func TestStoreIsBackBeforeTheSpoolIsDelivered(t *testing.T) {
	inWorld(t, func(w *world) {
		w.plant("p/workspaces/k.tgz", `{"x":"original","y":"original"}`, time.Now())
		w.bucket.setDown(true)
		for _, text := range []string{"1", "2"} {
			id := w.create(conversation("k"))
			w.put(id, "y", text)
			ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
			w.has("k", "y="+text)
		}
		w.bucket.setDown(false)
		w.bucket.setFail("put", errors.New("no"))
		id := w.create(conversation("k"))
		w.put(id, "z", "3")
		w.bucket.setDown(false)
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		w.has("k", "x=original y=2 z=3")
		time.Sleep(lastDelivery)
		if keys := w.bucket.keys(); !slices.Equal(keys, []string{"p/workspaces/k.tgz"}) || w.spooled() != 0 {
			w.t.Errorf("keys %v, %d in the spool", keys, w.spooled())
		}
	})
}

// TestLayers looks at layers of all kinds on one base.
func TestLayers(t *testing.T) {
	inWorld(t, func(w *world) {
		now := time.Now()
		w.plant("p/workspaces/k.tgz", `{"base":"b","x":"base"}`, now)
		w.plant("p/workspaces/k.1.tgz", `{"x":"stale","stale":"s"}`, now.Add(-time.Second))
		w.plant("p/workspaces/k.2.tgz", `{"x":"da`, now.Add(time.Second))
		w.plant("p/workspaces/k.3.tgz", `bomb`, now.Add(time.Second))
		w.plant("p/workspaces/k.4.tgz", `{"x":"layer"}`, now.Add(time.Second))
		id := w.create(conversation("k"))
		if got := w.files(id); got != "base=b x=layer" {
			w.t.Errorf("files %q", got)
		}
		w.put(id, "y", "Y")
		w.plant("p/workspaces/k.5.tgz", `{"x":"later"}`, now.Add(time.Second)) // of somebody else
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		w.has("k", "base=b x=layer y=Y")
		var kept []string
		for _, key := range w.bucket.keys() {
			if key != "p/workspaces/k.tgz" {
				kept = append(kept, w.bucket.data(key))
			}
		}
		slices.Sort(kept)
		if d := []string{`bomb`, `{"x":"da`, `{"x":"later"}`}; !slices.Equal(kept, d) {
			w.t.Errorf("kept beside: %q", kept)
		}
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{Discard: true, ArchiveKey: "k", Storage: conversation("k").Storage}))
		if keys := w.bucket.keys(); len(keys) != 0 {
			w.t.Errorf("keys %v", keys)
		}
	})
}

// TestNothingButBombs ends with a session without files.
func TestNothingButBombs(t *testing.T) {
	inWorld(t, func(w *world) {
		for n := range 8 {
			w.plant((&target{key: "p/workspaces/k.tgz"}).layer(n), "bomb", time.Now())
		}
		w.put(w.create(conversation("k")), "x", "X")
		synctest.Wait()
		if w.engine.count() != 1 {
			w.t.Errorf("%d runners", w.engine.count())
		}
	})
}

func TestTooManyLayers(t *testing.T) {
	inWorld(t, func(w *world) {
		for n := range maxLayers + 1 {
			w.plant((&target{key: "p/workspaces/k.tgz"}).layer(n), `{"x":"X"}`, time.Now())
		}
		w.bucket.setFail("get", errors.New("no"))
		id := w.create(conversation("k"))
		w.put(id, "y", "Y")
		w.bucket.setFail("get", nil)
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		w.has("k", "x=X y=Y") // from the spool
		time.Sleep(time.Hour)
		id = w.create(conversation("k"))
		w.put(id, "z", "Z")
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		w.has("k", "x=X y=Y z=Z")
		if keys := w.bucket.keys(); len(keys) != 1 || w.spooled() != 0 {
			w.t.Errorf("keys %v, %d in the spool", keys, w.spooled())
		}
	})
}

// TestBaseWasCollected: layers outlive it.
func TestBaseWasCollected(t *testing.T) {
	inWorld(t, func(w *world) {
		w.plant("p/workspaces/k.1.tgz", `{"x":"1"}`, time.Now())
		w.has("k", "x=1")
		w.bucket.setFail("get", errors.New("no"))
		id := w.create(conversation("k"))
		w.put(id, "y", "Y")
		w.bucket.setFail("get", nil)
		time.Sleep(time.Second)
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		w.has("k", "x=1 y=Y")
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
					if got := w.bucket.data("p/workspaces/k.tgz"); got != `{"x":"old"}` {
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
