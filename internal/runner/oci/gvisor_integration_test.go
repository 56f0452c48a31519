//go:build integration

package oci_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
