//go:build integration

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/config"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

func TestIdleSessionIsKept(t *testing.T) {
	dir := t.TempDir()
	service, store := startService(t, "SANDBOX_LOCAL_STORAGE_DIR="+dir, "SANDBOX_POOL_SIZE=0"), localStore(t, dir)
	const ttl = 2 * time.Second
	s := service.open(t, "idle", 2, store.block)
	r := s.run(t, "import time; time.sleep(7); open('/workspace/outputs/made.txt', 'w').write('made')", 0)
	if r.Exit != 0 {
		t.Fatal(r)
	}
	s.alive(t)
	s.store(t, "uploads/in.txt", "in")
	s.store(t, "skills/skill.md", "skill")
	s.store(t, "notes/kept.txt", "kept")
	last := time.Now()
	expired(t, store, "idle")
	if idle := time.Since(last); idle < ttl-100*time.Millisecond {
		t.Errorf("expired after %v", idle)
	}
	s.isGone(t)
	s = service.open(t, "idle", 60, store.block)
	s.holds(t, "notes/kept.txt kept", "outputs/made.txt made")
	s.close(t, `{"discard":true}`)
	if keys := store.keys(t); len(keys) != 0 {
		t.Errorf("left after a discard: %q", keys)
	}
	service.open(t, "idle", 60, store.block).holds(t)
}

// expired waits until an idle session has been archived. It asks the store, not
// the session: that would be use.
func expired(t *testing.T, store objectStore, stem string) {
	t.Helper()
	for range 600 {
		if slices.Contains(store.keys(t), archiveKey(stem)) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("there is no archive of %q", stem)
}

// isGone fails the test unless a session answers as one that was reclaimed.
func (s testSession) isGone(t *testing.T) {
	t.Helper()
	for name, a := range map[string]answer{
		"exec": s.exec(t.Context(), "print(1)", time.Second), "list": s.post("/files/list", map[string]any{"session_id": s.id}), "put": s.put("x", []byte{}),
	} {
		if a.status != 404 {
			t.Errorf("%s in a session that is gone: %v", name, a)
		}
	}
	if a := s.post("/files/reset-inputs", map[string]any{"session_id": s.id}); a.status != 200 || string(a.body) != `{"ok":false,"session_gone":true}` {
		t.Errorf("reset-inputs in a session that is gone: %v", a)
	}
}

// stray makes a runner of an instance that no service knows of.
func stray(t *testing.T, instance string) string {
	t.Helper()
	cfg, _, err := config.Load(append(runnerSettings(), "SANDBOX_API_KEY=none", "SANDBOX_INSTANCE="+instance, "SANDBOX_STATE_DIR="+t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	d, err := newDriver(cfg, newLogger(cfg, new(tailWriter)))
	if err != nil {
		t.Fatal(err)
	}
	// It waits for what it has made, which nobody else is to do.
	t.Cleanup(func() { _ = d.Close() })
	handle, err := d.Create(t.Context(), runner.Spec{SessionID: randomHex(), CreatedAt: time.Now(), Limits: sessionConfig(cfg).Limits})
	if err != nil {
		t.Fatal(err)
	}
	orphansAreInits(t)
	return handle
}

func TestRestart(t *testing.T) {
	for name, stop := range map[string]func(*testing.T, *process){
		"in order": func(t *testing.T, p *process) { p.terminate(t) },
		"killed":   func(_ *testing.T, p *process) { p.kill() },
	} {
		t.Run(name, func(t *testing.T) {
			if onDocker {
				t.Parallel()
			}
			dir := t.TempDir()
			s, store, other := newState(t), localStore(t, dir), newState(t)
			settings := []string{"SANDBOX_LOCAL_STORAGE_DIR=" + dir}
			first := s.spawn(t, settings...)
			kept, short := first.open(t, "kept", 3600, store.block), first.open(t, "short", 25, store.block)
			kept.store(t, "notes/kept.txt", "kept")
			kept.store(t, "uploads/in.txt", "in")
			short.store(t, "short.txt", "short")
			last := time.Now()
			stop(t, first)
			leftover, foreign := stray(t, s.instance), stray(t, other.instance)

			second := s.spawn(t, settings...)
			ids, err := s.containers()
			if err != nil || slices.Contains(ids, leftover) || len(ids) != 2 {
				t.Errorf("runners after the restart: %q, of nobody: %q, %v", ids, leftover, err)
			}
			if ids, err := other.containers(); err != nil || !slices.Equal(ids, []string{foreign}) {
				t.Errorf("runners of another instance: %q, %v", ids, err)
			}
			kept.testService = &second.testService
			kept.alive(t)
			kept.holds(t, "notes/kept.txt kept", "uploads/in.txt in")
			kept.store(t, "after.txt", "after")
			kept.close(t, "{}")
			again := second.open(t, "kept", 60, store.block)
			again.holds(t, "after.txt after", "notes/kept.txt kept")
			again.close(t, "{}")

			expired(t, store, "short")
			if idle := time.Since(last); idle < 24*time.Second {
				t.Errorf("a session with a time of 25 s expired after %v", idle)
			}
			testSession{&second.testService, short.id}.isGone(t)
			again = second.open(t, "short", 60, store.block)
			again.holds(t, "short.txt short")
			again.close(t, "{}")
			second.terminate(t)
			if ids, err := s.containers(); err != nil || len(ids) != 0 {
				t.Errorf("left: %q, %v", ids, err)
			}
		})
	}
}

// TestRestartWithoutItsState breaks what a service kept, each time in another
// way: it starts, says so, keeps what it cannot read, and serves the runner on.
func TestRestartWithoutItsState(t *testing.T) {
	files := func(t *testing.T, dir string) (all []string) {
		t.Helper()
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				all = append(all, path)
			}
			return err
		})
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return all
	}
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, s *testService, records, spooled []string)
		kept  int    // files set aside
		says  string // in the log
	}{
		{"another key", func(t *testing.T, s *testService, _, _ []string) { s.key = randomHex() }, 3, "cannot read a session record"},
		{"damaged", func(t *testing.T, s *testService, records, _ []string) {
			text := must(os.ReadFile(records[0]))
			text[len(text)/2] ^= 1
			if err := os.WriteFile(records[0], text, 0o600); err != nil {
				t.Fatal(err)
			}
		}, 1, "cannot read a session record"},
		{"cut", func(t *testing.T, s *testService, records, spooled []string) {
			for _, path := range append(records, spooled...) {
				if err := os.Truncate(path, 10); err != nil {
					t.Fatal(err)
				}
			}
		}, 3, "cannot read an entry of the spool"},
		{"missing", func(t *testing.T, s *testService, _, _ []string) {
			for _, name := range must(os.ReadDir(s.stateDir)) {
				if err := os.RemoveAll(filepath.Join(s.stateDir, name.Name())); err != nil {
					t.Fatal(err)
				}
			}
		}, 0, "runners of this instance that are found become sessions"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s, store := newState(t), localStore(t, dir)
			// A file where the directory of archives should be: nothing can be stored.
			if err := os.MkdirAll(filepath.Join(dir, "test"), 0o700); err != nil {
				t.Fatal(err)
			}
			inTheWay := filepath.Join(dir, "test", "workspaces")
			if err := os.WriteFile(inTheWay, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			settings := []string{"SANDBOX_LOCAL_STORAGE_DIR=" + dir}
			first := s.spawn(t, settings...)
			spooled := first.open(t, "spooled", 3600, store.block)
			spooled.store(t, "spooled.txt", "spooled")
			spooled.close(t, "{}")
			live := first.open(t, "live", 3600, store.block)
			live.store(t, "live.txt", "live")
			var records []string
			for range 100 { // the runner of the first one goes, and then its record
				if records, _ = filepath.Glob(filepath.Join(s.stateDir, "sessions", "*.session")); len(records) == 1 {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			first.kill()
			waiting := files(t, filepath.Join(s.stateDir, "spool"))
			if len(records) != 1 || len(waiting) != 2 {
				t.Fatalf("records %q, spool %q", records, waiting)
			}
			for _, path := range append(slices.Clone(records), waiting...) {
				text := must(os.ReadFile(path))
				if info := must(os.Stat(path)); info.Mode().Perm() != 0o600 || bytes.Contains(text, []byte("spooled")) || bytes.Contains(text, []byte("live")) {
					t.Errorf("%s is open to read: %v", path, info.Mode())
				}
			}
			tt.spoil(t, s, records, waiting)

			second := s.spawn(t, settings...)
			live.testService = &second.testService
			live.alive(t)
			live.holds(t, "live.txt live")
			if kept := files(t, filepath.Join(s.stateDir, "kept")); len(kept) != tt.kept {
				t.Errorf("kept aside: %q", kept)
			}
			live.close(t, `{"discard":true}`)
			second.terminate(t)
			if !strings.Contains(second.output.since(0), tt.says) {
				t.Errorf("the log does not say %q", tt.says)
			}
		})
	}
}

// TestArchiveWaitsForItsStore loses the store, and the service with it.
func TestArchiveWaitsForItsStore(t *testing.T) {
	dir := t.TempDir()
	s, store := newState(t), localStore(t, dir)
	settings := []string{"SANDBOX_LOCAL_STORAGE_DIR=" + dir}
	if err := os.MkdirAll(filepath.Join(dir, "test"), 0o700); err != nil {
		t.Fatal(err)
	}
	inTheWay := filepath.Join(dir, "test", "workspaces")
	if err := os.WriteFile(inTheWay, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first := s.spawn(t, settings...)
	a := first.open(t, "waits", 3600, store.block)
	a.store(t, "one.txt", "one")
	a.close(t, "{}")
	first.kill()

	second := s.spawn(t, settings...)
	a = second.open(t, "waits", 3600, store.block)
	a.holds(t, "one.txt one")
	a.store(t, "two.txt", "two")
	a.close(t, "{}")
	second.kill()

	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	third := s.spawn(t, settings...)
	expired(t, store, "waits")
	for range 100 {
		if left := must(os.ReadDir(filepath.Join(s.stateDir, "spool"))); len(left) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if left := must(os.ReadDir(filepath.Join(s.stateDir, "spool"))); len(left) != 0 {
		t.Errorf("still in the spool: %v", left)
	}
	a = third.open(t, "waits", 3600, store.block)
	a.holds(t, "one.txt one", "two.txt two")
	a.close(t, `{"discard":true}`)
	third.terminate(t)
}
