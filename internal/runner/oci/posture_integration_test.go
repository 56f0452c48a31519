//go:build integration

package oci_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci"
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
	d := newDriver(t, nil)
	id, spec := create(t, d, testLimits)
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
	b, err := os.ReadFile(filepath.Join("/run/aivory-sandbox", testInstance, "bundles", id, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var config specs.Spec
	if err := json.Unmarshal(b, &config); err != nil {
		t.Fatal(err)
	}
	for note, want := range map[string]string{"aivory.session_id": spec.SessionID, "aivory.created_at": "1700000000", "aivory.instance": testInstance} {
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
	d := newDriver(t, nil)
	id, _ := create(t, d, testLimits)
	run(t, d, id, "true")
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

// TestNothingOnHostDisk: what process 1 and commands print is kept nowhere.
func TestNothingOnHostDisk(t *testing.T) {
	d := newDriver(t, nil)
	id, _ := create(t, d, testLimits)
	const secret = "printed-by-a-program-7f3a"
	if got := run(t, d, id, "sh", "-c", "echo "+secret+"; echo "+secret+" >&2; ls -l /proc/1/fd 2>/dev/null"); got != secret+"\n" {
		t.Fatalf("got %q", got)
	}
	pid, err := os.ReadFile(filepath.Join("/run/aivory-sandbox", testInstance, "bundles", id, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range []string{"0", "1", "2"} {
		if to, err := os.Readlink(filepath.Join("/proc", string(pid), "fd", fd)); err != nil || to != "/dev/null" {
			t.Errorf("descriptor %s of process 1 is %s, %v", fd, to, err)
		}
	}
	err = filepath.WalkDir(filepath.Join("/run/aivory-sandbox", testInstance), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), secret) {
			t.Errorf("output is kept in %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestOperatorProfile(t *testing.T) {
	d := newDriver(t, func(c *oci.Config) {
		// Everything allowed but mkdir: a profile nobody would take for the default.
		c.SeccompProfile = []byte("{\n\"defaultAction\": \"SCMP_ACT_ALLOW\",\n\"syscalls\": [{\"names\": [\"mkdir\", \"mkdirat\"], \"action\": \"SCMP_ACT_ERRNO\", \"errnoRet\": 95}]\n}\n")
	})
	id, _ := create(t, d, testLimits)
	got := strings.TrimSpace(python(t, d, id, "import os\ntry: os.mkdir('/tmp/d')\nexcept OSError as e: print(e.errno)"))
	if got != "95" {
		t.Errorf("mkdir under the operator's profile: %q", got)
	}
}

// TestLocalhost: programs talk to themselves by name.
func TestLocalhost(t *testing.T) {
	d := newDriver(t, nil)
	id, _ := create(t, d, testLimits)
	got := strings.TrimSpace(python(t, d, id, `
import socket
s = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(("localhost", s.getsockname()[1]))
s.accept()[0].sendall(b"hello")
print(c.recv(5).decode(), sorted({a[4][0] for a in socket.getaddrinfo("localhost", 80)})[0])
`))
	if got != "hello 127.0.0.1" {
		t.Errorf("got %q", got)
	}
}
