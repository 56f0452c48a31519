//go:build integration

package main

import (
	"strings"
	"testing"
	"time"
)

func TestExitCodes(t *testing.T) {
	tryAll(t, []program{
		{name: "message", code: `import sys; sys.exit("msg")`, exit: 1, err: is("msg\n")},
		{name: "number", code: `import sys; sys.exit(3)`, exit: 3},
		{name: "256", code: `import sys; sys.exit(256)`, exit: 0},
		{name: "minus one", code: `import sys; sys.exit(-1)`, exit: 255},
		{name: "huge", code: `import sys; sys.exit(10**30)`, exit: 255, err: whatever},
		{name: "none", code: `import sys; sys.exit(None)`},
		{name: "true", code: `import sys; sys.exit(True)`, exit: 1},
		{name: "float", code: `import sys; sys.exit(2.5)`, exit: 1, err: is("2.5\n")},
		{name: "raise SystemExit", code: `raise SystemExit`},
		{name: "raise SystemExit with a message", code: `raise SystemExit("结束")`, exit: 1, err: is("结束\n")},
		{name: "exit builtin", code: `exit(4)`, exit: 4},
		{name: "_exit", code: `import os; os._exit(7)`, exit: 7},
		{name: "exception", code: `1/0`, exit: 1, err: like(`(?s)^Traceback .*ZeroDivisionError: division by zero\n$`)},
		{name: "exit in a thread", code: "import threading, sys\nt = threading.Thread(target=lambda: sys.exit(9)); t.start(); t.join(); print('main')", out: is("main\n")},
		{name: "KeyboardInterrupt", code: `raise KeyboardInterrupt`, exit: 130, err: like(`KeyboardInterrupt\n$`)},
		{name: "segfault", code: `import ctypes; ctypes.string_at(0)`, exit: 139, err: notes},
		{name: "abort", code: `import os; os.abort()`, exit: 134, err: notes},
		{name: "SIGTERM", code: `import os, signal; os.kill(os.getpid(), signal.SIGTERM)`, exit: 143, err: notes},
		{name: "SIGHUP", code: `import os, signal; os.kill(os.getpid(), signal.SIGHUP)`, exit: 129, err: notes},
		{name: "SIGKILL", code: `import os, signal; os.kill(os.getpid(), signal.SIGKILL)`, exit: 137, err: notes},
		{name: "stack overflow", code: `import faulthandler; faulthandler._stack_overflow()`, exit: 139, err: notes},
		{name: "124 is no timeout", code: `import sys; sys.exit(124)`, exit: 124},
		{name: "137 is no kill", code: `import sys; sys.exit(137)`, exit: 137},
		{name: "exec of another program", code: "import os; print('before', flush=True); os.execvp('sh', ['sh', '-c', 'echo after; exit 5'])", exit: 5, out: is("before\nafter\n")},
	})
}

// notes are the service's own remarks, which must not call a program that ended
// by itself one that ran for too long or used too much memory.
func notes(got string) string {
	for _, word := range []string{"exceeded", "memory", "timeout", "Traceback"} {
		if strings.Contains(got, word) {
			return "speaks of " + word
		}
	}
	return ""
}

func TestUnflushedOutput(t *testing.T) {
	killed := is("\n[sandbox] execution exceeded 2.000s and was killed")
	tryAll(t, []program{
		{name: "_exit", code: `import os; print("a"); os._exit(0)`, out: is("a\n")},
		{name: "_exit, no newline", code: `import os, sys; sys.stdout.write("a"); os._exit(0)`, out: is("a")},
		{name: "_exit, stderr", code: `import os, sys; print("a", file=sys.stderr); os._exit(0)`, err: is("a\n")},
		{name: "segfault", code: `import ctypes; print("a"); ctypes.string_at(0)`, out: is("a\n"), exit: 139, err: notes},
		{name: "SIGKILL", code: `import os; print("a", end=""); os.kill(os.getpid(), 9)`, out: is("a"), exit: 137, err: notes},
		{name: "endless loop", code: "print(\"a\", end=\"\")\nwhile True: pass", timeout: 2 * time.Second, within: 20 * time.Second,
			out: is("a"), exit: 124, err: trimmed(killed)},
		{name: "endless sleep", code: "print(\"a\", end=\"\")\nimport time; time.sleep(1000)", timeout: 2 * time.Second, within: 20 * time.Second,
			out: is("a"), exit: 124, err: trimmed(killed)},
		{name: "endless loop that ignores SIGTERM", timeout: 2 * time.Second, within: 20 * time.Second, exit: 124,
			code: "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(\"a\", end=\"\")\nwhile True: pass",
			out:  is("a"), err: trimmed(killed)},
		{name: "word on SIGTERM", timeout: 2 * time.Second, within: 20 * time.Second, exit: 124,
			code: "import signal, sys, time\ndef bye(*_): print('bye'); sys.exit(0)\nsignal.signal(signal.SIGTERM, bye)\ntime.sleep(1000)",
			out:  is("bye\n"), err: trimmed(killed)},
		{name: "a child holds the pipe", code: `import subprocess; print("a"); subprocess.Popen(["sleep", "1000"])`, out: is("a\n"), within: 20 * time.Second},
		{name: "a file that was not closed", code: `f = open("/workspace/unclosed.txt", "w"); f.write("kept")`,
			check: func(t *testing.T, s testSession, _ result) {
				if got := s.read(t, "unclosed.txt"); string(got) != "kept" {
					t.Errorf("the file holds %q", got)
				}
			}},
		{name: "a buffer of the program's own", code: "import io, sys\nsys.stdout = io.TextIOWrapper(io.FileIO(1, 'w', closefd=False), write_through=False)\nprint('kept')", out: is("kept\n")},
	})
}

// trimmed lets the note about a timeout begin and end with or without a newline.
func trimmed(m matcher) matcher {
	return func(got string) string { return m("\n" + strings.Trim(got, "\n")) }
}

func TestEndsCleanly(t *testing.T) {
	tryAll(t, []program{
		{name: "thread", code: "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.3), print('thread'))).start()\nprint('main')", out: is("main\nthread\n")},
		{name: "thread that starts another", out: is("main\nsecond\n"),
			code: "import threading, time\ndef first():\n    time.sleep(.2)\n    threading.Thread(target=lambda: (time.sleep(.2), print('second'))).start()\nthreading.Thread(target=first).start()\nprint('main')"},
		{name: "daemon thread", code: "import threading, time\nthreading.Thread(target=lambda: time.sleep(1000), daemon=True).start()\nprint('main')", out: is("main\n"), within: 20 * time.Second},
		{name: "atexit", code: "import atexit\natexit.register(print, 'first registered')\natexit.register(print, 'atexit')\nprint('main')", out: is("main\natexit\nfirst registered\n")},
		{name: "atexit after an exception", code: "import atexit\natexit.register(print, 'atexit')\n1/0", out: is("atexit\n"), exit: 1, err: has("ZeroDivisionError")},
		{name: "atexit after sys.exit", code: "import atexit, sys\natexit.register(print, 'atexit')\nsys.exit(3)", out: is("atexit\n"), exit: 3},
		{name: "finalizer", code: "class A:\n    def __del__(self): print('gone')\na = A()\nprint('main')", out: is("main\ngone\n")},
		{name: "temporary directory", code: "import tempfile\nd = tempfile.TemporaryDirectory(dir='/workspace', prefix='gone-')\nprint('main')", out: is("main\n"), err: whatever,
			check: func(t *testing.T, s testSession, _ result) {
				r := s.run(t, "import glob; print(glob.glob('/workspace/gone-*'))", 0)
				if r.Stdout != "[]\n" {
					t.Errorf("left behind: %v", r)
				}
			}},
		{name: "asyncio subprocess", out: is("hi\n0\n"),
			code: "import asyncio\nasync def main():\n    p = await asyncio.create_subprocess_exec('echo', 'hi', stdout=asyncio.subprocess.PIPE)\n    out, _ = await p.communicate()\n    print(out.decode(), end=''); print(p.returncode)\nasyncio.run(main())"},
		{name: "asyncio shell and signals", out: is("7\n"),
			code: "import asyncio\nasync def main():\n    p = await asyncio.create_subprocess_shell('exit 7')\n    print(await p.wait())\nasyncio.run(main())"},
		{name: "thread pool not shut down", code: "from concurrent.futures import ThreadPoolExecutor\nimport time\nex = ThreadPoolExecutor(2)\nex.submit(lambda: (time.sleep(.2), print('job')))\nprint('main')", out: is("main\njob\n")},
		{name: "process pool not shut down", code: "from concurrent.futures import ProcessPoolExecutor\nex = ProcessPoolExecutor(2)\nprint(ex.submit(pow, 2, 5).result())", out: is("32\n"), within: 25 * time.Second},
		{name: "multiprocessing pool not closed", code: "import multiprocessing as mp\np = mp.get_context('fork').Pool(2)\nprint(p.map(abs, [-1, -2]))", out: is("[1, 2]\n"), err: whatever, within: 25 * time.Second},
		{name: "process that is not joined", code: "import multiprocessing as mp, time\nmp.get_context('fork').Process(target=lambda: (time.sleep(.3), print('child', flush=True))).start()\nprint('main', flush=True)", out: is("main\nchild\n")},
		{name: "flush that fails at the end", code: "import io, sys\nclass W(io.StringIO):\n    def flush(self): raise OSError('no')\nsys.stdout = W()", exit: 120, err: whatever},
		{name: "child of subprocess with its status", code: "import subprocess\nprint(subprocess.run(['sh', '-c', 'exit 3']).returncode)", out: is("3\n")},
	})
}
