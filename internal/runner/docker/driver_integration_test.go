//go:build integration

package docker_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/docker"
)

func find(t testing.TB, d *docker.Driver, id string) (runner.Instance, bool) {
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
	if info.Driver != "docker" || info.Version == "" || info.Image != testImage() || info.ImageReady {
		t.Errorf("before the first runner: %+v", info)
	}

	id, spec := create(t, d, testLimits)
	if info, err = d.Info(t.Context()); err != nil || !info.ImageReady {
		t.Errorf("after the first runner: %+v, %v", info, err)
	}
	got, ok := find(t, d, id)
	want := runner.Instance{ID: id, SessionID: spec.SessionID, CreatedAt: spec.CreatedAt, Running: true}
	if !ok || got != want {
		t.Errorf("listed as %+v, want %+v", got, want)
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

func TestStoppedRunner(t *testing.T) {
	d := newDriver(t, nil)
	id, _ := create(t, d, testLimits)
	c := engineClient(t)
	if _, err := c.ContainerPause(t.Context(), id, client.ContainerPauseOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Dial(t.Context(), id, []string{"true"}, nil); err == nil || errors.Is(err, runner.ErrNotFound) {
		t.Errorf("dialling a paused runner: %v", err)
	}
	if in, ok := find(t, d, id); !ok || !in.Running {
		t.Errorf("a paused runner is listed as %+v", in)
	}
	if _, err := c.ContainerUnpause(t.Context(), id, client.ContainerUnpauseOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ContainerKill(t.Context(), id, client.ContainerKillOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Dial(t.Context(), id, []string{"true"}, nil); !errors.Is(err, runner.ErrNotFound) {
		t.Errorf("dialling a stopped runner: %v", err)
	}
	if in, ok := find(t, d, id); !ok || in.Running {
		t.Errorf("a stopped runner is listed as %+v", in)
	}
}

// TestInstances has two services on one engine, and runners of the older
// service, which both may adopt (and so may any other service on this engine).
func TestInstances(t *testing.T) {
	mine := newDriver(t, nil)
	other := newDriver(t, func(c *docker.Config) { c.Instance = testInstance + "-other" })
	a, _ := create(t, mine, testLimits)
	b, _ := create(t, other, testLimits)
	session, made := randomHex(16), time.Now().Add(-time.Minute).Truncate(time.Second)
	legacy := foreign(t, map[string]string{
		"aivory.sandbox": "1", "aivory.session_id": session, "aivory.created_at": strconv.FormatInt(made.Unix(), 10),
	})
	odd := foreign(t, map[string]string{"aivory.sandbox": "1", "aivory.session_id": "../../etc", "aivory.created_at": "soon"})
	unmarked := foreign(t, map[string]string{"aivory.session_id": randomHex(16)})

	for _, x := range []struct {
		name      string
		d         *docker.Driver
		own, them string
	}{{"mine", mine, a, b}, {"other", other, b, a}} {
		if in, ok := find(t, x.d, x.own); !ok || in.Legacy {
			t.Errorf("%s: own runner listed as %+v, %v", x.name, in, ok)
		}
		if _, ok := find(t, x.d, x.them); ok {
			t.Errorf("%s sees the other instance's runner", x.name)
		}
		if _, ok := find(t, x.d, unmarked); ok {
			t.Errorf("%s sees a container that is no runner", x.name)
		}
		in, ok := find(t, x.d, legacy)
		want := runner.Instance{ID: legacy, SessionID: session, CreatedAt: made, Running: true, Legacy: true}
		if !ok || in != want {
			t.Errorf("%s: legacy runner listed as %+v, want %+v", x.name, in, want)
		}
		if in, ok := find(t, x.d, odd); !ok || in.SessionID != "" || time.Since(in.CreatedAt) > time.Hour {
			t.Errorf("%s: runner with malformed labels listed as %+v, %v", x.name, in, ok)
		}
	}
	if got := run(t, mine, legacy, "sh", "-c", "id -u; pwd"); got != "1000\n/\n" {
		t.Errorf("a command in a legacy runner: %q", got)
	}
	if err := mine.Destroy(t.Context(), legacy); err != nil {
		t.Error(err)
	}
}

func TestMissingImage(t *testing.T) {
	d := newDriver(t, func(c *docker.Config) {
		// A port of this machine where nobody listens: no look-up leaves it.
		c.Image = "127.0.0.1:9/aivory/no-such-image:v1"
	})
	_, err := d.Create(t.Context(), runner.Spec{SessionID: randomHex(16), CreatedAt: time.Now(), Limits: testLimits})
	if err == nil || !strings.Contains(err.Error(), "cannot pull image 127.0.0.1:9/aivory/no-such-image:v1") || errors.Is(err, runner.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	if info, err := d.Info(t.Context()); err != nil || info.ImageReady {
		t.Errorf("info %+v, %v", info, err)
	}
}

// TestCancelledCreate cancels creates at many moments. TestMain looks for what
// they leave.
func TestCancelledCreate(t *testing.T) {
	d := newDriver(t, nil)
	create(t, d, testLimits) // the image is known from here on
	for i := range 12 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*30*time.Millisecond)
		id, err := d.Create(ctx, runner.Spec{SessionID: randomHex(16), CreatedAt: time.Now(), Limits: testLimits})
		cancel()
		if err == nil {
			if err := d.Destroy(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
	}
	if left, err := leftovers(); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
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
	if left, err := leftovers(); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestDiskSizeIsBestEffort(t *testing.T) {
	d := newDriver(t, nil)
	limits := testLimits
	limits.ReadOnlyRootfs, limits.DiskSize = false, "1G"
	id, _ := create(t, d, limits)
	if got := run(t, d, id, "echo", "up"); got != "up\n" {
		t.Errorf("got %q", got)
	}
}

func TestUnknownRuntime(t *testing.T) {
	d := newDriver(t, func(c *docker.Config) { c.Runtime = "no-such-runtime" })
	_, err := d.Create(t.Context(), runner.Spec{SessionID: randomHex(16), CreatedAt: time.Now(), Limits: testLimits})
	if err == nil || !strings.Contains(err.Error(), "no-such-runtime") {
		t.Errorf("got %v", err)
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

// TestCloseEndsCommand: the engine closes a command's input with the stream, so
// that an agent sees its end, and a pending Read returns.
func TestCloseEndsCommand(t *testing.T) {
	d := newDriver(t, nil)
	id, _ := create(t, d, testLimits)
	s, err := d.Dial(t.Context(), id, []string{"cat"}, nil)
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
		if !strings.Contains(run(t, d, id, "sh", "-c", "cat /proc/[0-9]*/comm"), "cat\ncat\n") {
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
	if err != nil {
		if errors.Is(err, runner.ErrNotFound) {
			t.Errorf("the runner is there: %v", err)
		}
		return
	}
	defer s.Close()
	out, _ := io.ReadAll(s)
	if !strings.Contains(string(out)+s.Diagnostics(), "no-such-command") {
		t.Errorf("neither output %q nor diagnostics %q name it", out, s.Diagnostics())
	}
}
