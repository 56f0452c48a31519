//go:build integration

package docker_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/container"

	"github.com/hjxwz123/aivory-sandbox/internal/runner/docker"
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

func TestPostureThroughEngine(t *testing.T) {
	d := newDriver(t, nil)
	id, spec := create(t, d, testLimits)
	c := inspect(t, id)
	h, cfg := c.HostConfig, c.Config

	check := func(what string, got, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	check("name", c.Name, "/aivory-sbx-"+spec.SessionID)
	check("user", cfg.User, "65534:65534")
	check("memory", h.Memory, int64(384<<20))
	check("memory+swap", h.MemorySwap, int64(384<<20))
	check("cpus", h.NanoCPUs, int64(750_000_000))
	check("pids", *h.PidsLimit, int64(97))
	check("log driver", h.LogConfig.Type, "none")
	check("log path", c.LogPath, "")
	nofile := slices.IndexFunc(h.Ulimits, func(u *container.Ulimit) bool { return u.Name == "nofile" })
	if nofile < 0 {
		t.Fatalf("no limit on open files: %v", h.Ulimits)
	}
	// Seen from inside the soft one is not to be relied on: a runc that was built
	// with Go 1.19 raises it to the hard one.
	check("open files", *h.Ulimits[nofile], container.Ulimit{Name: "nofile", Soft: 512, Hard: 640})
	check("network", string(h.NetworkMode), "none")
	check("capabilities added", len(h.CapAdd), 0)
	check("capabilities dropped", h.CapDrop, []string{"ALL"})
	check("privileged", h.Privileged, false)
	check("read-only root", h.ReadonlyRootfs, true)
	check("IPC", string(h.IpcMode), "private")
	check("PID", string(h.PidMode), "")
	check("cgroup namespace", string(h.CgroupnsMode), "private")
	check("restarts", h.RestartPolicy.IsAlways() || h.RestartPolicy.IsOnFailure() || h.RestartPolicy.IsUnlessStopped(), false)
	check("auto-remove", h.AutoRemove, false)
	check("binds", len(h.Binds)+len(c.Mounts), 0)
	check("devices", len(h.Devices), 0)
	check("masked paths", slices.Contains(h.MaskedPaths, "/proc/kcore"), true)
	check("read-only paths", slices.Contains(h.ReadonlyPaths, "/proc/sys"), true)
	for label, want := range map[string]string{
		"aivory.sandbox": "1", "aivory.session_id": spec.SessionID,
		"aivory.created_at": "1700000000", "aivory.instance": testInstance,
	} {
		check(label, cfg.Labels[label], want)
	}
	if !slices.Contains(h.SecurityOpt, "no-new-privileges") {
		t.Errorf("security options lack no-new-privileges: %.200q", h.SecurityOpt)
	}
	var profile string
	for _, o := range h.SecurityOpt {
		if p, ok := strings.CutPrefix(o, "seccomp="); ok {
			profile = p
		}
	}
	if !json.Valid([]byte(profile)) || strings.Contains(profile, "io_uring") {
		t.Errorf("seccomp profile is not the one of today: %.200q", profile)
	}
}

// TestNothingOnHostDisk looks where the engine keeps a container's files: a
// runner that prints leaves nothing there.
func TestNothingOnHostDisk(t *testing.T) {
	d := newDriver(t, nil)
	id, _ := create(t, d, testLimits)
	const secret = "printed-by-a-program-7f3a"
	if got := run(t, d, id, "sh", "-c", "echo "+secret); got != secret+"\n" {
		t.Fatalf("got %q", got)
	}
	c := inspect(t, id)
	if c.HostnamePath == "" {
		t.Skip("the engine tells no path on its host")
	}
	dir := filepath.Dir(c.HostnamePath)
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("the engine's host is another: %v", err)
	}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		if strings.HasSuffix(path, ".log") {
			t.Errorf("a log file: %s", path)
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
	d := newDriver(t, func(c *docker.Config) {
		// Everything allowed but mkdir: a profile nobody would take for the default.
		c.SeccompProfile = []byte("{\n\"defaultAction\": \"SCMP_ACT_ALLOW\",\n\"syscalls\": [{\"names\": [\"mkdir\", \"mkdirat\"], \"action\": \"SCMP_ACT_ERRNO\", \"errnoRet\": 95}]\n}\n")
	})
	id, _ := create(t, d, testLimits)
	got := strings.TrimSpace(python(t, d, id, "import os\ntry: os.mkdir('/tmp/d')\nexcept OSError as e: print(e.errno)"))
	if got != "95" && got != "1" { // engines before 20.10.10 ignore errnoRet
		t.Errorf("mkdir under the operator's profile: %q", got)
	}
}

func TestWritableRootfs(t *testing.T) {
	d := newDriver(t, nil)
	limits := testLimits
	limits.ReadOnlyRootfs = false
	id, _ := create(t, d, limits)
	got := strings.TrimSpace(python(t, d, id, `
import os
for d in ("/tmp", "/workspace", "/home/sandbox"):
    open(d + "/f", "w").write("x")
    s = os.stat(d)
    print(d, s.st_uid, oct(s.st_mode & 0o7777), os.path.ismount(d))
`))
	want := "/tmp 1000 0o1777 False\n/workspace 1000 0o755 False\n/home/sandbox 1000 0o755 False"
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if c := inspect(t, id); c.HostConfig.ReadonlyRootfs || len(c.HostConfig.Tmpfs) != 0 {
		t.Errorf("read-only %v, tmpfs %v", c.HostConfig.ReadonlyRootfs, c.HostConfig.Tmpfs)
	}
}

// TestLocalhost: programs talk to themselves by name, whether the engine or the
// image (see labelLocalhost) takes care of it.
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
