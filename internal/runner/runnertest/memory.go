package runnertest

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// testMemory uses up what there is.
func testMemory(t *testing.T, s *suite) {
	if s.opts.Limits.MemoryBytes == 0 {
		t.Skip("without a memory limit this would be the host's")
	}
	b := s.sandbox(t)
	b.put(t, "kept", "content")
	still := func(t *testing.T) {
		t.Helper()
		b.prints(t, "print(open('kept').read())", "content\n")
		b.prints(t, processes, "[]\n")
	}
	for _, c := range []struct{ name, code string }{
		{"AtOnce", "x = bytearray(6 << 30)\nprint(len(x))"},
		{"BitByBit", "x = []\nwhile True: x.append(bytearray(1 << 20))"},
		{"Children", `
import os
for _ in range(8):
    if os.fork() == 0:
        x = []
        while True: x.append(bytearray(1 << 20))
for _ in range(8): print(os.waitstatus_to_exitcode(os.wait()[1]))
raise SystemExit(137)
`},
		{"AgainstTheAgent", `
import os
open('/proc/self/oom_score_adj', 'w').write('0')
x = []
while True: x.append(bytearray(1 << 20))
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.skip(t)
			start := time.Now()
			o := b.run(t, c.code)
			if s.opts.OwnMemory {
				if o.ExitCode != 1 || !strings.HasSuffix(o.err, "MemoryError\n") {
					t.Errorf("%s, %d, stderr %q", o.Reason, o.ExitCode, o.err)
				}
			} else if o.Reason != runner.ReasonOOM || o.ExitCode != 137 || o.Usage.OOMKills == 0 {
				t.Errorf("%s, %d, %d kills, stderr %q", o.Reason, o.ExitCode, o.Usage.OOMKills, o.err)
			}
			t.Logf("%v, %d kills", time.Since(start), o.Usage.OOMKills)
			still(t)
		})
	}
	t.Run("ChildAlone", func(t *testing.T) {
		s.skip(t)
		o := b.run(t, `
import subprocess, sys
r = subprocess.run([sys.executable, '-c', 'x = []\nwhile True: x.append(bytearray(1 << 20))'])
print(r.returncode)
`)
		want, kills := "-9\n", int64(1)
		if s.opts.OwnMemory {
			want, kills = "1\n", 0
		}
		if o.Reason != runner.ReasonExit || o.out != want || o.Usage.OOMKills != kills {
			t.Errorf("%s, %q, %d kills", o.Reason, o.out, o.Usage.OOMKills)
		}
		still(t)
	})
	t.Run("Tmpfs", func(t *testing.T) {
		s.skip(t)
		if !s.opts.Limits.ReadOnlyRootfs {
			t.Skip("there is no tmpfs")
		}
		for range 2 {
			b.prints(t, `
import os
for p in ('/tmp', '/home/sandbox', '/dev/shm', '/workspace'):
    try:
        with open(p + '/filler%d' % os.getpid(), 'wb', buffering=0) as f:
            while True: f.write(b'x' * (1 << 20))
    except OSError as e: print(p, e.errno)
`, "/tmp 28\n/home/sandbox 28\n/dev/shm 28\n/workspace 28\n")
			still(t)
			b.prints(t, "print(open(__file__).read()[:5], __file__.startswith('/'))", "print True\n")
			b.reopen()
			still(t)
		}
		if err := b.ResetInputs(t.Context()); err != nil {
			t.Error(err)
		}
		b.pack(t)
		b.run(t, "import subprocess; subprocess.run('rm -f /tmp/filler* /home/sandbox/filler* /dev/shm/filler* /workspace/filler*', shell=True)")
		b.put(t, "after", "x")
	})
	t.Run("WaitingChild", func(t *testing.T) {
		s.skip(t)
		// The process that waits for the next program is the first that the
		// kernel takes. That must not be the next program's end.
		signal := func(name string) {
			b.command(t, "", "sh", "-c", `for p in /proc/[0-9]*; do [ "$(cat $p/oom_score_adj)" = 1000 ] && kill -`+name+` ${p#/proc/}; done; true`)
		}
		b.works(t)
		time.Sleep(300 * time.Millisecond)
		signal("KILL")
		b.works(t)
		// One that is stopped has the program and does not read it, like one that
		// was killed and gets no turn to die.
		// What runs then has the usual descriptors, and is not kept waiting.
		look := `
import os, resource
print(sorted(os.listdir('/proc/self/fd')), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw < 1000)
`
		want := b.run(t, look).out
		time.Sleep(300 * time.Millisecond)
		signal("STOP")
		var run sync.WaitGroup
		run.Go(func() {
			o, err := b.try(t.Context(), look)
			if err != nil {
				t.Error(err)
			} else if o.out != want || !strings.HasSuffix(want, "True\n") || o.ExitCode != 0 {
				t.Errorf("printed %q, not %q, exit code %d: %s", o.out, want, o.ExitCode, o.err)
			}
		})
		time.Sleep(500 * time.Millisecond)
		signal("KILL")
		run.Wait()
		b.works(t)
		if s.opts.OwnMemory {
			return // nobody is killed there for want of memory
		}
		// A program that has been cancelled is not given to another.
		time.Sleep(300 * time.Millisecond)
		signal("STOP")
		interrupt := make(chan struct{})
		run.Go(func() {
			o, err := b.try(t.Context(), "print(1)", func(req *runner.ExecRequest) { req.Interrupt = interrupt })
			if err != nil {
				t.Error(err)
			} else if o.out != "" || o.Usage.OOMKills == 0 || o.Reason != runner.ReasonCancelled && o.Reason != runner.ReasonOOM {
				t.Errorf("%s, printed %q, %d kills", o.Reason, o.out, o.Usage.OOMKills)
			}
		})
		time.Sleep(300 * time.Millisecond)
		close(interrupt)
		time.Sleep(300 * time.Millisecond)
		b.command(t, "", "sh", "-c", `exec 2>/dev/null; echo 1000 >/proc/self/oom_score_adj; python3 -c 'x = bytearray(6 << 30)'; true`)
		signal("KILL")
		run.Wait()
		b.works(t)
	})
}
