//go:build integration

package oci_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

// cgroupFile reads a limit of a runner where cgroups of either version have it.
func cgroupFile(t testing.TB, id string, names ...string) string {
	t.Helper()
	for _, name := range names {
		controller, file, _ := strings.Cut(name, "/")
		for _, path := range []string{
			filepath.Join("/sys/fs/cgroup", controller, "aivory-sandbox", id, file),
			filepath.Join("/sys/fs/cgroup/aivory-sandbox", id, file),
		} {
			if b, err := os.ReadFile(path); err == nil {
				return strings.TrimSpace(string(b))
			}
		}
	}
	t.Errorf("no cgroup of runner %s has any of %v", id, names)
	return ""
}

func TestPostureFromOutside(t *testing.T) {
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) { postureFromOutside(t, runtime) })
	}
}

func postureFromOutside(t *testing.T, runtime string) {
	instance := testInstance + "-" + runtime
	d := newDriver(t, runtime)
	id, spec := runnertest.Create(t, d, runnertest.SmallLimits)
	for _, c := range []struct {
		want  string
		names []string
	}{
		{"402653184", []string{"memory/memory.limit_in_bytes", "memory/memory.max"}},
		{"97", []string{"pids/pids.max"}},
	} {
		if got := cgroupFile(t, id, c.names...); got != c.want {
			t.Errorf("%v is %q, want %s", c.names, got, c.want)
		}
	}
	if got := cgroupFile(t, id, "memory/memory.memsw.limit_in_bytes", "memory/memory.swap.max"); got != "402653184" && got != "0" {
		t.Errorf("swap: %q", got)
	}
	if got := cgroupFile(t, id, "cpu/cpu.cfs_quota_us", "cpu/cpu.max"); got != "75000" && got != "75000 100000" {
		t.Errorf("CPU: %q", got)
	}
	b, err := os.ReadFile(filepath.Join(runDir(instance), "bundles", id, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var config specs.Spec
	if err := json.Unmarshal(b, &config); err != nil {
		t.Fatal(err)
	}
	for note, want := range map[string]string{"aivory.session_id": spec.SessionID, "aivory.created_at": "1700000000", "aivory.instance": instance} {
		if got := config.Annotations[note]; got != want {
			t.Errorf("%s is %q, want %q", note, got, want)
		}
	}
	if strings.Contains(string(b), "io_uring") || config.Linux.Seccomp.DefaultAction != specs.ActErrno {
		t.Errorf("seccomp profile is not the one of today: %v", config.Linux.Seccomp.DefaultAction)
	}
}

// TestSecretsStayHere: what the service has in its environment is in no process
// of a runner, nor in the runtime's while it starts one.
func TestSecretsStayHere(t *testing.T) {
	t.Setenv("SANDBOX_API_KEY", "secret-of-the-service")
	d := newDriver(t, "runc")
	id, _ := runnertest.Create(t, d, runnertest.SmallLimits)
	runnertest.Command(t, d, id, "true")
	pids, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		cgroup, _ := os.ReadFile(filepath.Join(pid, "cgroup"))
		env, _ := os.ReadFile(filepath.Join(pid, "environ"))
		if strings.Contains(string(cgroup), id) && strings.Contains(string(env), "secret-of-the-service") {
			t.Errorf("%s has it in its environment", pid)
		}
	}
}

// TestInitPrintsNowhere: what process 1 prints is kept nowhere.
func TestInitPrintsNowhere(t *testing.T) {
	d := newDriver(t, "runc")
	id, _ := runnertest.Create(t, d, runnertest.SmallLimits)
	pid, err := os.ReadFile(filepath.Join(runDir(testInstance+"-runc"), "bundles", id, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range []string{"0", "1", "2"} {
		if to, err := os.Readlink(filepath.Join("/proc", string(pid), "fd", fd)); err != nil || to != "/dev/null" {
			t.Errorf("descriptor %s of process 1 is %s, %v", fd, to, err)
		}
	}
}
