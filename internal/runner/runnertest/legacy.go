package runnertest

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// MakeLegacy is for a test that makes runners of the older service. They belong to
// nobody, so that any service that starts beside it would take them for its own,
// and count them: until the test ends, Adopting waits, in every process.
func MakeLegacy(t testing.TB) {
	t.Helper()
	f, err := lockLegacy(syscall.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
}

// Adopting waits until no test has runners of the older service, and keeps them
// from making any until release, which may be called more than once.
func Adopting() (release func(), err error) {
	f, err := lockLegacy(syscall.LOCK_SH)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// lockLegacy locks a file until it is closed.
func lockLegacy(how int) (*os.File, error) {
	f, err := os.Create(filepath.Join(os.TempDir(), "aivory-test-legacy.lock"))
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), how)
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// testLegacy adopts a runner of the older service, whose process 1 belongs to
// the program's own user and ends with its `sleep infinity`.
func testLegacy(t *testing.T, s *suite) {
	if s.opts.Legacy == nil {
		t.Skip("this driver has none")
	}
	MakeLegacy(t)
	b := s.adopt(t, s.opts.Legacy(t))
	list, err := b.driver.List(t.Context())
	i := slices.IndexFunc(list, func(in runner.Instance) bool { return in.ID == b.id })
	if err != nil || i < 0 || !list[i].Legacy || !list[i].Running {
		t.Fatalf("not listed as it should be: %+v, %v", list, err)
	}
	if err := b.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.put(t, "kept", "content")
	for name, code := range map[string]string{
		"Plain":      "print(1)",
		"Child":      "import subprocess; subprocess.Popen(['setsid', 'sleep', '600'])",
		"DoubleFork": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(600)\n    os._exit(0)",
		"Disguise": `
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.kill(os.getppid(), 9)
        try: os.kill(AGENT, 9)
        except PermissionError: pass
        os.execv('/bin/sleep', ['sleep', 'infinity'])
    time.sleep(9)
time.sleep(9)
`,
		"Kill":    "import os\nfor p in (-1, 1, *(int(p) for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid())):\n    try: os.kill(p, 9); print('killed', p)\n    except (PermissionError, ProcessLookupError): pass",
		"Timeout": "import time; time.sleep(600)",
		"Bomb":    "import os, time\nfor _ in range(50):\n    if os.fork() == 0: time.sleep(600)",
	} {
		t.Run(name, func(t *testing.T) {
			s.skip(t)
			o := b.run(t, "import os; AGENT = os.getppid()\n"+code, limit(2*time.Second))
			t.Logf("%d %s %q", o.ExitCode, o.Reason, o.err)
			b.prints(t, `
import os
found = []
for p in os.listdir('/proc'):
    if p.isdigit() and int(p) not in (1, os.getpid(), os.getppid()):
        try: found.append(open('/proc/%s/cmdline' % p).read())
        except OSError: pass
print(sorted(found), open('/workspace/kept').read())
`, "['sleep\\x00infinity\\x00'] content\n")
		})
	}
}
