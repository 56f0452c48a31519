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
