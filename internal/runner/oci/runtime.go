package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	runc "github.com/containerd/go-runc"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// runtime calls the OCI runtime's program.
type runtime struct {
	name    string // "runc", "crun", "runsc", or whatever the program is called
	path    string
	root    string // the runtime's state directories
	timeout time.Duration
	client  runc.Runc

	mu    sync.Mutex
	known program // whose version is told
	told  string
}

// program tells one file of the runtime from its successor.
type program struct {
	size     int64
	modified time.Time
}

// pidFile is the file in a bundle that tells process 1's number on this host.
const pidFile = "pid"

// waitDelay is how long output may come after a process of the runtime ended.
const waitDelay = 2 * time.Second

func newRuntime(name, root string, timeout time.Duration) (*runtime, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find the OCI runtime %q: %w; install it (on Debian: apt-get install runc, or crun, or from Debian 13 on runsc), "+
			"or set SANDBOX_RUNTIME to the name or path of another", name, err)
	}
	r := &runtime{name: filepath.Base(path), path: path, root: root, timeout: timeout}
	r.client = runc.Runc{
		Command: path, Root: root, LogFormat: runc.JSON,
		// A call that was cut off by the end of this process must not go on beside
		// the next process, which clears up after it.
		PdeathSignal: syscall.SIGKILL,
		// The terminal's Ctrl-C is the service's to handle.
		Setpgid:   true,
		ExtraArgs: options(r.name),
	}
	return r, nil
}

// crun is the name of a runtime with quirks.
const crun = "crun"

// options are what a runtime needs on top of the usual. gVisor's own network
// does not start on recent kernels, and is of no use; its overlay would keep
// files in the shared image.
func options(name string) []string {
	if runner.GVisor(name) {
		return []string{"--network=none", "--overlay2=none"}
	}
	return nil
}

// monitor starts the processes of the runtime, in the library's place.
type monitor struct{ runc.ProcessMonitor }

func init() { runc.Monitor = monitor{runc.Monitor} }

// environ is what the runtime is given of this process's environment. The rest
// holds secrets, and some runtimes keep processes for as long as a runner lives.
func environ() []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LANG=C.UTF-8"}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		env = append(env, "XDG_RUNTIME_DIR="+dir)
	}
	return env
}

func (m monitor) StartLocked(cmd *exec.Cmd) (chan runc.Exit, error) {
	cmd.Env, cmd.WaitDelay = environ(), waitDelay
	if filepath.Base(cmd.Path) == crun && mixedCgroups() {
		return startApart(m.ProcessMonitor, cmd)
	}
	return m.ProcessMonitor.StartLocked(cmd)
}

// limited bounds a call. The error of a call that took too long is the context's
// cause.
func (r *runtime) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, r.timeout, fmt.Errorf("%s did not end within %v", r.name, r.timeout))
}

// failed completes the error of a call.
func (r *runtime) failed(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("cannot %s: %w", doing, context.Cause(ctx))
	}
	return fmt.Errorf("cannot %s: %w", doing, err)
}

// run creates and starts a runner from its bundle, with no input and output, and
// returns the process identifier that this host knows process 1 by.
func (r *runtime) run(ctx context.Context, id, bundle string) (int, error) {
	ctx, cancel := r.limited(ctx)
	defer cancel()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, fmt.Errorf("cannot start runner %s: %w", id, err)
	}
	defer null.Close()
	pids, log := filepath.Join(bundle, pidFile), filepath.Join(bundle, "log")
	if err := os.Remove(log); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("cannot start runner %s: %w", id, err) // it would tell of an earlier try
	}
	client := r.client
	client.Log = log
	_, err = client.Run(ctx, id, bundle, &runc.CreateOpts{IO: stdio{null, null, null}, PidFile: pids, Detach: true})
	if err != nil {
		if said := errorsIn(log); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return 0, r.failed(ctx, "start runner "+id, err)
	}
	pid, err := readPid(pids)
	return pid, r.failed(ctx, "start runner "+id, err)
}

// exec starts a process in a runner and returns its identifier on this host.
// What the runtime says of a failure goes to the process's standard error. The
// caller closes its copies of the files.
func (r *runtime) exec(ctx context.Context, id, pids string, process specs.Process, files stdio) (int, error) {
	ctx, cancel := r.limited(ctx)
	defer cancel()
	err := r.client.Exec(ctx, id, process, &runc.ExecOpts{IO: files, PidFile: pids, Detach: true})
	if err != nil {
		return 0, r.failed(ctx, "start a command in runner "+id, err)
	}
	pid, err := readPid(pids)
	return pid, r.failed(ctx, "start a command in runner "+id, err)
}

// list returns what the runtime knows of, whatever its state.
func (r *runtime) list(ctx context.Context) ([]*runc.Container, error) {
	ctx, cancel := r.limited(ctx)
	defer cancel()
	found, err := r.client.List(ctx)
	return found, r.failed(ctx, "list runners", err)
}

// remove kills what there is of a runner and removes what the runtime keeps of
// it. One that it does not know is no error.
func (r *runtime) remove(ctx context.Context, id string) error {
	ctx, cancel := r.limited(ctx)
	defer cancel()
	err := r.client.Delete(ctx, id, &runc.DeleteOpts{Force: true})
	if err != nil && strings.Contains(err.Error(), "does not exist") {
		return nil
	}
	// crun fails where somebody else removes the same runner meanwhile, in words that
	// depend on how far that has come.
	state := filepath.Join(r.root, id)
	for pause := 10 * time.Millisecond; err != nil && r.name == crun && exists(state) && pause < time.Second; pause *= 2 {
		time.Sleep(pause)
	}
	if err != nil && r.name == crun && !exists(state) {
		return nil
	}
	return r.failed(ctx, "remove runner "+id, err)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// forget removes what a runtime that was killed half-way keeps of a runner:
// directories and files that have its name in theirs.
func (r *runtime) forget(id string) error {
	found, err := filepath.Glob(filepath.Join(r.root, "*"+id+"*"))
	for _, path := range found {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// version returns the runtime's name and version.
func (r *runtime) version(ctx context.Context) (string, error) {
	info, err := os.Stat(r.path)
	if err != nil {
		return "", fmt.Errorf("cannot find the OCI runtime: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := program{info.Size(), info.ModTime()}
	if r.known == now {
		return r.told, nil
	}
	ctx, cancel := r.limited(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.path, "--version")
	cmd.Env, cmd.WaitDelay = environ(), waitDelay
	out, err := cmd.Output()
	if err != nil {
		return "", r.failed(ctx, "ask "+r.name+" for its version", err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	r.known, r.told = now, strings.Replace(strings.TrimSpace(line), " version ", " ", 1)
	return r.told, nil
}

// errorsIn returns the last errors in a log that a runtime wrote: the first of them
// is the cause of the others.
func errorsIn(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	var said []string
	for line := range bytes.Lines(b) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && (entry.Level == "error" || entry.Level == "fatal") {
			said = append(said, entry.Msg)
		}
	}
	return strings.Join(said[max(0, len(said)-3):], "; ")
}

// sealTries is how often a runtime is started that cannot seal itself.
const sealTries = 3

// unsealed tells whether a runtime failed because the kernel did not seal the copy
// of its program that it works from. The kernel refuses that for a moment while it
// moves one of the copy's pages, on busy hosts. Nothing has been started then.
func unsealed(err error) bool {
	if err == nil {
		return false
	}
	said := strings.ToLower(err.Error())
	return strings.Contains(said, "resource busy") && (strings.Contains(said, "cloned binary") || strings.Contains(said, "seal"))
}

func readPid(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var pid int
	if err := json.Unmarshal(b, &pid); err != nil || pid <= 0 {
		return 0, errors.New("the runtime wrote no process identifier")
	}
	return pid, nil
}

// stdio gives files to a process that the runtime starts.
type stdio struct{ in, out, err *os.File }

// The rest makes it a runc.IO. The files are the caller's.

func (s stdio) Set(cmd *exec.Cmd) { cmd.Stdin, cmd.Stdout, cmd.Stderr = s.in, s.out, s.err }

func (stdio) Close() error          { return nil }
func (stdio) Stdin() io.WriteCloser { return nil }
func (stdio) Stdout() io.ReadCloser { return nil }
func (stdio) Stderr() io.ReadCloser { return nil }
