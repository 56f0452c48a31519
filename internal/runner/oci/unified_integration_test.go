//go:build integration

package oci_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

// inUnified is, in the environment, set for the process that TestUnifiedCgroups
// starts.
const inUnified = "AIVORY_TEST_UNIFIED"

// TestUnifiedCgroups has the driver see cgroups of version 2 alone, on a host that
// has both. The controllers there are version 1's, so that limits cannot be had,
// and the driver must say so; all else can.
func TestUnifiedCgroups(t *testing.T) {
	if os.Getenv(inUnified) != "" {
		t.Run("Controllers", missingControllers)
		oci.NeedControllers()
		t.Run("Life", unifiedLife)
		t.Run("HalfMade", TestHalfMade)
		return
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		t.Skip("this host has no others; all tests are of them")
	}
	cmd := exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-c",
		`umount -l /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"`, "sh",
		os.Args[0], "-test.run", "^TestUnifiedCgroups$", "-test.v")
	cmd.Env = append(os.Environ(), inUnified+"=1")
	// The parent of all runners' cgroups stays where there are some.
	t.Cleanup(func() { _ = os.Remove("/sys/fs/cgroup/unified/aivory-sandbox") })
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "PASS: TestUnifiedCgroups/HalfMade") {
		t.Error(err)
	}
}

func missingControllers(t *testing.T) {
	d, err := oci.New(config(t, "runc", runnertest.Config{}))
	if err == nil {
		_ = d.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "cgroup controllers memory, cpu, pids are not there") {
		t.Errorf("got %v", err)
	}
}

// unifiedLife is of runc alone: crun wants a limit raised for it, which not every
// machine's root may.
func unifiedLife(t *testing.T) {
	d := newDriver(t, "runc")
	// No limit, for none can be had here.
	id, _ := runnertest.Create(t, d, runner.Limits{ReadOnlyRootfs: true, TmpfsBytes: 1 << 20, WorkspaceBytes: 1 << 20})
	dir := filepath.Join("/sys/fs/cgroup/aivory-sandbox", id)
	if b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err != nil || len(b) == 0 {
		t.Errorf("processes in %s: %q, %v", dir, b, err)
	}
	if got := runnertest.Command(t, d, id, "sh", "-c", "grep -c ' /sys/fs/cgroup cgroup2 ro' /proc/mounts; mkdir /sys/fs/cgroup/x 2>/dev/null || echo no"); got != "1\nno\n" {
		t.Errorf("inside: %q", got)
	}
	if in, ok := runnertest.Find(t, d, id); !ok || !in.Running {
		t.Errorf("listed as %+v, %v", in, ok)
	}
	runnertest.Remove(t, d, id)
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s is still there", dir)
	}
}
