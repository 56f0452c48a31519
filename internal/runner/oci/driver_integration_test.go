//go:build integration

package oci_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci/image"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

func TestMissingImage(t *testing.T) {
	d, err := oci.New(config(t, "runc", runnertest.Config{Image: "no-such-image:v1"}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	if _, err := d.Create(t.Context(), runnertest.Spec(runnertest.SmallLimits)); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	if err := d.CheckImage(); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("and when asked for: %v", err)
	}
}

// TestLostLayer: a machine that was restarted has lost the bundle of a runner,
// not its layer.
func TestLostLayer(t *testing.T) {
	limits := runnertest.SmallLimits
	limits.ReadOnlyRootfs = false
	d := newDriver(t, "runc")
	id, _ := runnertest.Create(t, d, limits)
	runnertest.Command(t, d, id, "sh", "-c", "echo x >/workspace/f")
	lost := filepath.Join(layerDir(testInstance+"-runc"), "aivory-sbx-"+runnertest.RandomHex(16))
	if err := os.MkdirAll(filepath.Join(lost, "upper", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	newDriver(t, "runc")
	if _, err := os.Stat(lost); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a lost layer is still there: %v", err)
	}
	if got := runnertest.Command(t, d, id, "cat", "/workspace/f"); got != "x\n" {
		t.Errorf("and a living one holds %q", got)
	}
}

// TestForeignHandle: a handle of another instance's is nobody's here.
func TestForeignHandle(t *testing.T) {
	d := newDriver(t, "runc")
	other, err := oci.New(config(t, "runc", runnertest.Config{Instance: testInstance + "-other"}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	id, _ := runnertest.Create(t, d, runnertest.SmallLimits)
	if _, err := other.Dial(t.Context(), id, []string{"true"}, nil); !errors.Is(err, runner.ErrNotFound) {
		t.Errorf("dialling the other's: %v", err)
	}
}

// TestHalfMade: what a service left that was killed at any moment of a create.
func TestHalfMade(t *testing.T) {
	d := newDriver(t, "runc")
	instance := testInstance + "-runc"
	id := "aivory-sbx-" + runnertest.RandomHex(16)
	bundle, state := filepath.Join(runDir(instance), "bundles", id), filepath.Join(runDir(instance), "state", id)
	layer := filepath.Join(layerDir(instance), id)
	for _, dir := range []string{bundle, state, filepath.Join(layer, "upper")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"ociVersion":`), 0o600); err != nil {
		t.Fatal(err)
	}
	cgroup := filepath.Join("/sys/fs/cgroup/memory/aivory-sandbox", id)
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		cgroup = filepath.Join("/sys/fs/cgroup/aivory-sandbox", id)
	}
	if err := os.MkdirAll(cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	// As the runtime's own child that it has left in the cgroup.
	sleep := exec.Command("sleep", "600")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- sleep.Wait() }()
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(sleep.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	if in, ok := runnertest.Find(t, d, id); !ok || in.Running {
		t.Errorf("listed as %+v, %v", in, ok)
	}
	if err := d.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	<-ended
	for _, path := range []string{bundle, state, layer, cgroup} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
}

// TestDeadAreWaitedFor: a runtime leaves processes of a runner to the service, which
// must not keep their numbers for as long as it lives.
func TestDeadAreWaitedFor(t *testing.T) {
	for _, runtime := range []string{"runc", "crun", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			dead := func() (names []string) {
				lists, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is well-formed
				for _, list := range lists {
					b, _ := os.ReadFile(list) // its thread may have ended
					for pid := range strings.FieldsSeq(string(b)) {
						if b, _ := os.ReadFile("/proc/" + pid + "/status"); strings.Contains(string(b), "State:\tZ") {
							names = append(names, strings.TrimSpace(strings.TrimPrefix(strings.SplitN(string(b), "\n", 2)[0], "Name:")))
						}
					}
				}
				return names
			}
			before := len(dead())
			d := newDriver(t, runtime)
			for range 3 {
				id, _ := runnertest.Create(t, d, runnertest.SmallLimits)
				runnertest.Command(t, d, id, "sh", "-c", "for i in 1 2 3 4; do sleep 0.1 & done; wait")
				runnertest.Remove(t, d, id)
			}
			var left []string
			for range 50 {
				if left = dead(); len(left) <= before {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
			t.Errorf("%d dead are left: %q", len(left)-before, left)
		})
	}
}

// failing opens a driver on a runc in dir that fails at a command with a message,
// as often as is asked for, and else is the real one.
func failing(t *testing.T, dir, command, message string) (d *oci.Driver, fails func(times int)) {
	t.Helper()
	failures := filepath.Join(dir, "failures")
	wrapper := `#!/bin/sh
log=/dev/stderr
before=
for word; do
  [ "$before" = --log ] && log=$word
  if [ "$word" = ` + command + ` ] && [ -s ` + failures + ` ]; then
    sed -i 1d ` + failures + `
    echo '{"level":"fatal","msg":"` + message + `"}' >>"$log"
    echo '{"level":"error","msg":"something else"}' >>"$log"
    exit 255
  fi
  before=$word
done
exec ` + runnertest.Program(t, "runc") + ` "$@"
`
	if err := os.WriteFile(filepath.Join(dir, "runc"), []byte(wrapper), 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := config(t, "runc", runnertest.Config{})
	cfg.Runtime = filepath.Join(dir, "runc")
	d, err := oci.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d, func(times int) {
		if err := os.WriteFile(failures, bytes.Repeat([]byte("x\n"), times), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRuntimeCannotSealItself: the kernel refuses runc the seal on the copy that it
// runs from while it moves one of its pages, and not for long.
func TestRuntimeCannotSealItself(t *testing.T) {
	const message = "nsexec[1]: could not ensure we are a cloned binary: Device or resource busy"
	for _, command := range []string{"run", "exec"} {
		t.Run(command, func(t *testing.T) {
			d, fails := failing(t, t.TempDir(), command, message)
			fails(2)
			id, _ := runnertest.Create(t, d, runnertest.SmallLimits)
			if got := runnertest.Command(t, d, id, "echo", "alive"); got != "alive\n" {
				t.Errorf("it says %q", got)
			}
			fails(1000)
			var err error
			if command == "run" {
				_, err = d.Create(t.Context(), runnertest.Spec(runnertest.SmallLimits))
			} else {
				_, err = d.Dial(t.Context(), id, []string{"true"}, nil)
			}
			if err == nil || !strings.Contains(err.Error(), "cloned binary") {
				t.Errorf("got %v", err)
			}
			fails(0)
			runnertest.Remove(t, d, id)
		})
	}
}

// TestListThatFails: a runtime fails to list at all where one runner's state comes
// or goes meanwhile, which what a killed service had started may see to.
func TestListThatFails(t *testing.T) {
	dir := t.TempDir()
	d, fails := failing(t, dir, "list", "state is gone")
	alive, _ := runnertest.Create(t, d, runnertest.SmallLimits)
	half := "aivory-sbx-" + runnertest.RandomHex(16)
	if err := os.Mkdir(filepath.Join(runDir(testInstance+"-runc"), "bundles", half), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, times := range []int{1, 1000} {
		fails(times)
		for id, runs := range map[string]bool{alive: true, half: false} {
			if in, ok := runnertest.Find(t, d, id); !ok || in.Running != runs {
				t.Errorf("list fails %d times: %s is listed as %+v, %v", times, id, in, ok)
			}
		}
	}
	// Neither can the runtime tell of one.
	if err := os.Rename(filepath.Join(dir, "runc"), filepath.Join(dir, "moved")); err != nil {
		t.Fatal(err)
	}
	broken := "#!/bin/sh\nexit 255\n"
	if err := os.WriteFile(filepath.Join(dir, "runc"), []byte(broken), 0o755); err != nil {
		t.Fatal(err)
	}
	for id, runs := range map[string]bool{alive: true, half: false} {
		if in, ok := runnertest.Find(t, d, id); !ok || in.Running != runs {
			t.Errorf("with a runtime that fails: %s is listed as %+v, %v", id, in, ok)
		}
	}
	if err := os.Rename(filepath.Join(dir, "moved"), filepath.Join(dir, "runc")); err != nil {
		t.Fatal(err)
	}
	fails(0)
	runnertest.Remove(t, d, half)
}

// TestAnotherRuntime: runners that one runtime has made live on with it where the
// service is told to use another.
func TestAnotherRuntime(t *testing.T) {
	instance := testInstance + "-changing"
	open := func(runtime string) *oci.Driver {
		d, err := oci.New(config(t, runtime, runnertest.Config{Instance: instance}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
		return d
	}
	handles := map[string]string{}
	for _, runtime := range []string{"runc", "runsc", "crun"} {
		handles[runtime], _ = runnertest.Create(t, open(runtime), runnertest.SmallLimits)
	}
	for _, runtime := range []string{"runsc", "crun", "runc"} {
		d := open(runtime)
		for made, id := range handles {
			if in, ok := runnertest.Find(t, d, id); !ok || !in.Running {
				t.Errorf("%s: what %s has made is listed as %+v, %v", runtime, made, in, ok)
			}
			if got := runnertest.Command(t, d, id, "echo", "alive"); got != "alive\n" {
				t.Errorf("%s: what %s has made says %q", runtime, made, got)
			}
		}
	}
	last := open("runc")
	for _, id := range handles {
		runnertest.Remove(t, last, id)
	}
}
