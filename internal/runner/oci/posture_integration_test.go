//go:build integration

package oci_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci"
)

// lookAround reports, as the program's user sees it, all that the posture
// promises.
const lookAround = `
import ctypes, errno, json, os, resource, signal
libc = ctypes.CDLL(None, use_errno=True)
def status(pid):
    return dict(l.rstrip("\n").split(":\t", 1) for l in open("/proc/%s/status" % pid) if ":\t" in l)
def attempt(f):
    try:
        f()
        return "ok"
    except OSError as e:
        return errno.errorcode[e.errno]
def call(n, *args):
    ctypes.set_errno(0)
    r = libc.syscall(n, *args)
    return "ok" if r >= 0 else errno.errorcode[ctypes.get_errno()]
def write(path):
    def f():
        with open(path, "w") as h:
            h.write("x")
        os.unlink(path)
    return f
def size(path):
    s = os.statvfs(path)
    return s.f_frsize * s.f_blocks
def run_from(d):
    p = os.path.join(d, "probe.sh")
    with open(p, "w") as h:
        h.write("#!/bin/sh\nexit 7\n")
    os.chmod(p, 0o700)
    try:
        return os.waitstatus_to_exitcode(os.spawnv(os.P_WAIT, p, [p]) << 8)
    finally:
        os.unlink(p)
s, one = status("self"), status("1")
libc.ptrace.restype = ctypes.c_long
ctypes.set_errno(0)
ptrace = "ok" if libc.ptrace(16, 1, 0, 0) == 0 else errno.errorcode[ctypes.get_errno()]
options = {f.split()[1]: f.split()[3].split(",") for f in open("/proc/mounts")}
print(json.dumps({
    "uid": s["Uid"].split(), "gid": s["Gid"].split(), "groups": s["Groups"].split(),
    "caps": [s[k] for k in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privs": s["NoNewPrivs"], "seccomp": s["Seccomp"],
    "init_uid": one["Uid"].split(), "init_caps": one["CapEff"], "init_seccomp": one["Seccomp"],
    "interfaces": sorted(l.split(":")[0].strip() for l in open("/proc/net/dev") if ":" in l),
    "cwd": os.getcwd(), "home": os.environ["HOME"],
    "root": attempt(write("/probe")), "usr": attempt(write("/usr/probe")), "root_options": "ro" in options["/"],
    "write": {d: attempt(write(d + "/probe")) for d in ("/tmp", "/workspace", "/home/sandbox")},
    "exec": {d: run_from(d) for d in ("/tmp", "/workspace", "/home/sandbox")},
    "nosuid_nodev": all(o in options[d] for d in ("/tmp", "/workspace", "/home/sandbox") for o in ("nosuid", "nodev")),
    "size": {d: size(d) for d in ("/tmp", "/workspace", "/home/sandbox")},
    "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1], "core": list(resource.getrlimit(resource.RLIMIT_CORE)),
    "kill": attempt(lambda: os.kill(1, 0)), "kill9": attempt(lambda: os.kill(1, signal.SIGKILL)), "ptrace": ptrace,
    "io_uring_setup": call(425, 8, ctypes.create_string_buffer(256)),
    "unshare": call(272, 0x10000000), "mount": call(165, b"none", b"/tmp", b"tmpfs", 0, None),
    "bpf": call(321, 0, None, 0), "keyctl": call(250, 0, -3, 0),
    "docker_socket": os.path.exists("/var/run/docker.sock"),
}))
`

func TestPostureFromInside(t *testing.T) {
	d := newDriver(t, nil)
	id, _ := create(t, d, testLimits)

	var got map[string]any
	out := python(t, d, id, lookAround)
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var want map[string]any
	err := json.Unmarshal([]byte(`{
		"uid": ["1000","1000","1000","1000"], "gid": ["1000","1000","1000","1000"], "groups": ["1000"],
		"caps": ["0000000000000000","0000000000000000","0000000000000000","0000000000000000","0000000000000000"],
		"no_new_privs": "1", "seccomp": "2",
		"init_uid": ["65534","65534","65534","65534"], "init_caps": "0000000000000000", "init_seccomp": "2",
		"interfaces": ["lo"], "cwd": "/", "home": "/home/sandbox",
		"root": "EROFS", "usr": "EROFS", "root_options": true,
		"write": {"/tmp": "ok", "/workspace": "ok", "/home/sandbox": "ok"},
		"exec": {"/tmp": 7, "/workspace": 7, "/home/sandbox": 7},
		"nosuid_nodev": true,
		"size": {"/tmp": 25165824, "/workspace": 41943040, "/home/sandbox": 25165824},
		"nofile": 640, "core": [0, 0],
		"kill": "EPERM", "kill9": "EPERM", "ptrace": "EPERM",
		"io_uring_setup": "EPERM", "unshare": "EPERM", "mount": "EPERM", "bpf": "EPERM", "keyctl": "EPERM",
		"docker_socket": false
	}`), &want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("posture (-want +got):\n%s", diff)
	}
}

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
