package runnertest

import (
	"strings"
	"testing"
)

// testIsolation checks that nothing of one run is seen by the next.
func testIsolation(t *testing.T, s *suite) {
	b := s.sandbox(t, Preload...)
	b.works(t)
	// That of the engine, which a test may have been given less of.
	nice := strings.TrimSpace(b.run(t, "import os; print(os.nice(0))").out)
	for _, c := range []struct{ name, spoil, look, want string }{
		{"Globals", "x = 5; import builtins; builtins.y = 6", "import builtins; print('x' in globals(), hasattr(builtins, 'y'))", "False False\n"},
		{"Environ", "import os; os.environ['X'] = 'x'; os.environ['HOME'] = '/'; del os.environ['LANG']", "import os; print(os.environ.get('X'), os.environ['HOME'], os.environ['LANG'])", "None /home/sandbox C.UTF-8\n"},
		{"Directory", "import os; os.chdir('/tmp')", "import os; print(os.getcwd())", "/workspace\n"},
		{"Umask", "import os; os.umask(0o777)", "import os; print(oct(os.umask(0)))", "0o22\n"},
		{"Locale", "import locale; locale.setlocale(locale.LC_ALL, 'C')", "import locale; print(locale.setlocale(locale.LC_CTYPE))", "C.UTF-8\n"},
		{"Library", "import json, os, numpy; json.dumps = len; os.getcwd = len; numpy.sum = len", "import json, os, numpy; print(json.dumps([1]), os.getcwd(), numpy.sum([1, 2]))", "[1] /workspace 3\n"},
		{"Warnings", "import warnings; warnings.simplefilter('error')", "import warnings; warnings.warn('x'); print(len(warnings.filters) > 0)", "True\n"},
		{"Path", "import sys; sys.path[:] = []; sys.modules.clear()", "import sys, json; print(sys.path[-1])", "/workspace\n"},
		{"Limits", "import sys, resource; sys.setrecursionlimit(99); resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))", "import sys, resource; print(sys.getrecursionlimit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 9)", "1000 True\n"},
		{"Handlers", "import signal, sys; signal.signal(2, signal.SIG_IGN); sys.excepthook = print; signal.alarm(1)", "import signal, sys, time; time.sleep(1.5); print(signal.getsignal(2), sys.excepthook is sys.__excepthook__)", "<built-in function default_int_handler> True\n"},
		{"Threads", "import threading; threading.Thread(target=__import__('time').sleep, args=(600,), daemon=True).start()", "import threading; print(threading.active_count())", "1\n"},
		{"Nice", "import os; os.nice(5); os.sched_setaffinity(0, {0})", "import os; print(os.nice(0))", nice + "\n"},
		{"Cells", "pass", "import os; print([n for n in os.listdir('/tmp') if n.startswith('aivory-') and '/tmp/' + n != __file__])", "[]\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.skip(t)
			b.run(t, c.spoil)
			b.prints(t, c.look, c.want)
		})
	}
	t.Run("AgentItself", func(t *testing.T) {
		s.skip(t)
		space := strings.TrimSpace(b.run(t, "import resource; print(resource.getrlimit(resource.RLIMIT_AS)[0])").out)
		// Both are of one user, and yet a program cannot do this to its agent.
		for _, code := range []string{
			"resource.prlimit(p, resource.RLIMIT_NOFILE, (5, 5))",
			"resource.prlimit(p, resource.RLIMIT_FSIZE, (0, 0))",
			"resource.prlimit(p, resource.RLIMIT_NPROC, (0, 0))",
			"resource.prlimit(p, resource.RLIMIT_AS, (1 << 20, 1 << 20))",
			"resource.prlimit(p, resource.RLIMIT_CPU, (1, 1))",
			"os.setpriority(os.PRIO_PROCESS, p, 19)",
			"os.sched_setaffinity(p, {0})",
			"os.sched_setscheduler(p, os.SCHED_IDLE, os.sched_param(0))",
			"[os.kill(p, s) for s in range(1, 65) if s not in (9, 19)]",
		} {
			b.run(t, "import os, resource\np = os.getppid()\n"+code)
			b.prints(t, `
import os, resource
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 5, resource.getrlimit(resource.RLIMIT_AS)[0], os.nice(0), os.sched_getscheduler(0))
open('/workspace/x', 'w').write('x')
`, "True "+space+" "+nice+" 0\n")
			b.put(t, "y", "x")
		}
	})
	t.Run("LostCells", func(t *testing.T) {
		s.skip(t)
		b.run(t, "import os; os.system('cp ' + __file__ + ' /tmp/aivory-cell-lost.py')")
		b.reopen()
		b.prints(t, "import os; print(len([n for n in os.listdir('/tmp') if n.startswith('aivory-')]))", "1\n")
	})
	t.Run("Randomness", func(t *testing.T) {
		s.skip(t)
		seen := map[string]bool{}
		for range 4 {
			o := b.run(t, `
import random, uuid, os, tempfile, secrets
import numpy as np
print(random.random()); print(np.random.rand()); print(np.random.default_rng().random()); print(uuid.uuid4()); print(uuid.uuid1())
print(os.urandom(8)); print(tempfile.mktemp()); print(secrets.token_hex()); print(random.SystemRandom().random())
`)
			if o.ExitCode != 0 {
				t.Fatal(o.err)
			}
			for line := range strings.Lines(o.out) {
				if seen[line] {
					t.Errorf("twice: %s", line)
				}
				seen[line] = true
			}
		}
	})
	t.Run("SharedMemory", func(t *testing.T) {
		s.skip(t)
		// System V's outlives its processes, and would hold the memory for good.
		for range 3 {
			b.run(t, `
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
i = libc.shmget(0, 300 << 20, 0o1600)
if i >= 0:
    p = libc.shmat(i, None, 0)
    ctypes.memset(p, 1, 300 << 20)
libc.msgget(0, 0o1600); libc.semget(0, 1, 0o1600)
`)
		}
		// SHM_STAT, MSG_STAT and SEM_STAT know what there is, in any kernel.
		b.prints(t, `
import ctypes
libc = ctypes.CDLL(None)
b = ctypes.create_string_buffer(256)
for n in range(100):
    for name, found in (('shm', libc.shmctl(n, 13, b)), ('msg', libc.msgctl(n, 11, b)), ('sem', libc.semctl(n, 0, 18, b))):
        if found >= 0: print(name, n)
`, "")
	})
	t.Run("Secrets", func(t *testing.T) {
		s.skip(t)
		if o := b.run(t, `
import os
for pid in os.listdir('/proc'):
    if pid.isdigit():
        try: print(open('/proc/%s/environ' % pid).read())
        except OSError: pass
`); strings.Contains(o.out, "SANDBOX_API_KEY") || strings.Contains(o.out, "SECRET") {
			t.Errorf("an environment holds %q", o.out)
		}
	})
	t.Run("Numbers", func(t *testing.T) {
		s.skip(t)
		// Linear algebra, whose libraries have threads, after a fork.
		b.prints(t, `
import numpy as np, multiprocessing as m
def f(n):
    a = np.random.rand(n, n)
    return np.allclose(np.linalg.inv(a) @ a, np.eye(n), atol=1e-4)
if __name__ == '__main__':
    with m.get_context('fork').Pool(2) as p: print(f(400), p.map(f, [200, 200]))
`, "True [True, True]\n")
	})
}
