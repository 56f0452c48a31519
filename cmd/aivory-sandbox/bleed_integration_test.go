//go:build integration

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// snapshot prints what a program finds, as far as an earlier one could have
// changed it.
const snapshot = `
import builtins, decimal, gc, json, locale, logging, os, random, resource, signal, socket, string, sys, threading, warnings
import matplotlib, numpy, pandas
state = {
    "globals": sorted(globals()),
    "environ": sorted(os.environ.items()),
    "cwd": os.getcwd(),
    "umask": os.umask(0o22),
    "builtins": sorted(vars(builtins)),
    "dumps": json.dumps({"a": 1}),
    "len": builtins.len.__class__.__name__,
    "numpy": float(numpy.sum([1, 2])),
    "numpy errors": sorted(numpy.geterr().items()),
    "numpy printing": str(sorted(numpy.get_printoptions().items())),
    "pandas": pandas.get_option("display.max_rows"),
    "rc": str(sorted((k, str(v)) for k, v in matplotlib.rcParams.items())),
    "filters": str(warnings.filters),
    "locale": str([locale.setlocale(c) for c in (locale.LC_ALL, locale.LC_NUMERIC)]),
    "path": sys.path,
    "argv": len(sys.argv),
    "modules": sorted(m for m in sys.modules if m.startswith("planted")),
    "recursion": sys.getrecursionlimit(),
    "signals": str([signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGPIPE, signal.SIGCHLD)]),
    "mask": str(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "timer": signal.getitimer(signal.ITIMER_REAL)[0],
    "limits": [resource.getrlimit(i) for i in range(16)],
    "nice": os.nice(0),
    "affinity": len(os.sched_getaffinity(0)),
    "gc": [gc.isenabled(), gc.get_threshold()],
    "decimal": str(decimal.getcontext()),
    "logging": [str(logging.root.handlers), logging.root.level, logging.root.manager.disable],
    "socket": socket.getdefaulttimeout(),
    "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, str(threading.excepthook), str(sys.gettrace())],
    "streams": [sys.stdout is sys.__stdout__, sys.stderr.fileno(), sys.stdout.encoding],
    "threads": threading.active_count(),
    "descriptors": len(os.listdir("/proc/self/fd")),
    "processes": sorted(p for p in (open(f"/proc/{d}/cmdline", "rb").read().decode("utf-8", "replace") for d in os.listdir("/proc") if d.isdigit()) if "sleep\0" + "7777" in p),
    "personality": open("/proc/self/personality").read() if os.access("/proc/self/personality", os.R_OK) else "",
    "dumpable": __import__("ctypes").CDLL(None).prctl(3, 0, 0, 0, 0),
    "name": open("/proc/self/comm").read(),
    "cells": [n for n in os.listdir("/tmp") if n.startswith("aivory-cell") and n != os.path.basename(__file__)],
}
print(json.dumps(state, indent=0))
`

// vandal changes all of that.
const vandal = `
import builtins, ctypes, decimal, gc, json, locale, logging, os, random, resource, signal, socket, subprocess, sys, threading, types, warnings
import matplotlib, numpy, pandas
import matplotlib.pyplot as plt
planted_global = 1
os.environ["PLANTED"] = "1"; os.environ["PYTHONPATH"] = "/workspace/evil"; os.environ["HOME"] = "/tmp"
os.putenv("PLANTED2", "1")
del os.environ["PATH"]
os.chdir("/tmp")
json.dumps = lambda *a, **k: "vandalised"
builtins.planted = 1
numpy.sum = lambda *a: 666; numpy.seterr(all="raise"); numpy.set_printoptions(precision=1)
random.seed(1); numpy.random.seed(1)
pandas.set_option("display.max_rows", 3)
plt.rcParams["font.size"] = 99; matplotlib.use("svg"); plt.figure()
locale.setlocale(locale.LC_ALL, "C")
sys.path.insert(0, "/workspace/evil"); sys.argv.append("x"); sys.modules["planted_module"] = types.ModuleType("planted_module")
sys.setrecursionlimit(77777)
for s in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGPIPE, signal.SIGCHLD): signal.signal(s, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGCHLD}); signal.setitimer(signal.ITIMER_REAL, 1000)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)); resource.setrlimit(resource.RLIMIT_CPU, (20, 20)); resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.nice(5); os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
gc.disable(); decimal.getcontext().prec = 3; logging.basicConfig(level=1); logging.disable(50); socket.setdefaulttimeout(1)
sys.excepthook = threading.excepthook = sys.displayhook = lambda *a: None
sys.stdout.reconfigure(encoding="latin-1")
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); ctypes.CDLL(None).prctl(15, b"vandal", 0, 0, 0)
keep = open("/workspace/held-open.txt", "w")
open("/tmp/aivory-cell-planted.py.not", "w")
subprocess.Popen(["sleep", "7777"], start_new_session=True, env={})
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.execve("/bin/sleep", ["sleep", "7777"], {})
    os._exit(0)
threading.Thread(target=lambda: __import__("time").sleep(1000), daemon=True).start()
warnings.simplefilter("error"); builtins.len = lambda x: 42; os.umask(0o777)
os.write(1, b"vandalised")
os._exit(0)
`

func TestNoBleedBetweenRuns(t *testing.T) {
	s := sharedService(t).session(t)
	before := s.run(t, snapshot, 2*time.Minute)
	if before.Exit != 0 || !strings.Contains(before.Stdout, `"recursion"`) {
		t.Fatalf("the first look: %v", before)
	}
	for range times(3, 100) {
		if r := s.run(t, vandal, 0); r.Exit != 0 || r.Stdout != "vandalised" {
			t.Fatalf("the vandal: %v", r)
		}
		if r := s.run(t, "import os; os.path.exists('/tmp/aivory-cell-planted.py.not') and os.unlink('/tmp/aivory-cell-planted.py.not')", 0); r.Exit != 0 {
			t.Fatal(r)
		}
		after := s.run(t, snapshot, 2*time.Minute)
		if after.Stdout != before.Stdout || after.Exit != 0 {
			t.Fatalf("the next program found other things:\n%s", lineDiff(before.Stdout, after.Stdout+after.Stderr))
		}
	}
	s.alive(t)
}

// lineDiff returns the lines that only one of two texts has.
func lineDiff(a, b string) string {
	var out strings.Builder
	for _, side := range []struct{ mark, text, other string }{{"- ", a, b}, {"+ ", b, a}} {
		for line := range strings.Lines(side.text) {
			if !strings.Contains(side.other, line) {
				fmt.Fprintf(&out, "%s%.500s", side.mark, line)
			}
		}
	}
	return out.String()
}

func TestRandomnessIsFresh(t *testing.T) {
	s := sharedService(t).session(t)
	const code = `
import os, random, secrets, tempfile, uuid
import numpy
print(random.random(), numpy.random.rand(), numpy.random.default_rng().random(), uuid.uuid4(), secrets.token_hex(8), tempfile.mktemp(), os.urandom(4).hex(), sep="\n")
`
	seen := map[string]bool{}
	for range 5 {
		r := s.run(t, code, 0)
		if r.Exit != 0 || strings.Count(r.Stdout, "\n") != 7 {
			t.Fatal(r)
		}
		for line := range strings.Lines(r.Stdout) {
			if seen[line] {
				t.Errorf("drawn twice: %q", line)
			}
			seen[line] = true
		}
	}
	for _, code := range []string{"import random; random.seed(5); print(random.random())", "import numpy; numpy.random.seed(5); print(numpy.random.rand())"} {
		if a, b := s.run(t, code, 0), s.run(t, code, 0); a.Stdout != b.Stdout || a.Exit != 0 {
			t.Errorf("a seed does not repeat: %q, %q", a.Stdout, b.Stdout)
		}
	}
}

// TestNoSecretReachesARunner looks from inside and from outside.
func TestNoSecretReachesARunner(t *testing.T) {
	service := sharedService(t)
	const secret = "storage-secret-0123456789"
	a := service.post("/sessions", fmt.Sprintf(`{"archive_key":"bleed","storage":{"provider":"s3","prefix":"p/","s3_bucket":"b","s3_region":"us-east-1",
		"s3_endpoint":"http://127.0.0.1:1","s3_access_key":"%s","s3_secret_key":"%s"}}`, secret, secret))
	id, err := sessionID(a)
	if err != nil {
		t.Fatal(err)
	}
	s := testSession{service, id}
	defer func() {
		if a := s.do(context.Background(), "DELETE", "/sessions/"+s.id, `{"discard":true}`); a.status != 200 {
			t.Errorf("delete: %v", a)
		}
	}()
	r := s.run(t, `
import glob, os
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/task/*/environ"):
    try:
        print(open(path, "rb").read())
    except OSError:
        pass
print(os.environ)
`, 0)
	if r.Exit != 0 || !strings.Contains(r.Stdout, "MPLBACKEND") {
		t.Fatalf("the look around: %v", r)
	}
	for _, word := range []string{service.key, secret} {
		if strings.Contains(r.Stdout, word) {
			t.Errorf("a program can read a secret: %v", r)
		}
	}

	runners, err := service.outsides()
	if err != nil || len(runners) == 0 {
		t.Fatalf("runners: %v, %v", runners, err)
	}
	for _, o := range runners {
		o = service.look(t, o)
		looked := o.description
		// gVisor's processes are its own: what the program saw has to do.
		members, err := namespaceMembers(o.pid)
		if err != nil || len(members) < 2 && !onGVisor {
			t.Fatalf("processes of runner %s: %v, %v", o.id, members, err)
		}
		for _, pid := range members {
			for _, file := range []string{"environ", "cmdline"} {
				// A process may have ended since.
				text, _ := os.ReadFile(filepath.Join("/proc", pid, file))
				looked += string(bytes.ReplaceAll(text, []byte{0}, []byte{'\n'}))
			}
		}
		for _, word := range []string{service.key, secret} {
			if strings.Contains(looked, word) {
				t.Errorf("runner %s holds a secret", o.id)
			}
		}
	}
	s.alive(t)
}

// namespaceMembers returns the processes that share the pid namespace of pid.
func namespaceMembers(pid int) ([]string, error) {
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return nil, err
	}
	dirs, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	if err != nil {
		return nil, err
	}
	var members []string
	for _, dir := range dirs {
		if found, err := os.Readlink(dir); err == nil && found == namespace {
			members = append(members, strings.Split(dir, "/")[2])
		}
	}
	return members, nil
}
