package runnertest

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"testing"
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
    "caps": [s.get(k) for k in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privs": s.get("NoNewPrivs"), "seccomp": s.get("Seccomp"),
    "init_uid": one["Uid"].split(), "init_caps": one["CapEff"], "init_seccomp": one.get("Seccomp"),
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

// posture is what it finds.
const posture = `{
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
	}`

// testPosture looks at a runner from inside, as a command of the program's user.
func testPosture(t *testing.T, s *suite) {
	b := s.limited(t, SmallLimits)
	var got, want map[string]any
	if err := json.Unmarshal([]byte(b.command(t, "", "python3", "-c", lookAround)), &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(posture), &want); err != nil {
		t.Fatal(err)
	}
	maps.Copy(want, s.opts.Posture)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !reflect.DeepEqual(got[name], want[name]) {
			t.Errorf("%s: %v, want %v", name, got[name], want[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("looked at %d things of %d", len(got), len(want))
	}
}
