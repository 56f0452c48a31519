package runnertest

import (
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// interrupted runs a program and interrupts it once it has printed a line.
func (b *sandbox) interrupted(t *testing.T, code string) (o outcome, after time.Duration) {
	t.Helper()
	interrupt := make(chan struct{})
	var at time.Time
	o = b.run(t, code, func(req *runner.ExecRequest) {
		req.Interrupt = interrupt
		req.Output = func(bool, []byte) {
			if at.IsZero() {
				at = time.Now()
				close(interrupt)
			}
		}
	})
	if at.IsZero() {
		t.Fatalf("it printed nothing: %s %d, %q", o.Reason, o.ExitCode, o.err)
	}
	return o, time.Since(at)
}

func interrupts(t *testing.T, b *sandbox) {
	o, after := b.interrupted(t, "import time\nprint(1)\ntime.sleep(60)")
	if o.Reason != runner.ReasonCancelled || o.ExitCode != 130 || !strings.Contains(o.err, "KeyboardInterrupt") || after > 10*time.Second {
		t.Errorf("a program that knows nothing of it: %s %d after %v, %q", o.Reason, o.ExitCode, after, o.err)
	}
	o, _ = b.interrupted(t, `
import time
try:
    print(1)
    time.sleep(60)
except KeyboardInterrupt:
    print("tidy")
    open("/workspace/outputs/half", "w").write("x")
    raise SystemExit(3)`)
	if o.Reason != runner.ReasonCancelled || o.ExitCode != 3 || o.out != "1\ntidy\n" || len(o.Files) != 1 {
		t.Errorf("a program that ends itself: %s %d, %q, files %v", o.Reason, o.ExitCode, o.out, o.Files)
	}
	for _, stubborn := range []struct {
		ignored string
		within  time.Duration
	}{{"2", 3 * time.Second}, {"2, 15", 5 * time.Second}} {
		o, after = b.interrupted(t, `
import signal, time
for s in (`+stubborn.ignored+`,): signal.signal(s, signal.SIG_IGN)
print(1)
time.sleep(60)`)
		if o.Reason != runner.ReasonCancelled || o.ExitCode != 130 || after < 1500*time.Millisecond || after > stubborn.within+10*time.Second {
			t.Errorf("a program that ignores signals %s: %s %d after %v", stubborn.ignored, o.Reason, o.ExitCode, after)
		}
	}
	b.prints(t, processes, "[]\n")
	// Before it begins.
	interrupt := make(chan struct{})
	close(interrupt)
	o = b.run(t, "import time\ntime.sleep(60)", func(req *runner.ExecRequest) { req.Interrupt = interrupt })
	if o.Reason != runner.ReasonCancelled {
		t.Errorf("one that was interrupted at once: %s %d", o.Reason, o.ExitCode)
	}
	// The next run knows nothing of it.
	b.works(t)
}

// streams is that output comes while the program runs, and soon.
func streams(t *testing.T, b *sandbox) {
	var parts []string
	var came []time.Time
	o := b.run(t, `
import sys, time
for i in range(3):
    print(i)
    print("e", file=sys.stderr)
    time.sleep(0.4)
print("x" * 200000)`, func(req *runner.ExecRequest) {
		req.Output = func(stderr bool, p []byte) {
			came = append(came, time.Now())
			name := "o"
			if stderr {
				name = "e"
			}
			parts = append(parts, name+string(p))
		}
	})
	var out, err strings.Builder
	for _, p := range parts {
		if rest, ok := strings.CutPrefix(p, "o"); ok {
			out.WriteString(rest)
		} else {
			err.WriteString(p[1:])
		}
	}
	if out.String() != o.out || err.String() != o.err || !o.StdoutTruncated || err.String() != "e\ne\ne\n" {
		t.Errorf("%d parts do not make %d bytes of output", len(parts), len(o.out))
	}
	if first := came[len(came)-1].Sub(came[0]); first < time.Second {
		t.Errorf("the first line came %v before the last", first)
	}
}
