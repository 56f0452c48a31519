//go:build integration

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestHostilePrograms runs programs that attack what runs them. Each costs one
// answer; the session, its files and its peace go on.
func TestHostilePrograms(t *testing.T) {
	const fill = `
import os
for d in ("/workspace", "/tmp", os.path.expanduser("~"), "/dev/shm"):
    try:
        with open(d + "/fill", "wb", buffering=0) as f:
            while True: f.write(b"x" * (1 << 20))
    except OSError: pass
`
	const hidden = `
import os, signal
def daemon(job):
    if os.fork(): return
    os.setsid()
    for n in range(1, 65):
        try: signal.signal(n, signal.SIG_IGN)
        except (OSError, ValueError): pass
    if os.fork(): os._exit(0)
    os.environ.clear(); os.chdir("/")
    for fd in range(256):
        try: os.close(fd)
        except OSError: pass
    while True: job()
`
	for _, p := range []struct {
		name, code string
		fatal      bool // whether the program cannot end well
		often      bool // whether it is among the short list
	}{
		{"SIGSTOP to the parent", `import os, signal; os.kill(os.getppid(), signal.SIGSTOP); print("stopped")`, false, true},
		{"SIGKILL to the parent", `import os, signal; os.kill(os.getppid(), signal.SIGKILL); print("killed")`, false, true},
		{"SIGTERM to the parent", `import os, signal; os.kill(os.getppid(), signal.SIGTERM)`, false, false},
		{"every signal to the parent", "import os\nfor n in range(1, 65):\n    try: os.kill(os.getppid(), n)\n    except OSError: pass", false, false},
		{"SIGKILL to all", `import os; os.kill(-1, 9)`, false, true},
		{"SIGSTOP to all", `import os, signal; os.kill(-1, signal.SIGSTOP)`, false, true},
		{"SIGTERM to all", `import os, signal; os.kill(-1, signal.SIGTERM); import time; time.sleep(2)`, false, false},
		{"fork bomb", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", true, false},
		{"fork bomb that ignores signals", "import os, signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n    except OSError: pass", true, true},
		{"fork bomb and gone", "import os\nif os.fork() == 0:\n    while True:\n        try: os.fork()\n        except OSError: pass", false, true},
		{"thread bomb", "import threading, time\ntry:\n    while True: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\nexcept RuntimeError: print('no more')\ntime.sleep(1000)", true, false},
		{"full file systems", fill, false, true},
		{"hidden killer of all", hidden + "daemon(lambda: os.kill(-1, signal.SIGKILL))", false, false},
		{"hidden stopper of all", hidden + "daemon(lambda: os.kill(-1, signal.SIGSTOP))", false, false},
		{"hidden killers, many", hidden + "for _ in range(40): daemon(lambda: os.kill(-1, signal.SIGSTOP))", false, false},
		{"fork bomb of killers", "import os, signal\nwhile True:\n    try:\n        if os.fork() == 0:\n            os.kill(-1, signal.SIGSTOP)\n    except OSError: pass", true, false},
		{"all at once", fill + "import signal\nos.kill(os.getppid(), signal.SIGSTOP)\nwhile True:\n    try: os.fork()\n    except OSError: pass", true, true},
		{"every descriptor", "import os\nfds = []\ntry:\n    while True: fds.append(os.open('/dev/null', 0))\nexcept OSError: pass\nfor fd in range(3, 2000):\n    try: os.write(fd, b'garbage' * 1000)\n    except OSError: pass", false, false},
		{"closed descriptors", "import os\nos.closerange(0, 1000)\nwhile True: pass", true, true},
		{"renamed and traced", "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nlibc.prctl(15, b'kworker/0:0', 0, 0, 0)\nif os.fork() == 0:\n    os.setsid(); libc.prctl(15, b'sh', 0, 0, 0)\n    while True: pass", false, true},
		{"everything in the home directory", "import os, shutil\nfor d in ('/workspace', os.path.expanduser('~'), '/tmp'):\n    for n in os.listdir(d):\n        if n == 'keep': continue\n        p = os.path.join(d, n)\n        shutil.rmtree(p, ignore_errors=True) if os.path.isdir(p) else os.unlink(p)\n", false, true},
		{"its own cgroup and limits", "import os, resource\nfor i in range(16):\n    try: resource.setrlimit(i, (0, 0))\n    except (OSError, ValueError): pass\nos.kill(os.getppid(), 9)", false, false},
	} {
		if !p.often && !soak {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			s := sharedService(t).session(t)
			if a := s.put("keep/before.txt", []byte("kept")); a.status != 200 {
				t.Fatalf("put: %v", a)
			}
			r := s.run(t, p.code, 4*time.Second)
			if r.took > 40*time.Second {
				t.Errorf("the answer took %v: %v", r.took, r)
			}
			if r.Exit == 0 && p.fatal {
				t.Errorf("an honest answer does not call this success: %v", r)
			}
			if got := s.read(t, "keep/before.txt"); string(got) != "kept" {
				t.Errorf("the file holds %q", got)
			}
			s.alive(t)
			s.quiet(t)
			s.alive(t)
		})
	}
}

// quiet fails the test unless nothing but process 1, the agent and what they
// keep ready runs in the session's runner.
func (s testSession) quiet(t *testing.T) {
	t.Helper()
	runners, err := s.outsides()
	if err != nil {
		t.Error(err)
		return
	}
	i := slices.IndexFunc(runners, func(o outside) bool { return o.session == s.id })
	if i < 0 {
		t.Errorf("the runner is not among %v", runners)
		return
	}
	if onGVisor {
		s.quietInside(t)
		return
	}
	const most = 4 // process 1, its sleep, the agent, the child forked ahead
	pid := s.look(t, runners[i]).pid
	var members []string
	for range 50 {
		if members, err = namespaceMembers(pid); err == nil && len(members) <= most {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("%d processes are left in the runner (%v)", len(members), err)
}

// quietInside is quiet where the host does not see the processes of a runner.
func (s testSession) quietInside(t *testing.T) {
	t.Helper()
	const most = 5 // and the program that looks
	var r result
	for range 50 {
		r = s.run(t, `
import os
found = [open(f"/proc/{p}/cmdline").read()[:60] for p in os.listdir("/proc") if p.isdigit()]
print(len(found), found)`, 0)
		var n int
		if _, err := fmt.Sscan(r.Stdout, &n); err == nil && n > 1 && n <= most {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("too many processes are left in the runner: %v", r)
}

// TestTheAgentIsOutOfReach tries what a program of the same user could do to
// its supervisor without killing it.
func TestTheAgentIsOutOfReach(t *testing.T) {
	tryAll(t, []program{
		{name: "its memory, environment and descriptors", code: `
import os
refused = []
for name in ("mem", "environ", "fd", "maps", "cwd", "exe"):
    try:
        path = f"/proc/{os.getppid()}/{name}"
        os.listdir(path) if name == "fd" else os.readlink(path) if name in ("cwd", "exe") else open(path, "rb").read(1)
    except OSError as e:
        refused.append(name)
print(refused)`, out: is("['mem', 'environ', 'fd', 'maps', 'cwd', 'exe']\n"),
			notGVisor: "it shows the environment and the maps of any process of the user; no secret is in them"},
		{name: "tracing it and process 1", code: `
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in (os.getppid(), 1):
    print(libc.ptrace(16, pid, 0, 0), ctypes.get_errno())`, out: like(`^(-1 1\n){2}$`)},
		{name: "signals to process 1", code: `
import os
for n in (9, 15, 19):
    try: os.kill(1, n)
    except PermissionError: print("refused")`, out: is("refused\nrefused\nrefused\n")},
		{name: "lowering its own oom score", code: `
import os
try: os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"-1000")
except PermissionError: print("refused")`, out: is("refused\n"), notGVisor: "the score is its own, with no effect"},
		{name: "its own memory is its own", code: `print(len(open("/proc/self/environ", "rb").read()) > 10, open("/proc/self/maps").readline() != "")`, out: is("True True\n")},
	})
}

func TestSmallerThings(t *testing.T) {
	tryAll(t, []program{
		// The interpreter takes half a minute to print the traceback of so many frames.
		{name: "deep recursion", code: "import sys\nsys.setrecursionlimit(10**5)\ndef f(n): return f(n + 1)\ntry: f(0)\nexcept RecursionError: print('deep')", out: is("deep\n")},
		{name: "recursion without a limit", code: "import sys\nsys.setrecursionlimit(2**31 - 1)\nclass A:\n    def __getattr__(self, n): return getattr(self, n + 'x')\nA().a", err: whatever, exit: anyExit, timeout: 10 * time.Second, check: func(t *testing.T, _ testSession, r result) {
			if r.Exit == 0 {
				t.Errorf("ended well: %v", r)
			}
		}},
		{name: "NUL in the source", code: "print(1)\x00", exit: 1, err: has("null bytes")},
		{name: "empty", code: ""},
		{name: "a process that renames itself is killed with the others", code: "import ctypes, os, subprocess\nsubprocess.Popen(['bash', '-c', 'exec -a agent sleep 1000'], start_new_session=True)\nctypes.CDLL(None).prctl(15, b'agent', 0, 0, 0)",
			check: func(t *testing.T, s testSession, _ result) { s.quiet(t) }},
		{name: "a megabyte of source", code: "x = '" + strings.Repeat("x", 1048000) + "'\nprint(len(x))", out: is("1048000\n")},
	})
	t.Run("one byte more than a megabyte", func(t *testing.T) {
		s := sharedService(t).session(t)
		if a := s.exec(t.Context(), strings.Repeat("#", 1<<20+1), time.Second); a.status != 413 && a.status != 422 {
			t.Errorf("%v", a)
		}
		s.alive(t)
	})
}
