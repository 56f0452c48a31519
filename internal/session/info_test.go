package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/observe"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

func TestInfo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.PoolSize = 1
		w := newWorld(t, cfg, nil)
		defer w.stop()
		time.Sleep(time.Minute) // the pool is full
		if got := w.Sessions(); len(got) != 0 {
			t.Errorf("before any was made: %+v", got)
		}
		first := w.create(conversation("conv"))
		began := time.Now()
		time.Sleep(time.Second)
		second := w.create(CreateRequest{IdleTTL: seconds(600)})
		all := w.Sessions()
		if len(all) != 2 || all[0].ID != first || all[1].ID != second {
			t.Fatalf("listed: %+v", all)
		}
		expected := Info{ID: first, State: "ready", Created: began, IdleTTL: 30 * time.Minute, IdleLeft: 30*time.Minute - time.Second, ArchiveKey: "conv", Provider: "s3"}
		if all[0] != expected {
			t.Errorf("the first is %+v, want %+v", all[0], expected)
		}
		if strings.Contains(fmt.Sprintf("%+v", all), "SECRET") {
			t.Error("a credential is listed")
		}

		done := make(chan error, 1)
		go func() { done <- w.run(t.Context(), second, "sleep 10s") }()
		time.Sleep(5 * time.Second)
		info, err := w.Session(second)
		if err != nil || info.State != "busy" || info.IdleLeft != 10*time.Minute {
			t.Errorf("in a run: %+v, %v", info, err)
		}
		ok(t, <-done)
		ok(t, w.run(t.Context(), second, "sleep 4s"))
		time.Sleep(time.Minute)
		info, err = w.Session(second) // twice: looking is no use
		ok(t, err)
		info, err = w.Session(second)
		if usage := (Usage{Runs: 2, Wall: 14 * time.Second, CPU: 7 * time.Second, MaxRSS: 10 << 20}); err != nil || info.Usage != usage || info.IdleLeft != 9*time.Minute {
			t.Errorf("after two runs: %+v, %v", info, err)
		}

		go func() { done <- w.run(t.Context(), first, "sleep 10s") }()
		time.Sleep(time.Second)
		deleted := make(chan error, 1)
		go func() { deleted <- w.Delete(t.Context(), first, DeleteRequest{}) }()
		time.Sleep(time.Second)
		if info, err = w.Session(first); err != nil || info.State != "terminating" || info.IdleLeft != 0 {
			t.Errorf("while a DELETE waits: %+v, %v", info, err)
		}
		ok(t, <-done)
		ok(t, <-deleted)
		_, err = w.Session(first)
		want(t, err, fault.NotFound, DetailNotFound)
		_, err = w.Session("x")
		want(t, err, fault.Invalid, DetailInvalidID)
	})
}

// TestInfoNamesStorageThatWorks: a block that keeps nothing is as good as none, and
// what works is a matter of the process.
func TestInfoNamesStorageThatWorks(t *testing.T) {
	inWorld(t, func(w *world) {
		w.restart() // records are complete from here on
		for provider, want := range map[string]string{"local": "local", "s3": "s3", "Local": "", "broken": ""} {
			id := w.create(CreateRequest{ArchiveKey: "k", Storage: &storage.Config{Provider: provider}})
			info, err := w.Session(id)
			ok(w.t, err)
			if info.Provider != want {
				w.t.Errorf("%s: %+v", provider, info)
			}
		}
		if info, err := w.Session(w.create(CreateRequest{Storage: &storage.Config{Provider: "local", Prefix: "../x"}})); err != nil || info.Provider != "" {
			w.t.Errorf("a prefix that leads out: %+v, %v", info, err)
		}
		for _, fail := range []error{errors.New("there is no local storage"), nil} {
			w.bucket.setFail("open", fail)
			w.restart()
			named := 0
			for _, info := range w.Sessions() {
				if info.Provider != "" {
					named++
				}
			}
			if want := map[bool]int{true: 2}[fail == nil]; named != want {
				w.t.Errorf("after a restart, opening: %v: %d sessions with storage, wanted %d", fail, named, want)
			}
		}
	})
}

func TestWorkIsObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.PoolSize = 1
		cfg.MaxExecs = 1
		w := newWorld(t, cfg, nil)
		defer w.stop()
		ctx := observe.With(t.Context(), &w.seen)
		time.Sleep(time.Minute)
		id, err := w.Create(ctx, CreateRequest{})
		ok(t, err)
		if got := w.seen.take(observe.Create); len(got) != 1 || got[0].Attr("session").String() != id || !got[0].Attr("pooled").Bool() || got[0].Err != nil {
			t.Errorf("a creation: %+v", got)
		}
		other, err := w.Create(ctx, CreateRequest{})
		ok(t, err)
		w.seen.take(observe.Wait)
		done := make(chan error, 1)
		go func() { done <- w.run(ctx, other, "sleep 3s") }()
		time.Sleep(time.Second)
		ok(t, w.run(ctx, id, "sleep 1s"))
		ok(t, <-done)
		var waited time.Duration
		for _, wait := range w.seen.take(observe.Wait) {
			if wait.Attr("queue").String() == observe.QueueExec {
				waited += wait.Duration()
			}
		}
		if waited != 2*time.Second {
			t.Errorf("waited for a slot for %v", waited)
		}
		runs := w.seen.take(observe.Run)
		if len(runs) != 2 || runs[1].Attr("session").String() != id || runs[1].Attr("reason").String() != "exit" ||
			runs[1].Attr("wall").Duration() != time.Second || runs[1].Duration() != time.Second {
			t.Errorf("runs: %+v", runs)
		}
		if err := w.run(ctx, id, "lost"); err == nil {
			t.Error("a lost run is no error")
		}
		if runs := w.seen.take(observe.Run); len(runs) != 1 || runs[0].Err == nil {
			t.Errorf("a lost run: %+v", runs)
		}
		ok(t, w.WriteFile(ctx, id, "a", strings.NewReader("abc"), 3))
		body, _, err := w.ReadFile(ctx, id, "a")
		ok(t, err)
		time.Sleep(time.Second)
		ok(t, body.Close())
		files := w.seen.take(observe.File)
		if len(files) != 2 || files[0].Attr("operation").String() != "write" || files[1].Attr("operation").String() != "read" || files[1].Duration() != time.Second {
			t.Errorf("files: %+v", files)
		}
		ok(t, w.Delete(ctx, id, DeleteRequest{}))
		ok(t, w.Delete(ctx, other, DeleteRequest{Discard: true}))
		gone, err := w.Create(ctx, CreateRequest{})
		ok(t, err)
		if err := w.run(context.WithoutCancel(ctx), gone, "vanish 1s"); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("a runner that vanished: %v", err)
		}
		idle, err := w.Create(ctx, CreateRequest{IdleTTL: seconds(1)})
		ok(t, err)
		time.Sleep(time.Minute)
		causes := map[string]string{}
		for _, end := range w.seen.take(observe.End) {
			causes[end.Attr("session").String()] = end.Attr("cause").String()
		}
		for id, cause := range map[string]string{id: "deleted", other: "discarded", gone: "lost", idle: "expired"} {
			if causes[id] != cause {
				t.Errorf("%s: ended by being %q, not %q", id, causes[id], cause)
			}
		}
	})
}
