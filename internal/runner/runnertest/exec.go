package runnertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

func testExec(t *testing.T, s *suite) {
	b := s.sandbox(t)
	for _, test := range []part{
		{"ExitCodes", exitCodes}, {"Unflushed", unflushed}, {"Output", output}, {"Stdin", stdin}, {"Timeout", timeouts},
		{"Cancel", cancels}, {"Interrupt", interrupts}, {"Stream", streams}, {"Source", sources}, {"Usage", usage},
	} {
		test.run(t, b)
	}
}

func exitCodes(t *testing.T, b *sandbox) {
	for _, c := range []struct {
		code   string
		exit   int
		reason runner.Reason
		stderr string
	}{
		{`pass`, 0, runner.ReasonExit, ""},
		{``, 0, runner.ReasonExit, ""},
		{`import sys; sys.exit()`, 0, runner.ReasonExit, ""},
		{`raise SystemExit`, 0, runner.ReasonExit, ""},
		{`import sys; sys.exit(3)`, 3, runner.ReasonExit, ""},
		{`import sys; sys.exit(256)`, 0, runner.ReasonExit, ""},
		{`import sys; sys.exit(-1)`, 255, runner.ReasonExit, ""},
		{`import sys; sys.exit(True)`, 1, runner.ReasonExit, ""},
		{`import sys; sys.exit("msg")`, 1, runner.ReasonExit, "msg\n"},
		{`import sys; sys.exit(124)`, 124, runner.ReasonExit, ""},
		{`import sys; sys.exit(137)`, 137, runner.ReasonExit, ""},
		{`import os; os._exit(7)`, 7, runner.ReasonExit, ""},
		{`import os; os.abort()`, 134, runner.ReasonSignal, ""},
		{`import ctypes; ctypes.string_at(0)`, 139, runner.ReasonSignal, ""},
		{`import os; os.kill(os.getpid(), 15)`, 143, runner.ReasonSignal, ""},
		{`import os; os.kill(os.getpid(), 9)`, 137, runner.ReasonSignal, ""},
		{`import os; os.kill(0, 9)`, 137, runner.ReasonSignal, ""},
		{`import os, time; os.kill(os.getpid(), 2); time.sleep(9)`, 130, runner.ReasonSignal, "KeyboardInterrupt"},
		{`1/0`, 1, runner.ReasonExit, "ZeroDivisionError"},
		{"def f(:", 1, runner.ReasonExit, "SyntaxError"},
		{`import os; os.execvp("sh", ["sh", "-c", "echo x >&2; exit 9"])`, 9, runner.ReasonExit, "x\n"},
	} {
		if o := b.run(t, c.code); o.ExitCode != c.exit || !strings.Contains(o.err, c.stderr) || o.out != "" ||
			o.Reason != c.reason {
			t.Errorf("%q: %d %s, stderr %q; want %d %s, %q", c.code, o.ExitCode, o.Reason, o.err, c.exit, c.reason, c.stderr)
		}
	}
}

func unflushed(t *testing.T, b *sandbox) {
	for _, c := range []struct{ code, out string }{
		{`print("a"); import os; os._exit(0)`, "a\n"},
		{`print("a"); import ctypes; ctypes.string_at(0)`, "a\n"},
		{`print("a", end=""); import os; os.kill(os.getpid(), 9)`, "a"},
		{`import os; os.system("echo b"); print("a", end="")`, "b\na"},
		{`import subprocess; subprocess.Popen("sleep 0.3; echo late", shell=True).wait(); print("a")`, "late\na\n"},
	} {
		if o := b.run(t, c.code); o.out != c.out {
			t.Errorf("%q: %q, want %q", c.code, o.out, c.out)
		}
	}
	o := b.run(t, "print('a', end='')\nwhile True: pass", limit(time.Second))
	if o.out != "a" || o.Reason != runner.ReasonTimeout {
		t.Errorf("an endless loop: %q, %s", o.out, o.Reason)
	}
}

func limit(d time.Duration) func(*runner.ExecRequest) {
	return func(r *runner.ExecRequest) { r.Timeout = d }
}

func output(t *testing.T, b *sandbox) {
	o := b.run(t, `
import os, sys
os.write(1, b"\xff\xfeok\xe4\xb8")
sys.stderr.buffer.write(bytes(range(256)))
`)
	if o.out != "\xff\xfeok\xe4\xb8" || len(o.err) != 256 {
		t.Errorf("bytes arrived as %q and %q", o.out, o.err)
	}
	for _, c := range []struct {
		code     string
		out, err bool
	}{
		{`for _ in range(100): print("x" * (1 << 20), end="")`, true, false},
		{`import sys; [sys.stderr.write("x" * (1 << 20)) for _ in range(100)]`, false, true},
		{"print('中' * 20000)", true, false},
		{`print("x" * 32767)`, false, false},
		{`print("x" * 32768)`, true, false},
	} {
		o := b.run(t, c.code)
		if o.StdoutTruncated != c.out || o.StderrTruncated != c.err || c.out && len(o.out) != 32<<10 || c.err && len(o.err) != 32<<10 || o.ExitCode != 0 {
			t.Errorf("%q: %d and %d bytes, truncated %v and %v, exit code %d", c.code, len(o.out), len(o.err), o.StdoutTruncated, o.StderrTruncated, o.ExitCode)
		}
	}
	if o := b.run(t, `print("x")`, func(r *runner.ExecRequest) { r.MaxOutputBytes = 0 }); o.out != "" || !o.StdoutTruncated {
		t.Errorf("no output allowed: %q, %v", o.out, o.StdoutTruncated)
	}
	b.prints(t, `
import os
os.close(1); os.close(2)
open('/workspace/seen', 'w').write('x')
`, "")
	if o := b.run(t, `
import sys
print('中', end='')
for byte in '文'.encode():
    sys.stdout.buffer.write(bytes([byte])); sys.stdout.flush()
    import time; time.sleep(0.02)
`); o.out != "中文" {
		t.Errorf("a character in parts: %q", o.out)
	}
}

func stdin(t *testing.T, b *sandbox) {
	b.prints(t, `
import sys
try: input()
except EOFError: print("EOF")
print(repr(sys.stdin.read()), repr(sys.stdin.buffer.read()), sys.stdin.fileno(), sys.stdin.isatty())
`, "EOF\n'' b'' 0 False\n")
}

func timeouts(t *testing.T, b *sandbox) {
	for _, c := range []struct {
		code, out string
		least     time.Duration
	}{
		{"print('x')\nwhile True: pass", "x\n", time.Second},
		{"import time; time.sleep(60)", "", time.Second},
		{"import signal, time; signal.signal(15, lambda *_: print('term'))\nwhile True: time.sleep(1)", "term\n", 3 * time.Second},
		{"import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)", "", 3 * time.Second},
		{"import signal, sys, time; signal.signal(15, lambda *_: sys.exit(5)); time.sleep(60)", "", time.Second},
		{"import subprocess; subprocess.run(['sleep', '60'])", "", time.Second},
		{"import os, time; os.kill(os.getpid(), 19); time.sleep(60)", "", 3 * time.Second},
	} {
		start := time.Now()
		o := b.run(t, c.code, limit(time.Second))
		took := time.Since(start)
		if o.Reason != runner.ReasonTimeout || o.ExitCode != 124 || o.out != c.out || took < c.least || o.Usage.Wall < c.least {
			t.Errorf("%q: %s, %d, %q after %v (%v)", c.code, o.Reason, o.ExitCode, o.out, took, o.Usage.Wall)
		}
	}
	// The program's children do not hold the answer up.
	o := b.run(t, "import subprocess; subprocess.Popen(['sleep', '60']); print('x')", limit(30*time.Second))
	if o.Reason != runner.ReasonExit || o.out != "x\n" || o.Usage.Wall > 20*time.Second {
		t.Errorf("a child that stays: %s, %q after %v", o.Reason, o.out, o.Usage.Wall)
	}
}

func cancels(t *testing.T, b *sandbox) {
	gone := errors.New("client went away")
	for _, after := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond, 300 * time.Millisecond} {
		b.works(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(after, func() { cancel(gone) })
		start := time.Now()
		_, err := b.try(ctx, `
import signal, time
for s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)
open('/workspace/outputs/x', 'w').write('x' * 1000)
time.sleep(60)`)
		if !errors.Is(err, gone) || time.Since(start) > 20*time.Second {
			t.Errorf("cancelled after %v: %v after %v", after, err, time.Since(start))
		}
		b.prints(t, processes, "[]\n")
	}
}

// sources are programs of all lengths and in all shapes.
func sources(t *testing.T, b *sandbox) {
	for _, n := range []int{64<<10 - 100, 64 << 10, 256 << 10, 1 << 20} {
		code := "print(len(open(__file__).read()))\n#"
		code += strings.Repeat("x", n-len(code))
		b.prints(t, code, fmt.Sprintf("%d\n", n))
	}
	o := b.run(t, "# "+strings.Repeat("x", 1<<20)+"\nprint('x' * 100000)\n1/0\n")
	if o.ExitCode != 1 || !o.StdoutTruncated || !strings.Contains(o.err, "line 3, in <module>\n    1/0\n") {
		t.Errorf("a long program: %d, %q", o.ExitCode, o.err)
	}
}

func usage(t *testing.T, b *sandbox) {
	o := b.run(t, `
import time
end = time.process_time() + 0.3
while time.process_time() < end: pass
x = bytearray(100 << 20)
`)
	if u := o.Usage; u.CPU < 250*time.Millisecond || u.CPU > 30*time.Second || u.MaxRSS < 100<<20 || u.MaxRSS > 1<<30 || u.Wall < u.CPU/2 || u.OOMKills != 0 {
		t.Errorf("got %+v", u)
	}
	// What a program says of itself is not believed.
	o = b.run(t, `
import os, struct
for fd in range(3, 1024):
    try: os.write(fd, struct.pack("!Bdq", 5, float("nan"), -1))
    except OSError: pass
import time; time.sleep(1)`)
	if o.Reason != runner.ReasonExit || o.Usage.CPU < 0 || o.Usage.MaxRSS < 0 {
		t.Errorf("a forged end: %s, %+v", o.Reason, o.Usage)
	}
}
