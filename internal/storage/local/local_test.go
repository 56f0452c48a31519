package local_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/local"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const tempDir = ".aivory-tmp"

func open(t *testing.T, dir string) *local.Store {
	t.Helper()
	s, err := local.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestConformance(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storagetest.Store {
		dir := t.TempDir()
		return storagetest.Store{
			Bucket: open(t, dir),
			// "list" is a directory already where "list/…" are objects.
			Odd:     []string{"list"},
			Uploads: func(t *testing.T) []string { return entries(t, filepath.Join(dir, tempDir)) },
		}
	})
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// outside is a directory beside the store with a file that nobody may touch.
func outside(t *testing.T) (store, secret string) {
	t.Helper()
	top := t.TempDir()
	store = filepath.Join(top, "store")
	secret = filepath.Join(top, "outside", "secret.tgz")
	if err := os.MkdirAll(filepath.Dir(secret), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	return store, secret
}

func wantUntouched(t *testing.T, secret string) {
	t.Helper()
	if got, err := os.ReadFile(secret); err != nil || string(got) != "secret" {
		t.Errorf("the file outside holds %q, %v", got, err)
	}
	if names := entries(t, filepath.Dir(secret)); len(names) != 1 {
		t.Errorf("outside are %q", names)
	}
}

func TestKeysStayInside(t *testing.T) {
	dir, secret := outside(t)
	s := open(t, dir)
	for _, key := range []string{
		"../outside/secret.tgz", "a/../../outside/secret.tgz", secret, "/" + secret, "..", ".", "", "/", "a//b", "a/./b",
		"a/", "./a", "a\x00b", tempDir + "/x", tempDir,
	} {
		if _, err := s.Put(t.Context(), key, strings.NewReader("x"), ""); err == nil {
			t.Errorf("Put(%q) succeeds", key)
		}
		if body, _, err := s.Get(t.Context(), key); !errors.Is(err, storage.ErrNotExist) {
			t.Errorf("Get(%q) = %v, %v", key, body, err)
		}
		if err := s.Delete(t.Context(), key); err != nil {
			t.Errorf("Delete(%q): %v", key, err)
		}
		if err := s.List(t.Context(), key, func(o storage.Object) error { return errors.New(o.Key) }); err != nil {
			t.Errorf("List(%q) gives %v", key, err)
		}
	}
	wantUntouched(t, secret)
}

func TestLinksStayInside(t *testing.T) {
	dir, secret := outside(t)
	s := open(t, dir)
	for name, target := range map[string]string{
		"absolute":  filepath.Dir(secret),
		"relative":  "../outside",
		"dangling":  "../outside/new",
		"file.tgz":  secret,
		"file2.tgz": "../outside/secret.tgz",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"absolute/secret.tgz", "relative/secret.tgz", "relative/new.tgz", "dangling/x"} {
		if _, err := s.Put(t.Context(), key, strings.NewReader("x"), ""); err == nil {
			t.Errorf("Put(%q) succeeds", key)
		}
		if body, _, err := s.Get(t.Context(), key); err == nil {
			data, _ := io.ReadAll(body)
			t.Errorf("Get(%q) gives %q", key, data)
		}
		if err := s.Delete(t.Context(), key); err == nil && strings.Contains(key, "secret") {
			t.Errorf("Delete(%q) succeeds", key)
		}
	}
	if body, _, err := s.Get(t.Context(), "file.tgz"); err == nil {
		data, _ := io.ReadAll(body)
		t.Errorf("Get of a link gives %q", data)
	}
	// A link in the place of an object is replaced or removed itself.
	if _, err := s.Put(t.Context(), "file.tgz", strings.NewReader("mine"), ""); err != nil {
		t.Errorf("Put over a link: %v", err)
	}
	if err := s.Delete(t.Context(), "file2.tgz"); err != nil {
		t.Errorf("Delete of a link: %v", err)
	}
	var listed []string
	if err := s.List(t.Context(), "", func(o storage.Object) error { listed = append(listed, o.Key); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(listed) != 1 || listed[0] != "file.tgz" {
		t.Errorf("listed: %q", listed)
	}
	wantUntouched(t, secret)
}

// A directory that is swapped for a link while an object is written must not
// lead the write outside.
func TestSwappedDirectory(t *testing.T) {
	dir, secret := outside(t)
	s := open(t, dir)
	if _, err := s.Put(t.Context(), "p/a.tgz", strings.NewReader("x"), ""); err != nil {
		t.Fatal(err)
	}
	swap := readerFunc(func([]byte) (int, error) {
		if err := os.Rename(filepath.Join(dir, "p"), filepath.Join(dir, "old")); err != nil {
			t.Error(err)
		}
		if err := os.Symlink(filepath.Dir(secret), filepath.Join(dir, "p")); err != nil {
			t.Error(err)
		}
		return 0, io.EOF
	})
	if _, err := s.Put(t.Context(), "p/secret.tgz", swap, ""); err == nil {
		t.Error("Put through a swapped directory succeeds")
	}
	wantUntouched(t, secret)
	if names := entries(t, filepath.Join(dir, tempDir)); len(names) > 0 {
		t.Errorf("temporary files are left: %q", names)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestSpecialFiles(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo.tgz"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "dir.tgz"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"fifo.tgz", "dir.tgz"} {
		if _, _, err := s.Get(t.Context(), key); !errors.Is(err, storage.ErrNotExist) {
			t.Errorf("Get(%q): %v", key, err)
		}
	}
	if err := s.Delete(t.Context(), "dir.tgz"); err != nil {
		t.Errorf("Delete of a directory: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "dir.tgz")); err != nil {
		t.Errorf("Delete removed a directory: %v", err)
	}
	if _, err := s.Put(t.Context(), "dir.tgz", strings.NewReader("x"), ""); err == nil {
		t.Error("Put over a directory succeeds")
	}
	if err := s.List(t.Context(), "", func(o storage.Object) error { return errors.New(o.Key) }); err != nil {
		t.Errorf("List gives %v", err)
	}
}

// What a crash left goes when the store opens; what another store is writing
// stays.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	temp := filepath.Join(dir, tempDir)
	if err := os.MkdirAll(filepath.Join(temp, "a directory", "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(temp, "link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ABC", "DEF"} {
		if err := os.WriteFile(filepath.Join(temp, name), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first := open(t, dir)
	if names := entries(t, temp); len(names) > 0 {
		t.Errorf("left after opening: %q", names)
	}
	opened := false
	body := readerFunc(func([]byte) (int, error) {
		if !opened {
			open(t, dir)
			opened = true
		}
		return 0, io.EOF
	})
	if _, err := first.Put(t.Context(), "k", body, ""); err != nil {
		t.Errorf("Put while another store opens: %v", err)
	}
	if _, _, err := first.Get(t.Context(), "k"); err != nil {
		t.Error(err)
	}
}

func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "at", "start")
	s := open(t, dir)
	if _, err := s.Put(t.Context(), "p/workspaces/a.tgz", strings.NewReader("x"), ""); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{"": 0o700, "p": 0o700, "p/workspaces": 0o700, "p/workspaces/a.tgz": 0o600} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%q has mode %v, want %v", path, info.Mode().Perm(), want)
		}
	}
	// What the older service wrote is read as it lies there.
	old := filepath.Join(dir, "p", "workspaces", "old.tgz")
	if err := os.WriteFile(old, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	when := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	if err := os.Chtimes(old, when, when); err != nil {
		t.Fatal(err)
	}
	body, obj, err := s.Get(t.Context(), "p/workspaces/old.tgz")
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(body)
	if err := errors.Join(err, body.Close()); err != nil {
		t.Fatal(err)
	}
	if string(data) != "old" || !obj.ModTime.Equal(when) {
		t.Errorf("got %q of %v", data, obj.ModTime)
	}
}

func TestOpenFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := local.Open(file); err == nil {
		_ = s.Close()
		t.Error("a file opens as a store")
	}
}
