package runnertest

import (
	"context"
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
	t.Run("OlderThanTheRun", func(t *testing.T) {
		s.skip(t)
		// What a process does as it waits for a program may leave others as well.
		b := s.sandbox(t)
		b.run(t, `
import os, site
d = site.getusersitepackages()
os.makedirs(d)
open(d + '/usercustomize.py', 'w').write("""
import os
if os.fork() == 0:
    os.setsid()
    with open('/workspace/outputs/%d' % os.getpid(), 'ab', buffering=0) as f:
        while True: f.write(b'x')
""")
`)
		time.Sleep(200 * time.Millisecond)
		o := b.run(t, "print(1)")
		if len(o.files) == 0 || o.out != "1\n" {
			t.Fatalf("%s, %q, files %q: %s", o.Reason, o.out, o.paths(), o.err)
		}
		for _, f := range o.files {
			if now := b.get(t, "outputs/"+f.path); now != string(f.content) {
				t.Errorf("a file of %d bytes was written to while it was taken, and has %d", len(f.content), len(now))
			}
		}
	})
}

// unplugged is a driver whose first stream can be closed behind the back of its
// user, who gets no other.
type unplugged struct {
	runner.Driver
	stream runner.Stream
}

func (d *unplugged) Dial(ctx context.Context, id string, command, env []string) (runner.Stream, error) {
	if d.stream != nil {
		return nil, runner.ErrNotFound
	}
	var err error
	d.stream, err = d.Driver.Dial(ctx, id, command, env)
	return d.stream, err
}

// reach is what the programs below have in common: what gets through is printed.
const reach = `
import ctypes, fcntl, os, resource, struct
agent = os.getppid()
libc = ctypes.CDLL(None, use_errno=True)
numbers = dict(zip(
    ('tkill', 'tgkill', 'rt_sigqueueinfo', 'rt_tgsigqueueinfo', 'pidfd_send_signal'),
    (200, 234, 129, 297, 424) if os.uname().machine == 'x86_64' else (130, 131, 138, 240, 424)))
def call(name, *arguments):
    if libc.syscall(numbers[name], *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def info(n):
    return struct.pack('iii4xii', n, 0, -1, os.getpid(), 1000) + bytes(104)
def attempt(name, what, *arguments):
    try: what(*arguments)
    except PermissionError: return
    print('reached by', name)
`

// testAgent has programs that turn on the agent itself, which is of their user:
// it must be out of their reach. One that is lost for another reason costs a run,
// and neither the session nor its files.
func testAgent(t *testing.T, s *suite) {
	b := s.sandbox(t)
	b.put(t, "kept", "content")
	usable := func(t *testing.T) {
		t.Helper()
		b.prints(t, processes, "[]\n")
		if got := b.get(t, "kept"); got != "content" {
			t.Errorf("the file is %q", got)
		}
	}
	for _, c := range []struct{ name, code, out string }{
		{"Signals", reach + `
for n in (0, 9, 15, 19):
    for pid in (agent, -agent, -1):
        attempt('kill', os.kill, pid, n)
    attempt('killpg', os.killpg, agent, n)
    attempt('tkill', call, 'tkill', agent, n)
    attempt('tgkill', call, 'tgkill', agent, agent, n)
    attempt('sigqueue', call, 'rt_sigqueueinfo', agent, n, info(n))
    attempt('tgsigqueue', call, 'rt_tgsigqueueinfo', agent, agent, n, info(n))
    try: fd = os.pidfd_open(agent)
    except OSError: fd = -1  # gVisor knows none
    attempt('pidfd', call, 'pidfd_send_signal', fd, n, None, 0)
    attempt('pidfd', call, 'pidfd_send_signal', os.open('/proc/%d' % agent, os.O_RDONLY), n, None, 0)
r, w = os.pipe()
def owner(n):
    fcntl.fcntl(r, fcntl.F_SETSIG, n)
    fcntl.fcntl(r, fcntl.F_SETOWN, agent)
    fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(w, b'x')
attempt('owner', owner, 9)
`, ""},
		{"Threads", reach + `
for thread in os.listdir('/proc/%d/task' % agent):
    attempt('kill', os.kill, int(thread), 9)
    attempt('tkill', call, 'tkill', int(thread), 9)
`, ""},
		{"Limits", reach + `
attempt('prlimit', resource.prlimit, agent, resource.RLIMIT_CPU, (1, 1))
attempt('priority', os.setpriority, os.PRIO_PROCESS, agent, 19)
attempt('priorities', os.setpriority, os.PRIO_USER, 1000, 19)
attempt('priorities', os.setpriority, os.PRIO_USER, 0, 19)
attempt('group', os.setpriority, os.PRIO_PGRP, agent, 19)
attempt('affinity', os.sched_setaffinity, agent, {0})
attempt('scheduler', os.sched_setscheduler, agent, os.SCHED_IDLE, os.sched_param(0))
attempt('parameters', os.sched_setparam, agent, os.sched_param(0))
attempt('setpgid', os.setpgid, 0, agent)
`, ""},
		{"Harmless", "import os, fcntl\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, os.getppid()); fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)\nfor _ in range(99): os.write(w, b'x')\nprint('x')", "x\n"},
		{"Init", "import os\nfor s in (9, 19, 15):\n    try: os.kill(1, s)\n    except PermissionError: print('no')", "no\nno\nno\n"},
		{"Memory", reach + `
for n in ('mem', 'environ', 'maps'): attempt(n, open, '/proc/%d/%s' % (agent, n))
attempt('fd', os.listdir, '/proc/%d/fd' % agent)
attempt('cwd', os.readlink, '/proc/%d/cwd' % agent)
`, ""},
		{"Trace", `
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
p = os.getppid()
libc.syscall.restype = ctypes.c_long
print('attach', libc.ptrace(16, p, 0, 0), 'seize', libc.ptrace(0x4206, p, 0, 0))
try: fd = os.pidfd_open(p)
except (AttributeError, OSError): fd = -1  # gVisor knows none
print('getfd', max(libc.syscall(438, fd, n, 0) for n in range(80)))
class vec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
b = ctypes.create_string_buffer(8)
v = vec(ctypes.addressof(b), 8)
print('readv', libc.process_vm_readv(p, ctypes.byref(v), 1, ctypes.byref(v), 1, 0))
`, "attach -1 seize -1\ngetfd -1\nreadv -1\n"},
		{"Descriptors", "import os\nfor fd in range(3, 1023):\n    try: os.write(fd, b'\\x13\\0\\0\\0\\2{}'); print('wrote to', fd)\n    except OSError: pass", ""},
		{"CloseAll", "import os; os.closerange(0, 1024); f = os.open('/workspace/mine', os.O_CREAT | os.O_RDWR); [os.dup(f) for _ in range(1000)]", ""},
		{"Own", `
import os, signal, subprocess, sys
p = subprocess.Popen(['sleep', '600'], start_new_session=True)
os.kill(p.pid, 19); os.killpg(p.pid, 9)
print(p.wait(), os.getpid() == os.getsid(0) == os.getpgrp())
os.setpriority(os.PRIO_PROCESS, 0, 19); os.sched_setaffinity(0, os.sched_getaffinity(0))
signal.signal(signal.SIGUSR1, lambda *_: print('usr1')); os.kill(0, signal.SIGUSR1)
`, "-9 True\nusr1\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.skip(t)
			if o := b.run(t, c.code); s.excepted(t, o.out) != c.out || o.ExitCode != 0 {
				t.Errorf("printed %q, want %q; %d %s, stderr %.1000q", o.out, c.out, o.ExitCode, o.Reason, o.err)
			}
			if c.name == "CloseAll" {
				if got := b.get(t, "mine"); got != "" {
					t.Errorf("the program's file holds %q", got)
				}
			}
			usable(t)
		})
	}

	for _, c := range []struct{ name, code, blow string }{
		{"Killed", "while True: pass", "kill -9 -1"},
		{"Stopped", "import os, time\nos.fork(); os.fork()\nwhile True: time.sleep(9)", "kill -STOP -1"},
		{"KilledInABomb", "import os\nfor _ in range(40):\n    if os.fork() == 0: break\nwhile True: pass", "kill -9 -1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.skip(t)
			start := time.Now()
			blow, err := b.driver.Dial(t.Context(), b.id, []string{"sh", "-c", "until [ -e /tmp/started ]; do sleep 0.1; done; rm /tmp/started; " + c.blow}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer blow.Close()
			o := b.run(t, "open('/tmp/started', 'w').close()\n"+c.code, limit(slow))
			if o.Reason != runner.ReasonLost || o.ExitCode != 137 {
				t.Errorf("%d %s, stderr %q", o.ExitCode, o.Reason, o.err)
			}
			usable(t)
			t.Logf("usable after %v", time.Since(start))
		})
	}

	// The service goes away while a program has taken all of the processes that a
	// runner may have: nobody gets in to end it, but the agent is there.
	t.Run("HungUp", func(t *testing.T) {
		s.skip(t)
		_ = b.Close()
		start := time.Now()
		d := &unplugged{Driver: b.driver}
		r := runner.New(d, b.id, runner.Options{CPUs: 1, DialTimeout: time.Minute})
		defer func() { _ = r.Close() }()
		if err := r.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		pull := time.AfterFunc(3*time.Second, func() { _ = d.stream.Close() })
		defer pull.Stop()
		_, err := r.Exec(t.Context(), request("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"))
		t.Logf("the run: %v", err)
		usable(t)
		t.Logf("usable after %v", time.Since(start))
	})

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
`)
		b.reopen()
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
