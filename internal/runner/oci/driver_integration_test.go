//go:build integration

package oci_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci/image"
)

func find(t testing.TB, d *oci.Driver, id string) (runner.Instance, bool) {
	t.Helper()
	list, err := d.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(in runner.Instance) bool { return in.ID == id })
	if i < 0 {
		return runner.Instance{}, false
	}
	return list[i], true
}

func TestLifecycle(t *testing.T) {
	d := newDriver(t, nil)
	info, err := d.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.Driver != "oci" || info.Runtime != "runc" || !strings.HasPrefix(info.Version, "runc ") || info.Image != testImage() || info.ImageReady {
		t.Errorf("before the first runner: %+v", info)
	}
	id, spec := create(t, d, testLimits)
	if info, err = d.Info(t.Context()); err != nil || !info.ImageReady {
		t.Errorf("after the first runner: %+v, %v", info, err)
	}
	want := runner.Instance{ID: id, SessionID: spec.SessionID, CreatedAt: spec.CreatedAt, Running: true}
	// A driver that comes after finds it as well.
	for _, d := range []*oci.Driver{d, newDriver(t, nil)} {
		if got, ok := find(t, d, id); !ok || got != want {
			t.Errorf("listed as %+v, want %+v", got, want)
		}
	}

	s, err := d.Dial(t.Context(), id, []string{"sh", "-c", `echo "$EXTRA $MPLBACKEND $HOME $(pwd)"; echo oops >&2; cat`}, []string{"EXTRA=one two"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const hello = "one two Agg /home/sandbox /\n"
	b := make([]byte, len(hello))
	if _, err := io.ReadFull(s, b); err != nil || string(b) != hello {
		t.Errorf("greeted with %q, %v", b, err)
	}
	if _, err := s.Write([]byte("there and back")); err != nil {
		t.Fatal(err)
	}
	b = make([]byte, len("there and back"))
	if _, err := io.ReadFull(s, b); err != nil || string(b) != "there and back" {
		t.Errorf("echo: %q, %v", b, err)
	}
	if got := s.Diagnostics(); got != "oops\n" {
		t.Errorf("diagnostics %q", got)
	}
	if err := d.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(s); err != nil {
		t.Errorf("reading from a destroyed runner: %v", err)
	}
	if err := d.Destroy(t.Context(), id); err != nil {
		t.Errorf("destroying again: %v", err)
	}
	if _, ok := find(t, d, id); ok {
		t.Error("still listed after Destroy")
	}
	if _, err := d.Dial(t.Context(), id, []string{"true"}, nil); !errors.Is(err, runner.ErrNotFound) {
		t.Errorf("dialling a destroyed runner: %v", err)
	}
}

func TestConcurrentDestroy(t *testing.T) {
	d := newDriver(t, nil)
	id, _ := create(t, d, testLimits)
	errs := make(chan error)
	for range 4 {
		go func() { errs <- d.Destroy(context.Background(), id) }()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if _, ok := find(t, d, id); ok {
		t.Error("still there after all destroys have returned")
	}
}

// runtime runs the OCI runtime by hand.
func runtime(t testing.TB, args ...string) {
	t.Helper()
	root := filepath.Join("/run/aivory-sandbox", testInstance, "state")
	if out, err := exec.Command("runc", append([]string{"--root", root}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("runc %v: %v: %s", args, err, out)
	}
}

func TestStoppedRunner(t *testing.T) {
	d := newDriver(t, nil)
	id, _ := create(t, d, testLimits)
	runtime(t, "pause", id)
	if in, ok := find(t, d, id); !ok || !in.Running {
		t.Errorf("a paused runner is listed as %+v", in)
	}
	if _, err := d.Dial(t.Context(), id, []string{"true"}, nil); err == nil || errors.Is(err, runner.ErrNotFound) {
		t.Errorf("dialling a paused runner: %v", err)
	}
	runtime(t, "resume", id)
	runtime(t, "kill", id, "KILL")
	for range 100 {
		if in, ok := find(t, d, id); ok && !in.Running {
			if _, err := d.Dial(t.Context(), id, []string{"true"}, nil); !errors.Is(err, runner.ErrNotFound) {
				t.Errorf("dialling a stopped runner: %v", err)
			}
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("a stopped runner is listed as running")
}

func TestInstances(t *testing.T) {
	mine := newDriver(t, nil)
	theirs := testInstance + "-other"
	other := newDriver(t, func(c *oci.Config) { c.Instance = theirs })
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Join("/run/aivory-sandbox", theirs)) })
	a, _ := create(t, mine, testLimits)
	b, _ := create(t, other, testLimits)
	for _, x := range []struct {
		d         *oci.Driver
		own, them string
	}{{mine, a, b}, {other, b, a}} {
		if _, ok := find(t, x.d, x.own); !ok {
			t.Error("own runner is not listed")
		}
		if _, ok := find(t, x.d, x.them); ok {
			t.Error("the other instance's runner is listed")
		}
		if _, err := x.d.Dial(t.Context(), x.them, []string{"true"}, nil); !errors.Is(err, runner.ErrNotFound) {
			t.Errorf("dialling the other's: %v", err)
		}
	}
}

func TestMissingImage(t *testing.T) {
	d := newDriver(t, func(c *oci.Config) { c.Image = "no-such-image:v1" })
	_, err := d.Create(t.Context(), runner.Spec{SessionID: randomHex(16), CreatedAt: time.Now(), Limits: testLimits})
	if !errors.Is(err, image.ErrNotFound) || errors.Is(err, runner.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// TestCancelledCreate cancels creates at many moments. TestMain looks for what
// they leave.
func TestCancelledCreate(t *testing.T) {
	d := newDriver(t, nil)
	for i := range 12 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*10*time.Millisecond)
		id, err := d.Create(ctx, runner.Spec{SessionID: randomHex(16), CreatedAt: time.Now(), Limits: testLimits})
		cancel()
		if err == nil {
			if err := d.Destroy(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
	}
	if list, err := d.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left behind: %v, %v", list, err)
	}
}

func TestFailedStart(t *testing.T) {
	d := newDriver(t, nil)
	limits := testLimits
	limits.NofileSoft, limits.NofileHard = 1<<40, 1<<40 // more than any kernel gives
	id, err := d.Create(t.Context(), runner.Spec{SessionID: randomHex(16), CreatedAt: time.Now(), Limits: limits})
	if err == nil {
		t.Fatalf("created %s", id)
	}
	if !strings.Contains(err.Error(), "limit") {
		t.Errorf("the error does not say why: %v", err)
	}
	if list, err := d.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left behind: %v, %v", list, err)
	}
}

// TestStreamOutlivesContext: the context of Dial bounds the start alone.
func TestStreamOutlivesContext(t *testing.T) {
	d := newDriver(t, nil)
	id, _ := create(t, d, testLimits)
	ctx, cancel := context.WithCancel(t.Context())
	s, err := d.Dial(ctx, id, []string{"cat"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	cancel()
	sent := make([]byte, 4<<20)
	_, _ = rand.Read(sent)
	go func() { _, _ = s.Write(sent) }()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(sent, got) {
		t.Errorf("4 MiB there and back: %v, equal %v", err, bytes.Equal(sent, got))
	}
}

func commands(t testing.TB, d *oci.Driver, id string) []string {
	t.Helper()
	return strings.Fields(run(t, d, id, "sh", "-c", "cat /proc/[0-9]*/comm"))
}

func TestCloseEndsCommand(t *testing.T) {
	d := newDriver(t, nil)
	id, _ := create(t, d, testLimits)
	s, err := d.Dial(t.Context(), id, []string{"grep", "x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := s.Read(make([]byte, 1))
		done <- err
	}()
	time.Sleep(20 * time.Millisecond) // most likely Read is waiting by now
	_ = s.Close()
	if err := <-done; err == nil {
		t.Error("Read went on after Close")
	}
	for range 100 {
		if !slices.Contains(commands(t, d, id), "grep") {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("the command went on after Close")
}

func TestCommandThatDoesNotExist(t *testing.T) {
	d := newDriver(t, nil)
	id, _ := create(t, d, testLimits)
	s, err := d.Dial(t.Context(), id, []string{"no-such-command"}, nil)
	if err == nil {
		_ = s.Close()
		t.Fatal("it was started")
	}
	if errors.Is(err, runner.ErrNotFound) || !strings.Contains(err.Error(), "no-such-command") {
		t.Errorf("got %v", err)
	}
}

// TestWritableRoot has two runners over one image, each with a layer of its own.
func TestWritableRoot(t *testing.T) {
	d := newDriver(t, nil)
	limits := testLimits
	limits.ReadOnlyRootfs, limits.DiskSize = false, "1G"
	a, _ := create(t, d, limits)
	b, _ := create(t, d, limits)
	got := run(t, d, a, "sh", "-c", "for d in /tmp /home/sandbox /workspace; do echo x >$d/f && stat -c '%n %u %a' $d; done; grep -c ' / overlay rw' /proc/mounts; touch /usr/x")
	if want := "/tmp 1000 1777\n/home/sandbox 1000 755\n/workspace 1000 755\n1\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := run(t, d, b, "sh", "-c", "ls /workspace /home/sandbox"); strings.Contains(got, "f") {
		t.Errorf("the other runner sees %q", got)
	}
	// A machine that was restarted has lost the bundle, not the layer.
	lost := filepath.Join(layerDir, "aivory-sbx-"+randomHex(16))
	if err := os.MkdirAll(filepath.Join(lost, "upper", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	newDriver(t, nil)
	if _, err := os.Stat(lost); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a lost layer is still there: %v", err)
	}
	if got := run(t, d, a, "cat", "/workspace/f"); got != "x\n" {
		t.Errorf("and a living one holds %q", got)
	}
}

// TestHalfMade: what a service left that was killed at any moment of a create.
func TestHalfMade(t *testing.T) {
	d := newDriver(t, nil)
	id := "aivory-sbx-" + randomHex(16)
	bundle := filepath.Join("/run/aivory-sandbox", testInstance, "bundles", id)
	state := filepath.Join("/run/aivory-sandbox", testInstance, "state", id)
	for _, dir := range []string{bundle, state, filepath.Join(layerDir, id, "upper")} {
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
	if in, ok := find(t, d, id); !ok || in.Running {
		t.Errorf("listed as %+v, %v", in, ok)
	}
	if err := d.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	<-ended
	for _, path := range []string{bundle, state, filepath.Join(layerDir, id), cgroup} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
}
