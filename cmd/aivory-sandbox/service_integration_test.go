//go:build integration

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestSmoke pastes what the documentation of the API tells people to paste.
func TestSmoke(t *testing.T) {
	service := startService(t)
	paste := func(t *testing.T, script string) string {
		t.Helper()
		cmd := exec.Command("bash", "-e", filepath.Join("testdata", script))
		cmd.Env = append(os.Environ(), "SANDBOX_URL="+service.url, "SANDBOX_API_KEY="+service.key)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil || stderr.Len() > 0 {
			t.Fatalf("%s: %v\n%s%s", script, err, out, &stderr)
		}
		return string(out)
	}
	t.Run("artifact", func(t *testing.T) {
		out, ok := strings.CutSuffix(paste(t, "smoke-artifact.sh"), `{"ok":true}`)
		var r result
		if err := json.Unmarshal([]byte(out), &r); err != nil || !ok {
			t.Fatalf("%v: %s", err, out)
		}
		if r.Stdout != "ok\n" || r.Stderr != "" || r.Exit != 0 {
			t.Error(r)
		}
		gives(file("hello.txt", "hello"))(t, testSession{}, r)
	})
	t.Run("chart", func(t *testing.T) {
		out := paste(t, "smoke-chart.sh")
		var r result
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if r.Stdout != "rows 3\n" || r.Stderr != "" || r.Exit != 0 || len(r.Files) != 1 || r.Files[0].Name != "p.png" {
			t.Fatal(r)
		}
		if _, err := png.Decode(bytes.NewReader(r.Files[0].Data)); err != nil {
			t.Error(err)
		}
		if dir := os.Getenv("AIVORY_KEEP"); dir != "" {
			if err := os.WriteFile(filepath.Join(dir, "p.png"), r.Files[0].Data, 0o644); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestInstancesOnOneEngine restarts one service beside another.
func TestInstancesOnOneEngine(t *testing.T) {
	blue, green := startService(t), startService(t)
	a, b := blue.session(t), green.session(t)
	own := func(s *testService) []string {
		t.Helper()
		ids, err := s.containers()
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(ids)
		return ids
	}
	before := own(blue)
	for _, pair := range []struct {
		s  *testService
		id string
	}{{blue, b.id}, {green, a.id}} {
		if r := (testSession{pair.s, pair.id}).exec(t.Context(), "print(1)", time.Second); r.status != 404 {
			t.Errorf("a session of the other service: %v", r)
		}
		if r := pair.s.release(pair.id); r.status != 200 {
			t.Errorf("releasing a session of the other service: %v", r)
		}
	}
	for range times(2, 20) {
		if err := green.halt(); err != nil {
			t.Fatal(err)
		}
		again, err := launch(green.stateDir, "SANDBOX_API_KEY="+green.key, "SANDBOX_INSTANCE="+green.instance)
		if err != nil {
			t.Fatal(err)
		}
		*green = *again // its cleanup is the first one's
		a.alive(t)
		testSession{green, b.id}.alive(t)
	}
	if after := own(blue); !slices.Equal(before, after) {
		t.Errorf("the runners of the other service were %q and are %q", before, after)
	}
}

// TestNothingIsLeftBehind makes many runs and looks for what they leave.
func TestNothingIsLeftBehind(t *testing.T) {
	runs, sessions := times(160, 1000), times(8, 16)
	service := startService(t, "SANDBOX_MEMORY=512m", "SANDBOX_TMPFS_SIZE=64m", "SANDBOX_WORKSPACE_SIZE=64m", fmt.Sprintf("SANDBOX_MAX_SESSIONS=%d", sessions+1), "SANDBOX_PRELOAD=json")
	round := func(runs int) {
		var wg sync.WaitGroup
		for range sessions {
			wg.Go(func() {
				id, err := service.create()
				if err != nil {
					t.Error(err)
					return
				}
				s := testSession{service, id}
				for i := range runs / sessions {
					content := strings.Repeat(fmt.Sprint(i), 200<<10)
					if a := s.put("uploads/in.txt", []byte(content)); a.status != 200 {
						t.Errorf("put: %v", a)
					}
					r, err := parseResult(s.exec(t.Context(), `
import os, subprocess
text = open("/workspace/uploads/in.txt").read()
open("/workspace/outputs/out.txt", "w").write(text)
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(len(text))`, 30*time.Second))
					if err != nil || r.Exit != 0 || r.Stdout != fmt.Sprintf("%d\n", len(content)) || len(r.Files) != 1 || string(r.Files[0].Data) != content {
						t.Errorf("run %d: %v: %v", i, err, r)
					}
				}
				s.quiet(t)
				if a := service.release(s.id); a.status != 200 {
					t.Errorf("delete: %v", a)
				}
			})
		}
		wg.Wait()
	}
	type footprint struct {
		goroutines, descriptors, containers, files int
		heap                                       uint64
	}
	measure := func() footprint {
		var f footprint
		var mem runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&mem)
		f.heap, f.goroutines = mem.HeapAlloc, runtime.NumGoroutine()
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		ids, err := service.containers()
		if err != nil {
			t.Fatal(err)
		}
		f.descriptors, f.containers = len(fds), len(ids)
		err = filepath.WalkDir(service.stateDir, func(path string, _ os.DirEntry, err error) error {
			f.files++
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	round(sessions) // pools and caches fill
	var before, after footprint
	settle := func(done func(footprint) bool) (f footprint) {
		for range 100 {
			if f = measure(); done(f) {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		return f
	}
	before = settle(func(f footprint) bool { return f.containers <= 1 })
	round(runs)
	after = settle(func(f footprint) bool {
		return f.goroutines <= before.goroutines && f.descriptors <= before.descriptors && f.containers <= before.containers && f.files <= before.files
	})
	if after.goroutines > before.goroutines || after.descriptors > before.descriptors || after.containers > before.containers || after.files > before.files ||
		after.heap > before.heap+8<<20 {
		t.Errorf("before %d runs %+v, after them %+v", runs, before, after)
	}
	t.Logf("before %d runs %+v, after them %+v", runs, before, after)
}
