package runnertest

import (
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// testSurvivors checks that nothing survives a run, whatever it does to hide,
// and that the runner is of use afterwards.
func testSurvivors(t *testing.T, s *suite) {
	b := s.sandbox(t)
	b.put(t, "kept", "content")
	for _, c := range []struct{ name, code string }{
		{"Child", "import subprocess; subprocess.Popen(['sleep', '600'])"},
		{"Session", "import subprocess; subprocess.Popen(['setsid', 'sleep', '600'])"},
		{"DoubleFork", `
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(1024):
            try: os.close(fd)
            except OSError: pass
        os.chdir('/')
        time.sleep(600)
    os._exit(0)
`},
		{"CleanEnvironment", "import subprocess; subprocess.Popen(['env', '-i', '/bin/sh', '-c', 'sleep 600 & sleep 600'], start_new_session=True)"},
		{"IgnoredSignals", `
import os, signal, time
if os.fork() == 0:
    for s in signal.valid_signals():
        try: signal.signal(s, signal.SIG_IGN)
        except OSError: pass
    while True: time.sleep(1)
`},
		{"Renamed", `
import ctypes, os, time
if os.fork() == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(15, b'sleep', 0, 0, 0)
    os.execvp('sh', ['sleep', '-c', 'while :; do :; done', 'infinity'])
`},
		{"Stopped", "import os, signal\nif os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)"},
		{"NotDumpable", `
import ctypes, os, time
if os.fork() == 0:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    os.setsid(); time.sleep(600)
`},
		{"Respawning", `
import os, time
for _ in range(8):
    if os.fork() == 0:
        while True:
            if os.fork(): os._exit(0)
            os.setsid()
time.sleep(0.3)
`},
		{"ForkBomb", `
import os, time
def bomb():
    while True:
        try: os.fork()
        except OSError: time.sleep(0.001)
if os.fork() == 0: bomb()
time.sleep(1)
`},
		{"ForkBombUntilTheEnd", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"},
		{"Threads", `
import threading, time
for _ in range(500):
    try: threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    except RuntimeError: break
`},
		{"SubReaper", "import ctypes, os, time; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\nif os.fork() == 0:\n    if os.fork() == 0: time.sleep(600)"},
		{"Tracer", `
import ctypes, os, time
libc = ctypes.CDLL(None)
if os.fork() == 0:
    child = os.fork()
    if child == 0: time.sleep(600)
    libc.ptrace(16, child, 0, 0)
    time.sleep(600)
`},
		{"HoldsItsPipes", "import os, time\nif os.fork() == 0:\n    while True: print('x' * 100)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.skip(t)
			start := time.Now()
			o := b.run(t, c.code, limit(4*time.Second))
			took := time.Since(start)
			b.prints(t, processes, "[]\n")
			if got := b.get(t, "kept"); got != "content" {
				t.Errorf("the file is %q", got)
			}
			t.Logf("%d %s in %v", o.ExitCode, o.Reason, took)
		})
	}
}

// testAgent has programs that turn on the agent itself. A run may be lost; the
// session and its files go on.
func testAgent(t *testing.T, s *suite) {
	b := s.sandbox(t)
	b.put(t, "kept", "content")
	// There is no rest to this list: what a program can do to a process of its
	// own user, it can do to the agent.
	for _, c := range []struct {
		name, code string
		lost       bool
	}{
		{"Kill", "import os; os.kill(os.getppid(), 9)\nwhile True: pass", true},
		{"KillAll", "import os; os.kill(-1, 9)\nwhile True: pass", true},
		{"KillAllTwice", "import os, subprocess; subprocess.Popen(['sh', '-c', 'sleep 0.2; kill -9 -1'], start_new_session=True); os.kill(os.getppid(), 9); import time; time.sleep(9)", true},
		{"Stop", "import os, time; os.kill(os.getppid(), 19); time.sleep(60)", true},
		{"StopAndBusy", "import os\np = os.getppid(); os.fork(); os.kill(p, 19)\nwhile True: pass", true},
		{"Terminate", "import os, signal\nfor s in signal.valid_signals():\n    if s not in (9, 19): os.kill(os.getppid(), s)\nprint('x')", false},
		{"Init", "import os\nfor s in (9, 19, 15):\n    try: os.kill(1, s)\n    except PermissionError: print('no')", false},
		{"Memory", "import os\nfor n in ('mem', 'environ', 'fd', 'maps', 'cwd'):\n    try:\n        p = '/proc/%d/%s' % (os.getppid(), n)\n        (os.listdir if n == 'fd' else os.readlink if n == 'cwd' else open)(p); print('reached', n)\n    except PermissionError: pass", false},
		{"Trace", `
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
p = os.getppid()
libc.syscall.restype = ctypes.c_long
print('attach', libc.ptrace(16, p, 0, 0), 'seize', libc.ptrace(0x4206, p, 0, 0))
fd = os.pidfd_open(p) if hasattr(os, 'pidfd_open') else -1
print('getfd', max(libc.syscall(438, fd, n, 0) for n in range(80)))
class vec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
b = ctypes.create_string_buffer(8)
v = vec(ctypes.addressof(b), 8)
print('readv', libc.process_vm_readv(p, ctypes.byref(v), 1, ctypes.byref(v), 1, 0))
`, false},
		{"Descriptors", "import os\nfor fd in range(3, 1024):\n    try: os.write(fd, b'\\x13\\0\\0\\0\\2{}'); print('wrote to', fd)\n    except OSError: pass", false},
		{"CloseAll", "import os; os.closerange(0, 1024); f = os.open('/workspace/mine', os.O_CREAT | os.O_RDWR); [os.dup(f) for _ in range(1000)]", false},
		{"Starve", `
import os, time
if os.fork() == 0:
    for _ in range(40):
        if os.fork() == 0: break
    while True: pass
time.sleep(1)
os.kill(os.getppid(), 9)
while True: pass
`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.skip(t)
			if c.name == "Starve" && soak(1, 0) == 0 {
				t.Skip("takes a minute on a busy machine; set AIVORY_SOAK=1")
			}
			start := time.Now()
			o := b.run(t, c.code, limit(slow))
			took := time.Since(start)
			if lost := o.Reason == runner.ReasonLost; lost != c.lost || lost && o.ExitCode != 137 || !lost && o.ExitCode != 0 {
				t.Errorf("%d %s, stderr %q", o.ExitCode, o.Reason, o.err)
			}
			switch c.name {
			case "Init":
				if o.out != "no\nno\nno\n" {
					t.Errorf("printed %q", o.out)
				}
			case "Memory":
				if strings.Contains(o.out, "reached") {
					t.Errorf("printed %q", o.out)
				}
			case "Trace":
				if o.out != "attach -1 seize -1\ngetfd -1\nreadv -1\n" {
					t.Errorf("printed %q", o.out)
				}
			case "CloseAll":
				if got := b.get(t, "mine"); got != "" {
					t.Errorf("the program's file holds %q", got)
				}
			}
			b.prints(t, processes, "[]\n")
			if got := b.get(t, "kept"); got != "content" {
				t.Errorf("the file is %q", got)
			}
			t.Logf("%s after %v, usable after %v", o.Reason, took, time.Since(start))
		})
	}

	// These keep new agents out, and may cost the session some runs.
	for _, c := range []struct{ name, code string }{
		// It kills each new agent at once, until its CPU time is used up.
		{"Killer", `
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        try: os.kill(-1, 9)
        except OSError: pass
time.sleep(60)
`},
		// There is no process left for an agent.
		{"NoProcesses", `
import os, time
while True:
    try:
        if os.fork() == 0: time.sleep(600)
    except OSError: break
os.kill(os.getppid(), 9)
time.sleep(600)
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.skip(t)
			if c.name == "Killer" && soak(1, 0) == 0 {
				t.Skip("takes a minute; set AIVORY_SOAK=1")
			}
			start := time.Now()
			_, _ = b.try(t.Context(), c.code, limit(time.Second))
			runs := 1
			for ; ; runs++ {
				o, err := b.try(t.Context(), "print(open('/workspace/kept').read())")
				if err == nil && o.out == "content\n" {
					break
				}
				if time.Since(start) > 3*time.Minute {
					t.Fatalf("still not usable: %s, %v", o.out, err)
				}
				time.Sleep(time.Second)
			}
			t.Logf("usable after %v and %d runs", time.Since(start), runs)
			b.prints(t, processes, "[]\n")
		})
	}

	// What a program plants for later must not be the agent's undoing.
	t.Run("Planted", func(t *testing.T) {
		s.skip(t)
		defer b.run(t, "import shutil; shutil.rmtree('/home/sandbox/.local'); shutil.rmtree('/home/sandbox/.config', ignore_errors=True)")
		b.run(t, `
import os, site, sys
evil = "import os; open('/tmp/ran-as-%d' % os.getppid(), 'w'); print('evil')\n"
d = site.getusersitepackages(); os.makedirs(d, exist_ok=True)
for name in ('sitecustomize', 'usercustomize', 'json', 'struct', 'tarfile', 'zlib'): open('%s/%s.py' % (d, name), 'w').write(evil)
open(d + '/x.pth', 'w').write("import os; os.environ['PLANTED'] = '1'\n")
for p in ('/workspace', '/tmp', '/dev/shm'):
    for name in ('json', 'os', 'sitecustomize', 'tarfile', 'select', 'ctypes'): open('%s/%s.py' % (p, name), 'w').write(evil)
for name in ('.bashrc', '.profile', '.pythonrc', '.pystartup'): open('/home/sandbox/' + name, 'w').write('exit 1')
os.makedirs('/home/sandbox/.config/matplotlib', exist_ok=True)
open('/home/sandbox/.config/matplotlib/matplotlibrc', 'w').write('backend: module://evil\n')
os.kill(os.getppid(), 9)
`)
		b.put(t, "kept", "content")
		o := b.run(t, "import os, json, sys; print(os.environ.get('PLANTED'), json.__file__.startswith(sys.prefix))")
		if !strings.HasSuffix(o.out, "1 True\n") && !strings.HasSuffix(o.out, "1 False\n") {
			t.Errorf("printed %q, stderr %q", o.out, o.err)
		}
		b.run(t, "import os; [os.unlink(p + '/%s.py' % n) for p in ('/workspace', '/tmp', '/dev/shm') for n in ('json', 'os', 'sitecustomize', 'tarfile', 'select', 'ctypes')]")
	})
	t.Run("HangingStart", func(t *testing.T) {
		s.skip(t)
		b.run(t, "import os, site; d = site.getusersitepackages(); os.makedirs(d, exist_ok=True); open(d + '/x.pth', 'w').write('import time; time.sleep(600)\\n')")
		for _, code := range []string{"print(1)", "print(1)\n#" + strings.Repeat("x", 1<<20)} {
			if o := b.run(t, code, limit(time.Second)); o.Reason != runner.ReasonTimeout {
				t.Errorf("%d bytes: %s, %q", len(code), o.Reason, o.err)
			}
		}
		b.command(t, "", "rm", "-rf", "/home/sandbox/.local")
		b.run(t, "pass", limit(time.Second)) // its process was waiting already
	})
}
