package spool

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hjxwz123/aivory-sandbox/internal/session/seal"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

var log = slog.New(slog.DiscardHandler)

const maxBytes = 1 << 20

func openSpool(t testing.TB, dir, key string) *Spool {
	t.Helper()
	s, err := Open(dir, seal.FromSecret(key), maxBytes, log)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func head(key string, at int64) Head {
	return Head{
		Storage: storage.Config{Provider: "s3", S3SecretKey: "SECRET"}, Key: "p/" + key + ".tgz", Stem: key, Time: time.Unix(at, 3).UTC(),
	}
}

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

func add(t testing.TB, s *Spool, h Head, content string) Entry {
	t.Helper()
	e, err := s.Add(h, text(content))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func read(t testing.TB, s *Spool, name string) (string, error) {
	t.Helper()
	body, err := s.Open(name)
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(body)
	if cerr := body.Close(); cerr != nil {
		t.Error(cerr)
	}
	return string(data), err
}

func files(t testing.TB, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestSpool(t *testing.T) {
	dir := t.TempDir()
	s := openSpool(t, dir, "key")
	b := add(t, s, head("b", 20), "younger")
	a := add(t, s, head("a", 10), "older")
	p, err := s.AddPurge(head("c", 30))
	if err != nil || !p.Purge {
		t.Fatal(p, err)
	}
	changed := a.Head
	changed.Key, changed.Lineage = "p/beside.tgz", Lineage{Partial: true, Layers: 2, Bad: []string{"b"}}
	if err := s.Update(a.Name, changed); err != nil {
		t.Fatal(err)
	}
	a.Head = changed
	for range 2 { // and again from the disk
		if d := cmp.Diff([]Entry{a, b, p}, s.Entries()); d != "" {
			t.Error(d)
		}
		if got, ok := s.Get(a.Name); !ok || got.Key != changed.Key {
			t.Errorf("%+v, %v", got, ok)
		}
		if n, used := s.Usage(); n != 3 || used != a.Size+b.Size {
			t.Errorf("%d entries of %d bytes", n, used)
		}
		if got, err := read(t, s, a.Name); got != "older" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		s = openSpool(t, dir, "key")
	}
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if info.Mode().Perm() != 0o600 || bytes.Contains(data, []byte("SECRET")) || bytes.Contains(data, []byte("older")) {
			t.Errorf("%s: mode %v, or it can be read", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, e := range []Entry{a, b, p, a} {
		if err := s.Remove(e.Name); err != nil {
			t.Fatal(err)
		}
	}
	if n, used := s.Usage(); n != 0 || used != 0 || files(t, s.dir) != 0 {
		t.Errorf("%d entries, %d bytes, %d files left", n, used, files(t, s.dir))
	}
	if _, ok := s.Get(a.Name); ok {
		t.Error("still there")
	}
}

func TestFull(t *testing.T) {
	s := openSpool(t, t.TempDir(), "key")
	half := strings.Repeat("x", maxBytes/2)
	first := add(t, s, head("a", 1), half)
	for range 3 {
		_, err := s.Add(head("b", 2), text(half))
		if !errors.Is(err, ErrFull) {
			t.Fatalf("got %v", err)
		}
		if n, used := s.Usage(); n != 1 || used != first.Size || files(t, s.dir) != 2 {
			t.Fatalf("%d entries, %d bytes, %d files", n, used, files(t, s.dir))
		}
	}
	// Two that fit one by one do not both fit.
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed int
	for range 2 {
		wg.Go(func() {
			if _, err := s.Add(head("c", 3), text(half[:maxBytes/3])); errors.Is(err, ErrFull) {
				mu.Lock()
				failed++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if _, used := s.Usage(); failed == 0 || used > maxBytes {
		t.Errorf("%d failed, %d bytes used", failed, used)
	}
	if err := s.Remove(first.Name); err != nil {
		t.Fatal(err)
	}
	add(t, s, head("d", 4), half)
}

func TestWriterFails(t *testing.T) {
	s := openSpool(t, t.TempDir(), "key")
	broken := errors.New("runner is gone")
	_, err := s.Add(head("a", 1), func(w io.Writer) error {
		if _, err := w.Write(make([]byte, 600<<10)); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) || errors.Is(err, ErrWrite) {
		t.Errorf("got %v", err)
	}
	if n, used := s.Usage(); n != 0 || used != 0 || files(t, s.dir) != 0 {
		t.Errorf("%d entries, %d bytes, %d files left", n, used, files(t, s.dir))
	}
}

// TestCutShort ends the process at every step: an entry is there whole or not at
// all, and nothing of it is left in the latter case.
func TestCutShort(t *testing.T) {
	cut := errors.New("cut short")
	for at := range 6 {
		dir := t.TempDir()
		s := openSpool(t, dir, "key")
		steps := 0
		s.step = func(string) error {
			if steps++; steps > at {
				return cut
			}
			return nil
		}
		a, errA := s.Add(head("a", 1), text("A"))
		_, errP := s.AddPurge(head("b", 2))
		errU := s.Update(a.Name, head("u", 1))
		errR := s.Remove(a.Name)
		want := 0
		if errA == nil && errR != nil {
			want++
		}
		if errP == nil {
			want++
		}
		// What the dead process would have cleaned up it leaves behind.
		if errA != nil {
			if err := os.WriteFile(filepath.Join(dir, "spool", "feed.body"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "spool", ".feed.head123"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s = openSpool(t, dir, "key")
		if got := s.Entries(); len(got) != want {
			t.Errorf("at %d: %+v (%v, %v, %v, %v)", at, got, errA, errP, errU, errR)
		}
		for _, e := range s.Entries() {
			if e.Purge {
				continue
			}
			if got, err := read(t, s, e.Name); got != "A" || err != nil {
				t.Errorf("at %d: %q, %v", at, got, err)
			}
			if (e.Stem == "u") != (errU == nil) {
				t.Errorf("at %d: %+v", at, e)
			}
		}
		n, _ := s.Usage()
		bodies := slices.DeleteFunc(s.Entries(), func(e Entry) bool { return e.Purge })
		if got := files(t, s.dir); got != n+len(bodies) {
			t.Errorf("at %d: %d files for %d entries", at, got, n)
		}
		if files(t, s.kept) != 0 {
			t.Errorf("at %d: something was kept aside", at)
		}
	}
}

func TestUnreadableIsKeptAside(t *testing.T) {
	for name, breakIt := range map[string]func(s *Spool, e Entry) error{
		"head flipped": func(s *Spool, e Entry) error {
			return os.WriteFile(s.headPath(e.Name), []byte("AIVORY-SEAL-1\nxxxxxxxx"), 0o600)
		},
		"head huge": func(s *Spool, e Entry) error {
			return os.WriteFile(s.headPath(e.Name), make([]byte, 10*maxHead), 0o600)
		},
		"body missing": func(s *Spool, e Entry) error { return os.Remove(s.bodyPath(e.Name)) },
		"head of another": func(s *Spool, e Entry) error {
			other, err := s.AddPurge(head("x", 9))
			if err != nil {
				return err
			}
			return os.Rename(s.headPath(other.Name), s.headPath(e.Name))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := openSpool(t, dir, "key")
			add(t, s, head("a", 1), "A")
			bad := add(t, s, head("b", 2), "B")
			if err := breakIt(s, bad); err != nil {
				t.Fatal(err)
			}
			s = openSpool(t, dir, "key")
			if got := s.Entries(); len(got) != 1 || got[0].Stem != "a" {
				t.Errorf("%+v", got)
			}
			if files(t, s.kept) == 0 || files(t, s.dir) != 2 {
				t.Errorf("%d files kept aside, %d in the spool", files(t, s.kept), files(t, s.dir))
			}
		})
	}
}

func TestDamagedBody(t *testing.T) {
	s := openSpool(t, t.TempDir(), "key")
	a, b := add(t, s, head("a", 1), "A"), add(t, s, head("b", 2), "B")
	data, err := os.ReadFile(s.bodyPath(a.Name))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.bodyPath(b.Name), data, 0o600); err != nil { // of another entry
		t.Fatal(err)
	}
	if _, err := read(t, s, b.Name); !errors.Is(err, seal.ErrUnreadable) {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(s.bodyPath(a.Name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := read(t, s, a.Name); !errors.Is(err, seal.ErrUnreadable) {
		t.Errorf("got %v", err)
	}
	if err := s.SetAside(b.Name); err != nil {
		t.Fatal(err)
	}
	if n, used := s.Usage(); n != 1 || used != a.Size || files(t, s.kept) != 2 {
		t.Errorf("%d entries, %d bytes, %d kept", n, used, files(t, s.kept))
	}
	if _, err := s.Open(b.Name); err == nil {
		t.Error("opened what was set aside")
	}
}

func TestChangedKey(t *testing.T) {
	dir := t.TempDir()
	add(t, openSpool(t, dir, "key"), head("a", 1), "A")
	other := openSpool(t, dir, "other")
	if n, _ := other.Usage(); n != 0 || files(t, other.kept) != 2 {
		t.Errorf("%d entries, %d kept", n, files(t, other.kept))
	}
	for _, f := range []string{"*.head", "*.body"} { // moved back by hand
		paths, err := filepath.Glob(filepath.Join(other.kept, f))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(paths[0], filepath.Join(other.dir, filepath.Base(paths[0]))); err != nil {
			t.Fatal(err)
		}
	}
	s := openSpool(t, dir, "key")
	if got, err := read(t, s, s.Entries()[0].Name); got != "A" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestDiskFails(t *testing.T) {
	s := openSpool(t, t.TempDir(), "key")
	e := add(t, s, head("a", 1), "A")
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Add(head("b", 2), text("B")); !errors.Is(err, ErrWrite) {
		t.Errorf("got %v", err)
	}
	if _, err := s.AddPurge(head("b", 2)); !errors.Is(err, ErrWrite) {
		t.Errorf("got %v", err)
	}
	if err := s.Update(e.Name, head("c", 1)); !errors.Is(err, ErrWrite) {
		t.Errorf("got %v", err)
	}
	if got, _ := s.Get(e.Name); got.Stem != "a" {
		t.Errorf("changed to %+v", got)
	}
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, seal.FromSecret("key"), 1, log); err == nil {
		t.Error("opened a file")
	}
}

func FuzzDecodeHead(f *testing.F) {
	plain, err := json.Marshal(head("a", 1))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain)
	f.Add([]byte(`{"key":"a","stem":"a","time":"2000-01-01T00:00:00Z","purge":true}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if h, err := decodeHead(data); err == nil && (h.Key == "" || h.Stem == "" || h.Time.IsZero()) {
			t.Errorf("took %+v", h)
		}
	})
}
