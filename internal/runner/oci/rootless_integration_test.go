//go:build integration

package oci_test

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

// rootlessRuntime is, in the environment of the processes that TestRootless starts
// as another user, the runtime to test.
const rootlessRuntime = "AIVORY_TEST_ROOTLESS"

// TestRootless runs the short form of the suite as a user without rights.
func TestRootless(t *testing.T) {
	if runtime := os.Getenv(rootlessRuntime); runtime != "" {
		runRootless(t, runtime)
		return
	}
	u := newUser(t)
	dir := filepath.Join("/var/tmp", testInstance+"-"+u.Username)
	own(t, u, dir)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	shareImages(t, u, filepath.Join(dir, "images"))
	// Where the test is compiled is nobody else's to look at.
	program := filepath.Join(dir, "oci.test")
	b, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(program, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	as := func(runtime string, through ...string) *exec.Cmd {
		args := append(through, "setpriv", "--reuid", u.Uid, "--regid", u.Gid, "--clear-groups", program, "-test.run", "^TestRootless$", "-test.v")
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = "/"
		cmd.Env = []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "USER=" + u.Username, "XDG_RUNTIME_DIR=" + dir, "TMPDIR=" + dir,
			"SANDBOX_IMAGE_DIR=" + filepath.Join(dir, "images"), "AIVORY_SOAK=" + os.Getenv("AIVORY_SOAK"), rootlessRuntime + "=" + runtime,
		}
		return cmd
	}
	// What that leaves when it is killed is not this process's, which has had
	// drivers, to wait for.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	passes := func(t *testing.T, cmd *exec.Cmd) {
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil || !strings.Contains(string(out), "PASS") {
			t.Error(err)
		}
	}
	t.Run("runc", func(t *testing.T) { passes(t, as("runc")) })
	t.Run("crun", func(t *testing.T) {
		if b, _ := os.ReadFile("/sys/fs/cgroup/unified/cgroup.controllers"); len(bytes.TrimSpace(b)) == 0 {
			passes(t, as("crun"))
			return
		}
		// What it cannot work with is hidden from it, as on a host that has none.
		passes(t, as("crun", "unshare", "--mount", "sh", "-c", `umount --lazy /sys/fs/cgroup/unified && exec "$@"`, "sh"))
		out, err := as("crun").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "use runc, or start the service as root") {
			t.Errorf("with cgroups of both versions: %v: %s", err, out)
		}
	})
	t.Run("NoNumbers", func(t *testing.T) {
		takeNumbers(t, u)
		out, err := as("runc").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "usermod --add-subuids") {
			t.Errorf("without numbers of its own: %v: %s", err, out)
		}
	})
}

func runRootless(t *testing.T, runtime string) {
	open, opts := on(runtime)
	opts.Short = true
	opts.Control = nil // the runtime stops processes by their cgroup
	opts.Except = map[string]string{
		"Driver/WritableRoot": "an overlay needs root",
	}
	opts.Posture = map[string]any{"groups": []any{}} // the program's own is in "gid"
	t.Run("GVisor", func(t *testing.T) {
		cfg := config(t, runtime, runnertest.Config{})
		cfg.Runtime = "runsc"
		if _, err := oci.New(cfg); err == nil || !strings.Contains(err.Error(), "gVisor needs root") {
			t.Errorf("got %v", err)
		}
	})
	runnertest.Run(t, open, opts)
}

// newUser makes a user, with numbers for user namespaces, that goes with the test.
func newUser(t *testing.T) *user.User {
	t.Helper()
	name := "aivory-" + runnertest.RandomHex(4)
	for _, command := range [][]string{
		{"useradd", "--no-create-home", "--shell", "/bin/sh", name},
		{"usermod", "--add-subuids", "2000000000-2000065535", "--add-subgids", "2000000000-2000065535", name},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", command, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("userdel", name).CombinedOutput(); err != nil {
			t.Errorf("userdel: %v: %s", err, out)
		}
	})
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// takeNumbers takes from a user what newUser gave it. What useradd gave it by
// itself goes as well.
func takeNumbers(t *testing.T, u *user.User) {
	t.Helper()
	for _, path := range []string{"/etc/subuid", "/etc/subgid"} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			fields := strings.Split(strings.TrimSpace(line), ":")
			if len(fields) != 3 || fields[0] != u.Username {
				continue
			}
			first, _ := strconv.Atoi(fields[1])
			count, _ := strconv.Atoi(fields[2])
			option := map[string]string{"/etc/subuid": "--del-subuids", "/etc/subgid": "--del-subgids"}[path]
			if out, err := exec.Command("usermod", option, strconv.Itoa(first)+"-"+strconv.Itoa(first+count-1), u.Username).CombinedOutput(); err != nil {
				t.Fatalf("usermod: %v: %s", err, out)
			}
		}
	}
}

func id(t *testing.T, text string) uint32 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

// own makes a directory of a user's.
func own(t *testing.T, u *user.User, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, int(id(t, u.Uid)), int(id(t, u.Gid))); err != nil {
		t.Fatal(err)
	}
}

// shareImages shows a user the unpacked image: to unpack it once more would take
// longer than the test.
func shareImages(t *testing.T, u *user.User, dir string) {
	t.Helper()
	from := testImages(t)
	img, err := from.Find(runnertest.Image())
	if err != nil {
		t.Fatal(err)
	}
	own(t, u, dir)
	source := filepath.Dir(filepath.Dir(filepath.Dir(img.Root)))
	err = filepath.WalkDir(source, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, strings.TrimPrefix(path, source))
		switch {
		case path == source:
			return nil
		case e.IsDir() && e.Name() == "root":
			if path != img.Root {
				return fs.SkipDir
			}
			own(t, u, to)
			if err := syscall.Mount(path, to, "", syscall.MS_BIND, ""); err != nil {
				return err
			}
			t.Cleanup(func() {
				if err := syscall.Unmount(to, 0); err != nil {
					t.Error(err)
				}
			})
			return fs.SkipDir
		case e.IsDir():
			own(t, u, to)
			return nil
		}
		b, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(to, b, 0o600)
		}
		if err == nil {
			err = os.Chown(to, int(id(t, u.Uid)), int(id(t, u.Gid)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
