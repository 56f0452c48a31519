//go:build integration

package oci_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

func TestGVisorsKernel(t *testing.T) {
	d := newDriver(t, "runsc")
	id, _ := runnertest.Create(t, d, runnertest.DefaultLimits)
	if got := runnertest.Command(t, d, id, "dmesg"); !strings.Contains(got, "gVisor") {
		t.Errorf("the kernel's log is not gVisor's: %q", got)
	}
}

// hideAndSeek does two things that a kernel tells of: it has a name, and a file
// open.
const hideAndSeek = `
import ctypes, sys, time
ctypes.CDLL(None).prctl(15, b'aivory-seen', 0, 0, 0)
f = open('/workspace/aivory-seen', 'w')
print('up', flush=True)
sys.stdin.read()
`

// TestSystemCallsStayInside looks from the host at a program's deeds: on runc the
// host's kernel did them and tells; on gVisor it knows nothing of them.
func TestSystemCallsStayInside(t *testing.T) {
	for _, c := range []struct {
		name string
		d    *oci.Driver
		seen bool
	}{{"runc", newDriver(t, "runc"), true}, {"runsc", newDriver(t, "runsc"), false}} {
		id, _ := runnertest.Create(t, c.d, runnertest.DefaultLimits)
		s, err := c.d.Dial(t.Context(), id, []string{"python3", "-c", hideAndSeek}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.Read(make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		named, opened, processes := false, false, 0
		tasks, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
		for _, task := range tasks {
			if b, _ := os.ReadFile(filepath.Join(task, "cgroup")); !strings.Contains(string(b), id) {
				continue
			}
			processes++
			comm, _ := os.ReadFile(filepath.Join(task, "comm"))
			named = named || strings.TrimSpace(string(comm)) == "aivory-seen"
			files, _ := filepath.Glob(filepath.Join(task, "fd", "*"))
			for _, fd := range files {
				target, _ := os.Readlink(fd)
				opened = opened || strings.HasSuffix(target, "/aivory-seen")
			}
		}
		if processes == 0 || named != c.seen || opened != c.seen {
			t.Errorf("%s: of %d tasks, one has the program's name: %v, its file: %v", c.name, processes, named, opened)
		}
	}
}

// TestGVisorMemory: a program that asks for too much is told so, and the session
// goes on.
func TestGVisorMemory(t *testing.T) {
	d := newDriver(t, "runsc")
	id, _ := runnertest.Create(t, d, runnertest.DefaultLimits)
	r := runner.New(d, id, runner.Options{CPUs: 1, DialTimeout: time.Minute})
	defer func() { _ = r.Close() }()
	for _, c := range []struct{ code, out, err string }{
		{"open('kept', 'w').write('content')", "", ""},
		{"x = bytearray(6 << 30)", "", "MemoryError\n"},
		{"x = []\nwhile True: x.append(bytearray(1 << 20))", "", "MemoryError\n"},
		{"print(open('kept').read())", "content\n", ""},
	} {
		x, err := r.Exec(t.Context(), runner.ExecRequest{
			Code: []byte(c.code), Timeout: time.Minute, MaxOutputBytes: 1 << 10,
			Artifacts: runner.ArtifactLimits{MaxFiles: 1, MaxDuration: time.Second, FileTimeout: time.Second},
		})
		if err != nil {
			t.Fatalf("%s: %v", c.code, err)
		}
		if string(x.Stdout) != c.out || !strings.HasSuffix(string(x.Stderr), c.err) {
			t.Errorf("%s: printed %q, stderr %q", c.code, x.Stdout, x.Stderr)
		}
		_ = x.Close()
	}
}
