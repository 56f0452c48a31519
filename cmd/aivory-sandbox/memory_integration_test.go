//go:build integration

package main

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// TestOutOfMemory wants a small runner, so that the memory is gone quickly.
func TestOutOfMemory(t *testing.T) {
	service := startService(t, "SANDBOX_MEMORY=640m", "SANDBOX_TMPFS_SIZE=64m", "SANDBOX_WORKSPACE_SIZE=64m", "SANDBOX_POOL_SIZE=0")
	s, other := service.session(t), service.session(t)
	if a := s.put("uploads/before.txt", []byte("kept")); a.status != 200 {
		t.Fatalf("put: %v", a)
	}
	// ended accepts the ways in which a program may end for want of memory.
	ended := func(t *testing.T, r result) {
		t.Helper()
		if r.Exit != 137 && !(r.Exit == 1 && (strings.Contains(r.Stderr, "MemoryError") || strings.Contains(r.Stderr, "BrokenProcessPool"))) {
			t.Errorf("the exit code is neither 137 nor that of a MemoryError: %v", r)
		}
		if !strings.Contains(strings.ToLower(r.Stderr), "memory") || strings.Contains(r.Stderr, "exceeded") {
			t.Errorf("stderr does not say that memory was the reason: %v", r)
		}
	}
	for _, p := range []struct{ name, code string }{
		{"in one go", "b = b'x' * (6 << 30)\nprint('has it')"},
		{"bit by bit", "keep = []\nwhile True: keep.append(b'x' * (8 << 20))"},
		{"numpy", "import numpy as np\na = np.ones((6 << 30) // 8)\nprint(a.sum())"},
		{"many small objects", "keep = []\nwhile True: keep.append(object())"},
		{"eight children together", `
from concurrent.futures import ProcessPoolExecutor
import multiprocessing as mp, time

def hold(n):
    b = b"x" * (1 << 30)
    time.sleep(1)
    return len(b)

with ProcessPoolExecutor(8, mp_context=mp.get_context("fork")) as pool:
    print(list(pool.map(hold, range(8))))
`},
		{"a child and a parent that waits for it", "import os, sys\nif os.fork() == 0:\n    b = b'x' * (6 << 30)\n    os._exit(0)\n_, status = os.wait()\nsys.exit(137 if status else 0)"},
		{"a parent that only waits while children fight for it", "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        keep = []\n        while True: keep.append(b'x' * (8 << 20))\nwhile True:\n    try: os.wait()\n    except ChildProcessError: break\nos.kill(os.getpid(), 9)"},
	} {
		t.Run(p.name, func(t *testing.T) {
			if strings.HasPrefix(p.name, "a parent that only waits") {
				exceptOnGVisor(t, "several processes that use up the memory together end the session")
			}
			var meanwhile result
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() {
				a := other.exec(t.Context(), "import time\nb = b'y' * (64 << 20)\ntime.sleep(2)\nprint(len(b))", 30*time.Second)
				var err error
				if meanwhile, err = parseResult(a); err != nil {
					t.Errorf("the other session: %v: %v", err, a)
				}
			})
			r := s.run(t, p.code, 30*time.Second)
			wg.Wait()
			ended(t, r)
			if meanwhile.Stdout != "67108864\n" || meanwhile.Exit != 0 {
				t.Errorf("the other session was harmed: %v", meanwhile)
			}
			if got := s.read(t, "uploads/before.txt"); string(got) != "kept" {
				t.Errorf("the file holds %q", got)
			}
			s.alive(t)
		})
	}
	t.Run("full file systems are no want of memory", func(t *testing.T) {
		r := s.run(t, `
import errno, os
for d in ("/workspace", "/tmp", os.path.expanduser("~")):
    path = d + "/fill"
    try:
        with open(path, "wb", buffering=0) as f:
            while True:
                f.write(b"x" * (1 << 20))
    except OSError as e:
        print(errno.errorcode[e.errno], os.stat(path).st_size >> 20 > 48)
`, 0)
		if r.Stdout != "ENOSPC True\nENOSPC True\nENOSPC True\n" || r.Exit != 0 || r.Stderr != "" {
			t.Errorf("filling all three: %v", r)
		}
		s.alive(t) // with everything still full
		if got := s.read(t, "uploads/before.txt"); string(got) != "kept" {
			t.Errorf("the file holds %q", got)
		}
		if a := s.put("uploads/before.txt", []byte(strings.Repeat("y", 1<<20))); a.status == 200 || a.status >= 500 && a.status != 507 && a.status != 500 {
			t.Errorf("put onto a full file system: %v", a)
		}
		if got := s.read(t, "uploads/before.txt"); string(got) != "kept" {
			t.Errorf("a failed put left %.20q", got)
		}
		if r := s.run(t, "import os\nfor d in ('/workspace', '/tmp', os.path.expanduser('~')): os.unlink(d + '/fill')", 0); r.Exit != 0 {
			t.Error(r)
		}
		s.alive(t)
	})
}
