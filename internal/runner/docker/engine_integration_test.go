//go:build integration

package docker_test

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

// ownEngine is a daemon of the tests' own, on a private socket: no engine that
// runs on this machine is touched. What it has unpacked of the image stays in the
// cache directory, for the next time.
type ownEngine struct {
	name string // of its directories
	// user, where not 0, is who it runs as, with numbers for user namespaces that
	// nobody else has. It needs no account: what is asked of one is its entry in
	// /etc/passwd, which lives as long as the engine.
	user int
	// command returns what starts it: root is kept, run is not.
	command func(t *testing.T, root, run, socket string) *exec.Cmd
}

// hostOf names, in the environment, where such a daemon is that an earlier
// process of these tests has started.
func (e ownEngine) hostOf() string { return "AIVORY_TEST_ENGINE_" + e.name }

// start starts the daemon for a test, with the image in it, and returns its
// host. A process that was started by a test uses that one's.
func (e ownEngine) start(t *testing.T) string {
	t.Helper()
	if host := os.Getenv(e.hostOf()); host != "" {
		return host
	}
	root := filepath.Join(runnertest.CacheDir(t), "test-"+e.name)
	if err := os.MkdirAll(root, 0o711); err != nil {
		t.Fatal(err)
	}
	lock(t, root+".lock")
	// Engines remember it, and a socket's path is short.
	run := "/run/aivory-test-" + e.name
	clear := func() {
		killAbout(t, root)
		unmountBelow(t, root, run)
		if err := os.RemoveAll(run); err != nil {
			t.Error(err)
		}
	}
	clear()
	t.Cleanup(clear)
	if err := os.Mkdir(run, 0o711); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(run, "engine.sock")
	cmd := e.command(t, root, run, socket)
	cmd.Dir = run // Podman's supervisors leave a file where they are when memory ran out
	if e.user != 0 {
		e.become(t, cmd, root, run)
	}
	log, err := os.Create(filepath.Join(root + ".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	ended := startTied(t, cmd)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(2 * time.Minute):
			_ = cmd.Process.Kill()
			<-ended
			t.Errorf("%s did not end when told to", e.name)
		}
	})
	host := "unix://" + socket
	c := engineClient(t, host)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if _, err = c.Ping(t.Context(), client.PingOptions{}); err == nil {
			break
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("%s does not start: %v; its log: %s", e.name, err, log.Name())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not answer: %v; its log: %s", e.name, err, log.Name())
		}
	}
	bringImage(t, c)
	t.Setenv(e.hostOf(), host)
	return host
}

// become makes the command one of the engine's user, who owns its directories.
func (e ownEngine) become(t *testing.T, cmd *exec.Cmd, root, run string) {
	t.Helper()
	name := "aivory-test-" + e.name
	for _, command := range [][]string{
		{"useradd", "--no-create-home", "--home-dir", run, "--shell", "/bin/sh", "--uid", strconv.Itoa(e.user), "--user-group", name},
		{"usermod", "--add-subuids", "2000100000-2000165535", "--add-subgids", "2000100000-2000165535", name},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil && !strings.Contains(string(out), "already exists") {
			t.Fatalf("%v: %v: %s", command, err, out)
		}
	}
	account, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	group, err := strconv.Atoi(account.Gid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 100 { // the dead take a moment
			if killUser(t, e.user) == 0 {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		if out, err := exec.Command("userdel", name).CombinedOutput(); err != nil {
			t.Errorf("userdel: %v: %s", err, out)
		}
	})
	for _, dir := range []string{root, run} {
		if err := os.Chown(dir, e.user, group); err != nil {
			t.Fatal(err)
		}
	}
	// The way to the cache may be root's alone, as a home directory is.
	reach := filepath.Join(run, "root")
	if err := os.Mkdir(reach, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(root, reach, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	for i := range cmd.Args {
		cmd.Args[i] = strings.ReplaceAll(cmd.Args[i], root, reach)
	}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + run, "USER=" + name, "XDG_RUNTIME_DIR=" + run, "TMPDIR=" + run}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(e.user), Gid: uint32(group)}}
}

// killUser kills what a user's engine left running, in user namespaces as well,
// and returns how many processes there were.
func killUser(t *testing.T, uid int) (n int) {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range found {
		var st syscall.Stat_t
		if err := syscall.Stat(dir, &st); err != nil || int(st.Uid) != uid && (st.Uid < 2000100000 || st.Uid > 2000165535) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			n++
		}
	}
	return n
}

// killAbout kills what an engine left running that has a directory of its in the
// command line.
func killAbout(t *testing.T, dir string) {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		command, _ := os.ReadFile(path)
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && strings.Contains(string(command), dir+"/") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// unmountBelow unmounts what an engine left mounted of its own.
func unmountBelow(t *testing.T, dirs ...string) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		path := strings.Fields(line)[1]
		if slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(path, dir+"/") }) {
			_ = syscall.Unmount(path, syscall.MNT_DETACH)
		}
	}
}

// startTied starts a process that does not outlive this one. Its end is in the
// channel.
func startTied(t *testing.T, cmd *exec.Cmd) chan error {
	t.Helper()
	started, ended := make(chan error), make(chan error, 1)
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig, cmd.SysProcAttr.Setpgid = syscall.SIGTERM, true
	go func() {
		goruntime.LockOSThread() // the signal comes when this thread ends
		defer goruntime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	return ended
}

// lock keeps other tests on this machine from the same directory.
func lock(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// bringImage has the image under test in another engine, too.
func bringImage(t *testing.T, to *client.Client) {
	t.Helper()
	from := engineClient(t, "")
	want, err := from.ImageInspect(t.Context(), runnertest.Image())
	if err != nil {
		t.Fatal(err)
	}
	have, err := to.ImageInspect(t.Context(), runnertest.Image())
	if err == nil && have.ID == want.ID {
		return
	}
	saved, err := from.ImageSave(t.Context(), []string{runnertest.Image()})
	if err != nil {
		t.Fatal(err)
	}
	defer saved.Close()
	loaded, err := to.ImageLoad(t.Context(), saved, client.ImageLoadWithQuiet(true))
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	if said, err := io.ReadAll(loaded); err != nil {
		t.Fatalf("cannot load the image: %v: %s", err, said)
	}
	if have.ID != "" {
		_, _ = to.ImageRemove(t.Context(), have.ID, client.ImageRemoveOptions{Force: true})
	}
}

// dockerWithRunsc is a Docker daemon that knows gVisor's runtime.
var dockerWithRunsc = ownEngine{name: "docker", command: func(t *testing.T, root, run, socket string) *exec.Cmd {
	own, err := engineClient(t, "").Info(t.Context(), client.InfoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(run, "daemon.json")
	b, err := json.Marshal(map[string]any{"runtimes": map[string]any{
		"runsc": map[string]any{"path": runnertest.Program(t, "runsc"), "runtimeArgs": []string{"--network=none", "--overlay2=none"}},
	}})
	if err == nil {
		err = os.WriteFile(config, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(runnertest.Program(t, "dockerd"), "--config-file", config, "--host", "unix://"+socket,
		"--data-root", root, "--exec-root", filepath.Join(run, "exec"), "--pidfile", filepath.Join(run, "pid"),
		"--bridge=none", "--iptables=false", "--ip6tables=false")
	if driver := own.Info.Driver; driver != "overlayfs" { // containerd's, which is no such option's to choose
		cmd.Args = append(cmd.Args, "--storage-driver", driver)
	}
	return cmd
}}

// podman is Podman's service with the privileges of root, podmanRootless that of a
// user who has none.
var (
	podman         = ownEngine{name: "podman", command: podmanService}
	podmanRootless = ownEngine{name: "podman-rootless", user: 64731, command: func(t *testing.T, root, run, socket string) *exec.Cmd {
		cmd := podmanService(t, root, run, socket)
		// Its own choice may be to copy the whole image for each container.
		cmd.Args = slices.Insert(cmd.Args, 1, "--storage-driver", "overlay")
		return cmd
	}}
)

func podmanService(t *testing.T, root, run, socket string) *exec.Cmd {
	return exec.Command(runnertest.Program(t, "podman"), "--root", root, "--runroot", filepath.Join(run, "state"), "--tmpdir", filepath.Join(run, "tmp"),
		"--runtime", runnertest.Program(t, "runc"), "--cgroup-manager", "cgroupfs", "--events-backend", "none", "system", "service", "--time", "0", "unix://"+socket)
}
