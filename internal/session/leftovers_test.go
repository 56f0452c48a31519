package session

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// inSpool archives "x" of a conversation into the spool, for its store is down.
func (w *world) inSpool() {
	w.t.Helper()
	id := w.create(conversation("k"))
	w.put(id, "x", "old")
	w.bucket.setDown(true)
	ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
	if w.spooled() != 1 {
		w.t.Fatalf("%d in the spool", w.spooled())
	}
	time.Sleep(3 * time.Second)
}

// notPacked ends a session of a conversation whose engine does not hand out its
// workspace, with records that are complete.
func (w *world) notPacked(text string) {
	w.t.Helper()
	w.restart()
	id := w.create(conversation("k"))
	w.put(id, "x", text)
	w.engine.setFail("pack", errors.New("engine restarts"))
	ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
}

// TestKilledUploadLeavesNothing: whatever becomes of an archive whose upload an
// earlier process was killed in, the parts of that upload are removed.
func TestKilledUploadLeavesNothing(t *testing.T) {
	const key = "p/workspaces/k.tgz"
	for name, end := range map[string]func(w *world){
		"stored": func(w *world) { w.inSpool(); w.restart() },
		"a younger one is stored": func(w *world) {
			w.inSpool()
			w.plant(key, `{"x":"young"}`, time.Now())
			w.restart()
		},
		"damaged": func(w *world) {
			w.inSpool()
			cfg := w.cfg
			w.stop()
			files, err := filepath.Glob(filepath.Join(w.state, "spool", "*.body"))
			if err != nil || len(files) == 0 {
				w.t.Fatalf("%v, %v", files, err)
			}
			for _, f := range files {
				data, err := os.ReadFile(f)
				ok(w.t, err)
				data[len(data)-1] ^= 1
				ok(w.t, os.WriteFile(f, data, 0o600))
			}
			w.start(cfg)
		},
		"discarded": func(w *world) {
			w.inSpool()
			w.restart()
			ok(w.t, w.Delete(w.t.Context(), newID(), DeleteRequest{Discard: true, ArchiveKey: "k", Storage: conversation("k").Storage}))
		},
		"superseded in the spool": func(w *world) {
			w.plant(key, `{"x":"old"}`, time.Now())
			w.bucket.setDown(true)
			layer := w.create(conversation("k")) // cannot see what there is
			w.put(layer, "y", "Y")
			ok(w.t, w.Delete(w.t.Context(), layer, DeleteRequest{}))
			w.bucket.halves["p/workspaces/k.1.tgz"] = true
			w.restart()
			w.bucket.setFail("get", nil)
			id := w.create(conversation("k"))
			w.put(id, "z", "Z")
			ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
			w.restart()
		},
		"no longer the first": func(w *world) {
			w.restart() // records are complete from here on
			id := w.create(conversation("k"))
			w.engine.setFail("pack", errors.New("engine restarts"))
			ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
			w.plant(key, `{"x":"young"}`, time.Now())
			w.restart()
			w.engine.setFail("pack", nil)
		},
		"its runner is gone": func(w *world) {
			w.notPacked("old")
			w.engine.set(func() { clear(w.engine.containers) })
			w.engine.setFail("pack", nil)
			w.restart()
		},
		"its runner does not hand it out": func(w *world) {
			w.notPacked("old")
			w.restart()
		},
		"refused everywhere": func(w *world) {
			w.notPacked(strings.Repeat("x", spoolBytes))
			w.engine.setFail("pack", nil)
			w.restart()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.bucket.halves[key] = true
				end(w)
				w.bucket.setDown(false)
				time.Sleep(time.Hour)
				synctest.Wait()
				if len(w.bucket.halves) != 0 || w.spooled() != 0 || w.used() != 0 {
					t.Errorf("left over: %v, %d in the spool, %d places\n%s", w.bucket.halves, w.spooled(), w.used(), w.logs)
				}
			})
		})
	}
}

// TestDiscardWhileStoringFromTheSpool: a copy that is kept beside is discarded
// while it is on its way to the store.
func TestDiscardWhileStoringFromTheSpool(t *testing.T) {
	inWorld(t, func(w *world) {
		w.inSpool()
		w.engine.setFail("unpack", errors.New("no"))
		id := w.create(conversation("k"))
		w.engine.setFail("unpack", nil)
		w.put(id, "y", "Y")
		ok(w.t, w.Delete(w.t.Context(), id, DeleteRequest{}))
		for _, e := range w.spool.Entries() {
			w.bucket.halves[e.Key] = true
		}
		w.restart()
		w.bucket.set(func() { w.bucket.delay = time.Minute; clear(w.bucket.fail) })
		time.Sleep(30 * time.Second) // both are waiting, one after the other
		if w.spooled() != 2 {
			w.t.Fatalf("%d in the spool", w.spooled())
		}
		w.bucket.setFail("delete", errors.New("no"))
		w.bucket.setFail("leftovers", errors.New("no"))
		req := DeleteRequest{Discard: true, ArchiveKey: "k", Storage: conversation("k").Storage}
		ok(w.t, w.Delete(w.t.Context(), newID(), req))
		time.Sleep(5 * time.Minute) // the copy is stored meanwhile
		w.bucket.set(func() { w.bucket.delay = 0; clear(w.bucket.fail) })
		w.restart()
		time.Sleep(time.Hour)
		synctest.Wait()
		if keys := w.bucket.keys(); len(keys) != 0 || w.spooled() != 0 || len(w.bucket.halves) != 0 {
			w.t.Errorf("left in the store %v, some of %v, %d in the spool, log\n%s", keys, w.bucket.halves, w.spooled(), w.logs)
		}
	})
}

// TestUnusedSessionHarmsNoneThatEnds: a session in which nothing was done does not
// supersede one whose workspace is still to be had from its runner.
func TestUnusedSessionHarmsNoneThatEnds(t *testing.T) {
	inWorld(t, func(w *world) {
		used, unused := w.create(conversation("k")), w.create(conversation("k"))
		w.put(used, "x", "X")
		w.engine.setFail("pack", errors.New("engine restarts"))
		ok(w.t, w.Delete(w.t.Context(), used, DeleteRequest{}))
		w.engine.setFail("pack", nil)
		ok(w.t, w.Delete(w.t.Context(), unused, DeleteRequest{}))
		time.Sleep(time.Minute)
		synctest.Wait()
		w.has("k", "x=X")
	})
}

// TestLayerThatCouldNotBeRemoved hides nothing of the base that has replaced it,
// however coarse the store's clock is.
func TestLayerThatCouldNotBeRemoved(t *testing.T) {
	inWorld(t, func(w *world) {
		now := time.Now()
		w.plant("p/workspaces/k.tgz", `{"x":"new"}`, now)
		w.plant("p/workspaces/k.1.tgz", `{"x":"discarded"}`, now)
		w.has("k", "x=new")
	})
}
