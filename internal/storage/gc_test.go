package storage_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

func ago(seconds int) time.Time { return time.Now().Add(-time.Duration(seconds) * time.Second) }

func TestGC(t *testing.T) {
	m := newMemory()
	for key, at := range map[string]time.Time{
		"gc/workspaces/old.tgz": ago(9000), "gc/workspaces/new.tgz": ago(5), "gc/workspaces/old.txt": ago(9000),
		"gc/workspaces/sub/old2.tgz": ago(9000), "gc/workspaces/unknown.tgz": {}, "gc/workspaces/future.tgz": ago(-9000),
		"gc/mineru/old.pdf": ago(9000), "gc/mineru/new.pdf": ago(5), "gc/mineru/unknown.pdf": {},
		"gc/other/old.tgz": ago(9000), "gcx/workspaces/old.tgz": ago(9000), "gc/old.tgz": ago(9000), "workspaces/old.tgz": ago(9000),
	} {
		m.plant(key, "12345", at)
	}
	for _, none := range []struct {
		cfg storage.Config
		age int64
	}{
		{mem("gc/"), 0}, {mem("gc/"), -1}, {mem("gc/"), math.MinInt64}, {mem("../x"), 0},
		{storage.Config{}, 5}, {storage.Config{Provider: "x"}, 5}, {storage.Config{Provider: "none", Prefix: "../x"}, 5},
	} {
		if got, err := service(m).GC(t.Context(), none.cfg, none.age); err != nil || got != (storage.GCResult{}) {
			t.Errorf("GC(%v, %d) = %+v, %v, want zeros", none.cfg, none.age, got, err)
		}
	}
	if calls := m.called(); len(calls) > 0 {
		t.Errorf("the store was asked: %q", calls)
	}
	for _, huge := range []int64{math.MaxInt64, 1 << 40, time.Now().Unix(), time.Now().Unix() + 1, 9100} {
		if got, err := service(m).GC(t.Context(), mem("gc/"), huge); err != nil || got != (storage.GCResult{Scanned: 9}) {
			t.Errorf("GC of what is %d seconds old = %+v, %v", huge, got, err)
		}
	}
	got, err := service(m).GC(t.Context(), mem("gc/"), 3600)
	if want := (storage.GCResult{Deleted: 3, Scanned: 9, FreedBytes: 15}); err != nil || got != want {
		t.Errorf("GC = %+v, %v, want %+v", got, err, want)
	}
	for _, key := range []string{"gc/workspaces/old.tgz", "gc/workspaces/sub/old2.tgz", "gc/mineru/old.pdf"} {
		if slices.Contains(m.keys(), key) {
			t.Errorf("%s is left", key)
		}
	}
	if len(m.keys()) != 10 {
		t.Errorf("left: %q", m.keys())
	}
	_, err = service(m).GC(t.Context(), mem("../x"), 5)
	wantFault(t, err, fault.Invalid, "invalid storage key")
	_, err = service(m).GC(t.Context(), storage.Config{Provider: "broken"}, 5)
	wantFault(t, err, fault.Invalid, "invalid storage configuration")
}

// A workspace that is stored anew while the listing is looked through stays.
func TestGCSparesRenewedArchive(t *testing.T) {
	m := newMemory()
	m.plant("p/workspaces/a.tgz", "old", ago(9000))
	m.plant("p/workspaces/b.tgz", "old", ago(9000))
	m.fail = func(call string) error {
		if call == "list p/workspaces/a.tgz" {
			m.plant("p/workspaces/a.tgz", "renewed", time.Now())
		}
		return nil
	}
	got, err := service(m).GC(t.Context(), mem("p"), 3600)
	if err != nil || got.Deleted != 1 || got.FreedBytes != 3 {
		t.Errorf("GC = %+v, %v", got, err)
	}
	if left := m.keys(); !slices.Equal(left, []string{"p/workspaces/a.tgz"}) {
		t.Errorf("left: %q", left)
	}
}

func TestGCFails(t *testing.T) {
	for _, at := range []string{"list p/workspaces/", "list p/mineru/", "list p/workspaces/5.tgz", "delete p/workspaces/5.tgz", "delete p/mineru/5"} {
		m := newMemory()
		for i := range 50 {
			m.plant(fmt.Sprintf("p/workspaces/%d.tgz", i), "x", ago(9000))
			m.plant(fmt.Sprintf("p/mineru/%d", i), "x", ago(9000))
		}
		broken := errors.New("broken")
		m.fail = func(call string) error {
			if call == at {
				return broken
			}
			return nil
		}
		_, err := service(m).GC(t.Context(), mem("p"), 60)
		if !errors.Is(err, broken) || !fault.Is(err, fault.Upstream) {
			t.Errorf("GC that fails at %q: %v", at, err)
		}
	}
}

func TestGCIsCancelled(t *testing.T) {
	m := newMemory()
	for i := range 100 {
		m.plant(fmt.Sprintf("p/workspaces/%02d.tgz", i), "x", ago(9000))
	}
	gone := errors.New("client went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	m.listed = func(key string) {
		if strings.HasSuffix(key, "/30.tgz") {
			cancel(gone)
		}
	}
	if _, err := service(m).GC(ctx, mem("p"), 60); !errors.Is(err, gone) {
		t.Errorf("GC that is cancelled: %v", err)
	}
	if len(m.keys()) == 0 {
		t.Error("everything is deleted all the same")
	}
}
