package filestore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hjxwz123/aivory-sandbox/internal/session"
	"github.com/hjxwz123/aivory-sandbox/internal/session/seal"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

var log = slog.New(slog.DiscardHandler)

func openStore(t testing.TB, dir, key string) *Store {
	t.Helper()
	s, err := Open(dir, seal.FromSecret(key), log)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func record(c byte) session.Record {
	return session.Record{
		ID: strings.Repeat(string(c), 32), Driver: "docker", Handle: "h", Phase: session.PhaseLive,
		Created: time.Unix(1700000000, 0).UTC(), LastUse: time.Unix(1700000100, 5).UTC(), IdleTTL: time.Minute,
		ArchiveKey: "k", Storage: &storage.Config{Provider: "s3", S3SecretKey: "SECRET"}, Used: true,
	}
}

func load(t testing.TB, s *Store) (map[string]session.Record, bool) {
	t.Helper()
	records, complete, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byID := map[string]session.Record{}
	for _, r := range records {
		byID[r.ID] = r
	}
	return byID, complete
}

func TestRecords(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, "key")
	if got, complete := load(t, s); len(got) != 0 || complete {
		t.Errorf("a new store holds %v, complete %v", got, complete)
	}
	a, b := record('a'), record('b')
	for _, r := range []session.Record{a, b} {
		if err := s.Save(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	b.Phase, b.Reaped, b.Ended = session.PhaseEnding, true, time.Unix(1700000200, 0).UTC()
	if err := s.Save(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if err := s.SetComplete(t.Context()); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, "key")
	got, complete := load(t, s)
	if d := cmp.Diff(map[string]session.Record{a.ID: a, b.ID: b}, got); d != "" || !complete {
		t.Errorf("complete %v, %s", complete, d)
	}
	for range 2 {
		if err := s.Delete(t.Context(), a.ID); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := load(t, s); len(got) != 1 {
		t.Errorf("%d records", len(got))
	}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		want := os.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		}
		if path != dir && info.Mode().Perm() != want {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		if !d.IsDir() {
			if data, err := os.ReadFile(path); err != nil || bytes.Contains(data, []byte("SECRET")) || bytes.Contains(data, []byte("docker")) {
				t.Errorf("%s can be read: %v", path, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestUnreadableIsKeptAside(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, "key")
	good, bad := record('a'), record('b')
	for _, r := range []session.Record{good, bad} {
		if err := s.Save(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SetComplete(t.Context()); err != nil {
		t.Fatal(err)
	}
	damage := func(id string, change func([]byte) []byte) {
		data, err := os.ReadFile(s.path(id))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.path(id), change(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for name, change := range map[string]func([]byte) []byte{
		"flipped":        func(b []byte) []byte { b[40] ^= 1; return b },
		"cut":            func(b []byte) []byte { return b[:len(b)-1] },
		"empty":          func([]byte) []byte { return nil },
		"of another":     func([]byte) []byte { data, _ := os.ReadFile(s.path(good.ID)); return data },
		"huge":           func([]byte) []byte { return make([]byte, 10*maxRecord) },
		"other contents": func([]byte) []byte { data, _ := s.key.Seal([]byte(`{"id":1}`), sealContext(bad.ID)); return data },
	} {
		if err := s.Save(t.Context(), bad); err != nil {
			t.Fatal(err)
		}
		if err := s.SetComplete(t.Context()); err != nil {
			t.Fatal(err)
		}
		damage(bad.ID, change)
		got, complete := load(t, s)
		if _, found := got[good.ID]; len(got) != 1 || !found || complete {
			t.Errorf("%s: %d records, complete %v", name, len(got), complete)
		}
		n++
		if kept, _ := os.ReadDir(s.kept); len(kept) != n {
			t.Errorf("%s: %d files kept aside, want %d", name, len(kept), n)
		}
		// That some are missing is known to the next start too.
		if got, complete := load(t, s); len(got) != 1 || complete {
			t.Errorf("%s, again: %d records, complete %v", name, len(got), complete)
		}
	}
}

func TestChangedKey(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, "key")
	if err := s.Save(t.Context(), record('a')); err != nil {
		t.Fatal(err)
	}
	if err := s.SetComplete(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := openStore(t, dir, "other")
	if got, complete := load(t, other); len(got) != 0 || complete {
		t.Errorf("%v, complete %v", got, complete)
	}
	// Moved back by hand, it is read with the right key.
	kept, err := filepath.Glob(filepath.Join(dir, "kept", "*.session.*"))
	if err != nil || len(kept) != 1 {
		t.Fatal(kept, err)
	}
	if err := os.Rename(kept[0], s.path(record('a').ID)); err != nil {
		t.Fatal(err)
	}
	if got, _ := load(t, s); len(got) != 1 {
		t.Errorf("%d records", len(got))
	}
}

// TestCutShortWhileSettingAside: whenever the process ends in between, the next
// one knows that records are missing.
func TestCutShortWhileSettingAside(t *testing.T) {
	for at := 1; at <= 3; at++ {
		dir := t.TempDir()
		s := openStore(t, dir, "key")
		for _, c := range []byte("ab") {
			if err := s.Save(t.Context(), record(c)); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.SetComplete(t.Context()); err != nil {
			t.Fatal(err)
		}
		steps := 0
		other := openStore(t, dir, "other")
		other.step = func(string) error {
			if steps++; steps >= at {
				return errors.New("cut short")
			}
			return nil
		}
		if _, _, err := other.Load(t.Context()); err == nil {
			t.Fatal("not cut short")
		}
		other.step = func(string) error { return nil }
		if got, complete := load(t, other); len(got) != 0 || complete {
			t.Errorf("at %d: %v, complete %v", at, got, complete)
		}
		if kept, _ := os.ReadDir(other.kept); len(kept) != 2 {
			t.Errorf("at %d: %d kept", at, len(kept))
		}
	}
}

func TestForeignAndHalfWrittenFiles(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, "key")
	for _, name := range []string{".x.session123", "README", "lost+found"} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := load(t, s); len(got) != 0 {
		t.Errorf("%v", got)
	}
	left, _ := os.ReadDir(s.dir)
	if len(left) != 2 {
		t.Errorf("%v", left)
	}
}

func TestNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, seal.FromSecret("key"), log); err == nil {
		t.Error("opened a file")
	}
	s := openStore(t, t.TempDir(), "key")
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(t.Context(), record('a')); err == nil {
		t.Error("saved nowhere")
	}
	if err := s.SetComplete(t.Context()); err == nil {
		t.Error("complete nowhere")
	}
	if _, _, err := s.Load(t.Context()); err == nil {
		t.Error("loaded from nowhere")
	}
}

func TestConcurrentSaves(t *testing.T) {
	s := openStore(t, t.TempDir(), "key")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r := record("0123456789abcdef"[i])
			for n := range 5 {
				r.Handle = fmt.Sprint(n)
				if err := s.Save(t.Context(), r); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got, _ := load(t, s)
	for _, r := range got {
		if r.Handle != "4" {
			t.Errorf("an older record: %v", r.Handle)
		}
	}
	if len(got) != 8 {
		t.Errorf("%d records", len(got))
	}
}

func FuzzDecode(f *testing.F) {
	plain, err := json.Marshal(record('a'))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain)
	f.Add([]byte(`{"id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","phase":"ending","handle":"h","idle_ttl":1}`))
	f.Add([]byte(`{"id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","phase":"live","handle":"h","idle_ttl":1,"storage":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		id := strings.Repeat("a", 32)
		r, err := decode(id, data)
		if err == nil && (r.ID != id || r.Handle == "" || r.IdleTTL <= 0 || r.Phase == "" || r.Phase == session.PhaseEnding && r.Storage == nil) {
			t.Errorf("took %+v", r)
		}
	})
}

func BenchmarkSave(b *testing.B) {
	s := openStore(b, b.TempDir(), "key")
	for b.Loop() {
		if err := s.Save(b.Context(), record('a')); err != nil {
			b.Fatal(err)
		}
	}
}
