//go:build integration

package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"
)

// asAFile runs a program inside the session as `python3 FILE` does, without the
// service's help, and returns what it gives.
func (s testSession) asAFile(t *testing.T, code string) result {
	t.Helper()
	r := s.run(t, `
import json, os, subprocess, sys
path = "/tmp/aivory-cell-" + os.urandom(16).hex() + ".py"
with open(path, "wb") as f:
    f.write(`+python(code)+`.encode("utf-8", "surrogatepass"))
p = subprocess.run([sys.executable, path], stdin=subprocess.DEVNULL, capture_output=True, cwd="/workspace")
os.unlink(path)
code = p.returncode if p.returncode >= 0 else 128 - p.returncode
print(json.dumps([p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace"), code]))
`, time.Minute)
	var fields [3]any
	if err := json.Unmarshal([]byte(r.Stdout), &fields); err != nil || r.Exit != 0 {
		t.Fatalf("the plain run failed: %v", r)
	}
	return result{Stdout: fields[0].(string), Stderr: fields[1].(string), Exit: int(fields[2].(float64))}
}

var changing = regexp.MustCompile(`aivory-cell-[0-9a-f]{32}\.py|0x[0-9a-f]{6,}|started \d+`)

// TestAProgramIsAScriptFile compares runs with what the same source gives as a
// plain file, to the byte. What differs for good reason is not among them:
// decisions.md lists it.
func TestAProgramIsAScriptFile(t *testing.T) {
	s := sharedService(t).session(t)
	for name, code := range map[string]string{
		"traceback":                    "x = 1\n\ndef boom(n):\n    if n: boom(n - 1)\n    raise ValueError(\"bad\")\n\nboom(2)\n",
		"traceback in one line":        "1/0",
		"chained exceptions":           "try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('v') from e",
		"exception group":              "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
		"exception with a note":        "e = ValueError('v'); e.add_note('note'); raise e",
		"exception in a thread":        "import threading\nt = threading.Thread(target=lambda: 1/0, name='T'); t.start(); t.join()",
		"exception in __del__":         "class A:\n    def __del__(self): 1/0\nA()",
		"exception in atexit":          "import atexit\natexit.register(lambda: 1/0)",
		"excepthook":                   "import sys\nsys.excepthook = lambda *a: print('hooked', a[0].__name__)\n1/0",
		"traceback module":             "import traceback\ntry: 1/0\nexcept Exception: traceback.print_exc()",
		"recursion":                    "import sys\nprint(sys.getrecursionlimit())\ndef f(n):\n    try: return f(n + 1)\n    except RecursionError: return n\nprint(f(0) > 900)",
		"SyntaxError":                  "x = 1\nprint('a'\ny = 2",
		"SyntaxError in the middle":    "print('never')\nfor x in:\n    pass",
		"IndentationError":             "if 1:\nprint(1)",
		"TabError":                     "if 1:\n        x\n\ty\n",
		"unterminated string":          "s = '中文",
		"invalid escape":               "print('\\d')",
		"return at the top":            "return 1",
		"await at the top":             "await x",
		"empty":                        "",
		"white space":                  " \n\t\n",
		"comment":                      "# nothing",
		"BOM":                          "\ufeffprint('bom')",
		"CRLF":                         "a = 1\r\nif a:\r\n    print('''x\r\ny'''.encode())\r\n",
		"CR":                           "a = 1\rprint(a)\r",
		"form feed":                    "\fif True:\n\tprint('t')",
		"coding gbk":                   "# coding: gbk\nprint('ok')",
		"coding latin-1":               "# coding: latin-1\nprint(ascii('é'))",
		"long line":                    "x = " + strings.Repeat("1 + ", 2000) + "1\nprint(x)",
		"deep nesting":                 strings.Repeat("(", 300) + strings.Repeat(")", 300),
		"many nested blocks":           nested(25),
		"annotations are evaluated":    "def f(x: undefined_name): pass\nprint('not reached before 3.14')",
		"compiler flags":               "def f(): pass\nprint(f.__code__.co_flags & 0x1ffff000, compile('1', 'x', 'eval').co_flags & 0x1ffff000)",
		"future import":                "from __future__ import annotations\ndef f(x: undefined_name): pass\nprint(f.__annotations__)",
		"future import, not first":     "import os\nfrom __future__ import annotations",
		"docstring":                    "'''about'''\nprint(__doc__)",
		"no docstring":                 "print(__doc__)",
		"globals":                      "print(sorted(globals()))",
		"names of the module":          "import sys\nm = sys.modules['__main__']\nprint(__name__, __package__, __spec__, type(__loader__).__name__, m.__dict__ is globals(), m.__file__ == __file__, type(m).__name__)",
		"file and arguments":           "import os, sys\nprint(__file__, os.path.isfile(__file__), sys.argv, open(__file__).read())",
		"builtins":                     "import builtins\nprint(__builtins__ is builtins, hasattr(builtins, '_'), exit, quit, help)",
		"flags":                        "import sys\nprint(sys.flags, sys.warnoptions, sys._xoptions, sys.dont_write_bytecode)",
		"streams":                      "import sys\nfor f in sys.stdin, sys.stdout, sys.stderr: print(f.name, f.mode, f.encoding, f.errors, f.isatty(), f.fileno(), f.line_buffering, f.write_through, f is getattr(sys, '__' + f.name.strip('<>') + '__'))",
		"encodings":                    "import locale, sys\nprint(sys.getfilesystemencoding(), sys.getdefaultencoding(), locale.getpreferredencoding(False), locale.getlocale(), open(__file__).encoding)",
		"signal handlers":              "import signal\nprint([(int(n), str(signal.getsignal(n))) for n in signal.valid_signals() if n not in (9, 19)])\nprint(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.set_wakeup_fd(-1))",
		"limits":                       "import resource\nprint([resource.getrlimit(i) for i in range(16)])",
		"environment":                  "import os\nprint(sorted(os.environ.items()))",
		"environment as children see":  "import subprocess\nprint(subprocess.run(['env', '-0'], capture_output=True).stdout.split(b'\\0').sort())",
		"identity":                     "import os\nprint(os.getuid(), os.getgid(), os.getgroups(), os.getcwd(), oct(os.umask(0)), os.nice(0))",
		"priorities":                   "import os\nprint(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), len(os.sched_getaffinity(0)))",
		"threads":                      "import threading\nprint(threading.current_thread(), threading.active_count(), threading.current_thread() is threading.main_thread(), threading.main_thread().name)",
		"tracing":                      "import sys, threading\nprint(sys.gettrace(), sys.getprofile(), threading.gettrace(), sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.unraisablehook is sys.__unraisablehook__)",
		"garbage collector":            "import gc\nprint(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks)",
		"switch interval":              "import sys\nprint(sys.getswitchinterval(), sys.int_info, sys.get_int_max_str_digits())",
		"warnings once":                "import warnings\nfor _ in range(3): warnings.warn('old', DeprecationWarning)",
		"ResourceWarning is quiet":     "open('/dev/null')",
		"decimal context":              "import decimal; print(decimal.getcontext())",
		"asyncio state":                "import asyncio\nprint(asyncio.get_event_loop_policy().__class__.__name__)\ntry: asyncio.get_running_loop()\nexcept RuntimeError as e: print(e)",
		"logging state":                "import logging\nprint(logging.root.handlers, logging.root.level, logging.getLogger('x').getEffectiveLevel()); logging.warning('w')",
		"inspect.getsource":            "import inspect\ndef f():\n    return 7  # seven\nprint(inspect.getsource(f), inspect.getsourcefile(f) == __file__, inspect.getmodule(f))",
		"linecache":                    "import linecache\nprint(repr(linecache.getline(__file__, 1)))",
		"pickle":                       "import pickle\nclass A:\n    def __eq__(s, o): return type(s) is type(o)\nb = pickle.dumps(A())\nprint(b, pickle.loads(b) == A(), A.__module__)",
		"dataclass and enum":           "import dataclasses, enum\n@dataclasses.dataclass\nclass D:\n    x: int = 1\nclass E(enum.Enum): a = 1\nprint(D(), E.a, D.__module__)",
		"import of itself":             "import __main__\nprint(__main__.__name__)",
		"runpy":                        "import runpy, os\nif os.environ.get('again') is None:\n    os.environ['again'] = '1'\n    runpy.run_path(__file__)\nprint(__name__)",
		"code module":                  "import code\ncode.InteractiveInterpreter().runsource('1/0')",
		"time zone":                    "import time, datetime\nprint(time.tzname, datetime.datetime.now().astimezone().tzinfo)",
		"child interpreter":            "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import sys; print(sys.flags, sys.argv, len(sys.path))'], capture_output=True, text=True, cwd='/').stdout)",
		"spawn context of forkserver":  "import multiprocessing as mp\nprint(mp.get_start_method(), mp.current_process(), mp.parent_process())",
		"platform":                     "import platform, sys\nprint(platform.python_version(), sys.executable, sys.prefix, sys.base_prefix, sys.implementation.name)",
		"user site":                    "import site\nprint(site.ENABLE_USER_SITE, site.getusersitepackages(), site.USER_BASE)",
		"int to string limit":          "print(len(str(10**5000)))",
		"frozen modules":               "import sys\nprint([n for n in ('os', 'io', 'abc', 'codecs', 'site') if n not in sys.modules])",
		"locals at the top":            "print(locals() is globals()); x = 1; exec('y = x'); print(y)",
		"print to a closed stdout":     "import sys; sys.stdout.close(); print(1)",
		"closed descriptor one":        "import os; os.close(1); print('lost')",
		"unraisable":                   "import sys\nsys.unraisablehook = lambda u: print('unraisable', u.exc_type.__name__)\nclass A:\n    def __del__(self): 1/0\nA()",
		"KeyboardInterrupt":            "raise KeyboardInterrupt",
		"generator left open":          "def g():\n    try: yield 1\n    finally: print('closed')\nx = g(); next(x)",
		"async generator left open":    "import asyncio\nasync def g():\n    try: yield 1\n    finally: print('closed')\nasync def main():\n    async for x in g(): break\nasyncio.run(main())",
		"order of teardown":            "import atexit\nclass A:\n    def __init__(s, n): s.n = n\n    def __del__(s): print('del', s.n)\na, _b, c = A('a'), A('_b'), A('c')\natexit.register(print, 'atexit')",
		"object in a cycle":            "class A:\n    def __del__(self): print('cycle')\na = A(); a.me = a",
		"weakref callback at the end":  "import weakref\nclass A: pass\na = A(); weakref.finalize(a, print, 'finalized')",
		"exit code of a failing flush": "import os, sys\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nsys.stdout.write('x')",
	} {
		t.Run(name, func(t *testing.T) {
			got, want := s.run(t, code, time.Minute), s.asAFile(t, code)
			mask := func(text string) string { return changing.ReplaceAllString(text, "#") }
			if mask(got.Stdout) != mask(want.Stdout) || mask(got.Stderr) != mask(want.Stderr) || got.Exit != want.Exit {
				t.Errorf("the run gives\n%v\na plain file\n%v", got, want)
			}
			s.alive(t)
		})
	}
}

// nested returns a program of so many blocks within each other.
func nested(depth int) string {
	var b strings.Builder
	for i := range depth {
		b.WriteString(strings.Repeat(" ", i) + "for _ in range(1):\n")
	}
	b.WriteString(strings.Repeat(" ", depth) + "print('in')\n")
	return b.String()
}

// TestScriptsWithProcesses needs answers of its own: two runs of these differ.
func TestScriptsWithProcesses(t *testing.T) {
	tryAll(t, []program{
		{name: "pools of every kind", within: 30 * time.Second, out: is("spawn [1, 4, 9]\nforkserver [1, 4, 9]\nfork [1, 4, 9]\n"), code: `
import multiprocessing as mp

def square(x):
    return x * x

if __name__ == "__main__":
    for kind in ("spawn", "forkserver", "fork"):
        with mp.get_context(kind).Pool(2) as pool:
            print(kind, pool.map(square, [1, 2, 3]))
`},
		{name: "spawned executor with a class of the program", within: 30 * time.Second, out: is("[Point(x=2), Point(x=3)]\n"), code: `
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
import multiprocessing as mp

@dataclass
class Point:
    x: int

def right(p):
    return Point(p.x + 1)

if __name__ == "__main__":
    with ProcessPoolExecutor(2, mp_context=mp.get_context("spawn")) as pool:
        print(list(pool.map(right, [Point(1), Point(2)])))
`},
		{name: "source that cannot be read", exit: 1, err: has("SyntaxError: "), code: "# coding: nonsense\nprint(1)"},
		{name: "source in another encoding than it says", exit: 1, err: has("SyntaxError: "), code: "# coding: gbk\nprint('中文')"},
		{name: "the file's name", out: like(`^/tmp/aivory-cell-[0-9a-f]{32}\.py\n$`), code: `print(__file__)`},
		{name: "a module in the workspace", out: is("42 /workspace/helper_mod.py\n"), code: `
open("/workspace/helper_mod.py", "w").write("V = 42")
import helper_mod
print(helper_mod.V, helper_mod.__file__)`},
		{name: "a module in the workspace does not hide the library", out: is("True\n"), code: `
for name in ("json", "random", "numpy", "os", "re"):
    open(f"/workspace/{name}.py", "w").write("raise RuntimeError('hidden')")
import json, random, numpy, os, re
print(not any(m.__file__.startswith("/workspace") for m in (json, random, numpy, os, re)))
`, check: func(t *testing.T, s testSession, _ result) {
			s.alive(t) // with those files in place
			r := s.run(t, "import glob, os\nfor n in glob.glob('/workspace/*.py'): os.unlink(n)", 0)
			if r.Exit != 0 {
				t.Error(r)
			}
		}},
	})
}
