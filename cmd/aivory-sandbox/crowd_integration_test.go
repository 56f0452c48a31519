//go:build integration

package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// marked looks for what any other run left, leaves as much itself as it can, and
// draws a number. %[1]s is its own mark, %[2]s that of its session.
const marked = `
import builtins, os, random, subprocess, sys, threading, time
import numpy
mark, session = "%[1]s", "%[2]s"
found = [k for k in os.environ if k.startswith("MARK")] + [k for k in vars(builtins) if k.startswith("mark")]
found += [k for k in sys.modules if k.startswith("mark")] + [k for k in globals() if k.startswith("mark_")]
found += [p for top, _, names in os.walk("/workspace") for p in names if p.startswith("mark") and not p.startswith("mark-" + session + "-")]
found += [p for p in os.listdir("/proc") if p.isdigit() and b"mark-" in open("/proc/%%s/cmdline" %% p, "rb").read()]
print(mark, random.random(), numpy.random.rand(), found)
os.environ["MARK"] = mark; vars(builtins)["mark_" + mark] = 1; sys.modules["mark_" + mark] = sys; random.seed(1); numpy.random.seed(1)
os.mkdir("/workspace/outputs") if not os.path.isdir("/workspace/outputs") else None
open("/workspace/outputs/mark-%%s-%%s" %% (session, mark), "w").write(mark)
subprocess.Popen(["sh", "-c", "sleep 0.005; while :; do echo late $0; touch /workspace/outputs/late-$0; done", "mark-" + mark])
threading.Thread(target=lambda: [print("late mark-" + mark) for _ in iter(lambda: time.sleep(0.01), 1)], daemon=True).start()
sys.stdout.flush()
os._exit(0)
`

// TestRunsAreStrangers makes thousands of runs, each of which would see a trace of
// any other's output, files, environment, modules, processes or random numbers.
func TestRunsAreStrangers(t *testing.T) {
	const sessions = 4
	runs := times(200, 10000) / sessions
	service := startService(t, fmt.Sprintf("SANDBOX_MAX_CONCURRENT_EXECS=%d", sessions))
	var mu sync.Mutex
	drawn := map[string]bool{}
	var wg sync.WaitGroup
	began := time.Now()
	for i := range sessions {
		s := service.session(t)
		wg.Go(func() {
			for n := range runs {
				mark := fmt.Sprintf("%d-%d", i, n)
				r, err := parseResult(s.exec(t.Context(), fmt.Sprintf(marked, mark, s.id), time.Minute))
				// Its own processes go on to write for a moment.
				own := strings.NewReplacer("late mark-"+mark, "", "\n", "").Replace(r.Stdout)
				fields := strings.SplitN(own, " ", 4)
				if err != nil || r.Exit != 0 || len(fields) != 4 || fields[0] != mark || fields[3] != "[]" || r.Stderr != "" {
					t.Errorf("run %s: %v: %v", mark, err, r)
					return
				}
				files := slices.DeleteFunc(r.Files, func(f artifact) bool { return f.Name == "late-mark-"+mark })
				if name := "mark-" + s.id + "-" + mark; len(files) != 1 || files[0].Name != name || string(files[0].Data) != mark {
					t.Errorf("run %s gave other files: %v", mark, r)
					return
				}
				mu.Lock()
				for _, number := range fields[1:3] {
					if drawn[number] {
						t.Errorf("run %s draws %s, which was drawn before", mark, number)
					}
					drawn[number] = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%d runs in %d sessions in %v", runs*sessions, sessions, time.Since(began).Round(time.Second))
}

// TestManySessionsLiveAtOnce makes as many sessions as a large host would have, and
// has each answer; then it shows what one costs that nobody uses.
func TestManySessionsLiveAtOnce(t *testing.T) {
	n := times(6, 100)
	s := newState(t)
	settings := []string{fmt.Sprintf("SANDBOX_MAX_SESSIONS=%d", n), "SANDBOX_MAX_CONCURRENT_EXECS=8", "SANDBOX_QUEUE_TIMEOUT_SECONDS=600"}
	s.http.Timeout = 20 * time.Minute // two processors load libraries for all of them
	p := s.spawn(t, settings...)
	ids := make([]string, n)
	began := time.Now()
	for i := range ids {
		var err error
		if ids[i], err = p.create(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d sessions made in %v", n, time.Since(began).Round(time.Second))
	answer := func(p *process) {
		began := time.Now()
		var wg sync.WaitGroup
		for i, id := range ids {
			wg.Go(func() {
				code := fmt.Sprintf("import pandas as pd; print(pd.DataFrame({'a': [%d, 1]}).sum().a)", i)
				r, err := parseResult(testSession{&p.testService, id}.exec(t.Context(), code, 10*time.Minute))
				if err != nil || r.Stdout != fmt.Sprintf("%d\n", i+1) {
					t.Errorf("session %d: %v: %v", i, err, r)
				}
			})
		}
		wg.Wait()
		t.Logf("all answered within %v", time.Since(began).Round(10*time.Millisecond))
	}
	answer(p)
	answer(p)
	warm := p.memory(t)
	// A service that stops lets go of agents as it does of those that are idle.
	p.terminate(t)
	cold := s.memory(t)
	t.Logf("memory of a runner: %.1f MiB with its libraries loaded, %.1f MiB without an agent", warm, cold)
	if cold > 16 || cold > warm/3 {
		t.Errorf("an idle runner keeps %.1f MiB of %.1f", cold, warm)
	}
	p = s.spawn(t, settings...)
	answer(p)
	for i, id := range ids {
		if a := p.release(id); a.status != 200 {
			t.Errorf("session %d: %v", i, a)
		}
	}
	p.terminate(t)
}

// memory returns the mean of what the runners' processes hold, in MiB: what their
// cgroups count as anonymous memory.
func (s *testService) memory(t *testing.T) float64 {
	t.Helper()
	runners := must(s.outsides())
	least := 0.0
	for range 50 { // processes that were ended take a moment
		sum := 0.0
		for _, o := range runners {
			sum += anonymous(t, s.look(t, o).pid)
		}
		if mean := sum / float64(len(runners)); least == 0 || mean < least*0.99 {
			least = mean
		} else {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	return least
}

// anonymous returns the anonymous memory of a process's memory cgroup in MiB.
func anonymous(t *testing.T, pid int) float64 {
	t.Helper()
	text := string(must(os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))))
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		dir, key := "/sys/fs/cgroup", "anon "
		switch {
		case parts[1] == "memory":
			dir, key = "/sys/fs/cgroup/memory", "total_rss "
		case parts[1] != "":
			continue
		}
		stats, err := os.ReadFile(filepath.Join(dir, parts[2], "memory.stat"))
		if err != nil {
			continue // of the other hierarchy
		}
		for line := range strings.Lines(string(stats)) {
			var n float64
			if _, err := fmt.Sscanf(line, key+"%f", &n); err == nil {
				return n / (1 << 20)
			}
		}
	}
	t.Fatalf("no memory cgroup of process %d in:\n%s", pid, text)
	return 0
}

// TestMemoryOfManyUploads has eight clients send and fetch large files at once.
func TestMemoryOfManyUploads(t *testing.T) {
	const clients, size, mostIdle, mostAbove = 8, 39 << 20, 32 << 20, 48 << 20
	s := newState(t)
	p := s.fork(t, buildService(t), "SANDBOX_PRELOAD=", "SANDBOX_MAX_SESSIONS=9")
	p.healthy(t)
	sessions := make([]testSession, clients)
	for i := range sessions {
		sessions[i] = testSession{&p.testService, must(p.create())}
		sessions[i].prints(t, "print(1)", "1\n")
	}
	idle := p.status(t, "VmRSS")
	t.Logf("idle with %d sessions: %.1f MiB", clients, float64(idle)/(1<<20))
	if idle > mostIdle {
		t.Errorf("the service takes %d MiB with nothing to do", idle>>20)
	}
	p.forgetPeak(t)
	var wg sync.WaitGroup
	for _, s := range sessions {
		wg.Go(func() {
			for range 2 {
				a := p.stream("/files", fmt.Sprintf(`{"session_id":"%s","path":"big.bin","data_base64":"`, s.id), io.LimitReader(zeros{}, size), `"}`)
				if a.status != 200 {
					t.Errorf("put: %v", a)
				}
				n, err := p.fetch(s.id, "big.bin")
				if want := int64(base64.StdEncoding.EncodedLen(size) + len(`{"data_base64":""}`)); n != want || err != nil {
					t.Errorf("get: %d bytes, not %d: %v", n, want, err)
				}
			}
		})
	}
	wg.Wait()
	peak := p.status(t, "VmHWM")
	t.Logf("%d uploads and downloads of 39 MiB at once: peak %.1f MiB, %.1f MiB above idle", clients, float64(peak)/(1<<20), float64(peak-idle)/(1<<20))
	if peak-idle > mostAbove {
		t.Errorf("%d MiB above idle", (peak-idle)>>20)
	}
	for _, s := range sessions {
		if a := p.release(s.id); a.status != 200 {
			t.Errorf("delete: %v", a)
		}
	}
	p.terminate(t)
}

// fetch reads a file's answer without holding it in memory, and returns its length.
func (s *testService) fetch(id, path string) (int64, error) {
	req, err := http.NewRequest(http.MethodPost, s.url+"/files/get", strings.NewReader(fmt.Sprintf(`{"session_id":"%s","path":"%s"}`, id, path)))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return io.Copy(io.Discard, resp.Body)
}
