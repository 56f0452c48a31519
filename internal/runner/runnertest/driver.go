package runnertest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// testDriver looks at the driver's own promises, without an agent.
func testDriver(t *testing.T, s *suite) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, *suite)
	}{
		{"Life", driverLife}, {"ConcurrentDestroy", concurrentDestroy}, {"Stopped", stoppedRunner}, {"Instances", instances},
		{"MissingImage", missingImage}, {"CancelledCreate", cancelledCreate}, {"FailedStart", failedStart},
		{"StreamOutlivesContext", streamOutlivesContext}, {"CloseEndsCommand", closeEndsCommand}, {"NoSuchCommand", noSuchCommand},
		{"WritableRoot", writableRoot}, {"OperatorProfile", operatorProfile}, {"Localhost", localhost},
		{"NothingOnHostDisk", nothingOnHostDisk},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.skip(t)
			test.run(t, s)
		})
	}
}

// driverLife goes through a runner's life.
func driverLife(t *testing.T, s *suite) {
	d := s.driver(t, Config{})
	info, err := d.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.Driver == "" || info.Version == "" || info.Image != Image() || info.ImageReady {
		t.Errorf("before the first runner: %+v", info)
	}
	id, spec := Create(t, d, SmallLimits)
	if info, err = d.Info(t.Context()); err != nil || !info.ImageReady {
		t.Errorf("after the first runner: %+v, %v", info, err)
	}
	want := runner.Instance{ID: id, SessionID: spec.SessionID, CreatedAt: spec.CreatedAt, Running: true}
	// A driver that comes after finds it as well.
	for _, d := range []runner.Driver{d, s.driver(t, Config{})} {
		if got, ok := Find(t, d, id); !ok || got != want {
			t.Errorf("listed as %+v, want %+v", got, want)
		}
	}

	stream, err := d.Dial(t.Context(), id, []string{"sh", "-c", `echo "$EXTRA $MPLBACKEND $HOME $(pwd)"; echo oops >&2; cat`}, []string{"EXTRA=one two"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	expect := func(want string) {
		t.Helper()
		b := make([]byte, len(want))
		if _, err := io.ReadFull(stream, b); err != nil || string(b) != want {
			t.Errorf("read %q, want %q, %v", b, want, err)
		}
	}
	expect("one two Agg /home/sandbox /\n")
	if _, err := stream.Write([]byte("there and back")); err != nil {
		t.Fatal(err)
	}
	expect("there and back")
	// It comes by a way of its own.
	said := stream.Diagnostics()
	for deadline := time.Now().Add(10 * time.Second); said != "oops\n" && time.Now().Before(deadline); said = stream.Diagnostics() {
		time.Sleep(time.Millisecond)
	}
	if said != "oops\n" {
		t.Errorf("diagnostics %q", said)
	}

	if err := d.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(20*time.Second, func() {
		t.Error("a read from a destroyed runner does not end")
		_ = stream.Close()
	})
	_, _ = io.ReadAll(stream)
	limit.Stop()
	if err := d.Destroy(t.Context(), id); err != nil {
		t.Errorf("destroying again: %v", err)
	}
	if _, ok := Find(t, d, id); ok {
		t.Error("still listed after Destroy")
	}
	if _, err := d.Dial(t.Context(), id, []string{"true"}, nil); !errors.Is(err, runner.ErrNotFound) {
		t.Errorf("dialling a destroyed runner: %v", err)
	}
}

func concurrentDestroy(t *testing.T, s *suite) {
	d := s.driver(t, Config{})
	id, _ := Create(t, d, SmallLimits)
	errs := make(chan error)
	for range 4 {
		go func() { errs <- d.Destroy(context.Background(), id) }()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if _, ok := Find(t, d, id); ok {
		t.Error("still there after all destroys have returned")
	}
}

func stoppedRunner(t *testing.T, s *suite) {
	if s.opts.Control == nil {
		t.Skip("nothing stops a runner of this driver's behind its back")
	}
	d := s.driver(t, Config{})
	id, _ := Create(t, d, SmallLimits)
	s.opts.Control(t, id, "pause")
	if in, ok := Find(t, d, id); !ok || !in.Running {
		t.Errorf("a paused runner is listed as %+v", in)
	}
	if _, err := d.Dial(t.Context(), id, []string{"true"}, nil); err == nil || errors.Is(err, runner.ErrNotFound) {
		t.Errorf("dialling a paused runner: %v", err)
	}
	s.opts.Control(t, id, "resume")
	s.opts.Control(t, id, "kill")
	if !eventually(func() bool { in, ok := Find(t, d, id); return ok && !in.Running }) {
		t.Error("a stopped runner is listed as running")
	}
	if _, err := d.Dial(t.Context(), id, []string{"true"}, nil); !errors.Is(err, runner.ErrNotFound) {
		t.Errorf("dialling a stopped runner: %v", err)
	}
}

// eventually reports whether something comes to hold within some seconds. It is
// for what an engine does by itself.
func eventually(holds func() bool) bool {
	for range 250 {
		if holds() {
			return true
		}
		time.Sleep(20 * time.Millisecond)
	}
	return false
}

// instances has two services beside each other.
func instances(t *testing.T, s *suite) {
	mine, other := s.driver(t, Config{}), s.driver(t, Config{Instance: "test-other-" + RandomHex(4)})
	a, _ := Create(t, mine, SmallLimits)
	b, _ := Create(t, other, SmallLimits)
	for _, x := range []struct {
		d         runner.Driver
		own, them string
	}{{mine, a, b}, {other, b, a}} {
		if in, ok := Find(t, x.d, x.own); !ok || in.Legacy {
			t.Errorf("own runner is listed as %+v, %v", in, ok)
		}
		if _, ok := Find(t, x.d, x.them); ok {
			t.Error("the other instance's runner is listed")
		}
	}
}

func missingImage(t *testing.T, s *suite) {
	// An engine would look for it at a port of this machine where nobody listens.
	const missing = "127.0.0.1:9/aivory/no-such-image:v1"
	d := s.driver(t, Config{Image: missing})
	_, err := d.Create(t.Context(), Spec(SmallLimits))
	if err == nil || !strings.Contains(err.Error(), missing) || errors.Is(err, runner.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	if info, err := d.Info(t.Context()); err != nil || info.ImageReady {
		t.Errorf("info %+v, %v", info, err)
	}
}

// cancelledCreate cancels creates at many moments.
func cancelledCreate(t *testing.T, s *suite) {
	d := s.driver(t, Config{})
	kept, _ := Create(t, d, SmallLimits) // the image is known from here on
	for i := range 12 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*s.opts.Moment)
		id, err := d.Create(ctx, Spec(SmallLimits))
		cancel()
		if err == nil {
			Remove(t, d, id)
		}
	}
	nothingBut(t, d, kept)
}

// nothingBut fails the test where there are other runners than these.
func nothingBut(t *testing.T, d runner.Driver, ids ...string) {
	t.Helper()
	list, err := d.List(t.Context())
	list = slices.DeleteFunc(list, func(in runner.Instance) bool { return in.Legacy || slices.Contains(ids, in.ID) })
	if err != nil || len(list) > 0 {
		t.Errorf("left behind: %+v, %v", list, err)
	}
}

func failedStart(t *testing.T, s *suite) {
	d := s.driver(t, Config{})
	limits := SmallLimits
	limits.NofileSoft, limits.NofileHard = 1<<40, 1<<40 // more than any kernel gives
	id, err := d.Create(t.Context(), Spec(limits))
	if err == nil {
		t.Errorf("created %s", id)
		Remove(t, d, id)
	} else if !strings.Contains(err.Error(), "limit") {
		t.Errorf("the error does not say why: %v", err)
	}
	nothingBut(t, d)
}

// streamOutlivesContext: the context of Dial bounds the start alone.
func streamOutlivesContext(t *testing.T, s *suite) {
	d := s.driver(t, Config{})
	id, _ := Create(t, d, SmallLimits)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := d.Dial(ctx, id, []string{"cat"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	cancel()
	sent := make([]byte, 4<<20)
	_, _ = rand.Read(sent)
	go func() { _, _ = stream.Write(sent) }()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(stream, got); err != nil || !bytes.Equal(sent, got) {
		t.Errorf("4 MiB there and back: %v, equal %v", err, bytes.Equal(sent, got))
	}
}

// closeEndsCommand: a command's input ends with the stream, and a pending Read
// returns.
func closeEndsCommand(t *testing.T, s *suite) {
	d := s.driver(t, Config{})
	id, _ := Create(t, d, SmallLimits)
	stream, err := d.Dial(t.Context(), id, []string{"grep", "x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := stream.Read(make([]byte, 1))
		done <- err
	}()
	time.Sleep(20 * time.Millisecond) // most likely Read is waiting by now
	_ = stream.Close()
	if err := <-done; err == nil {
		t.Error("Read went on after Close")
	}
	if !eventually(func() bool { return !slices.Contains(commands(t, d, id), "grep") }) {
		t.Error("the command went on after Close")
	}
}

// commands are the names of all processes in a runner.
func commands(t testing.TB, d runner.Driver, id string) []string {
	t.Helper()
	return strings.Fields(Command(t, d, id, "sh", "-c", "cat /proc/[0-9]*/comm"))
}

// noSuchCommand: an engine may start a command after it has given the stream
// away, which says so then.
func noSuchCommand(t *testing.T, s *suite) {
	d := s.driver(t, Config{})
	id, _ := Create(t, d, SmallLimits)
	stream, err := d.Dial(t.Context(), id, []string{"no-such-command"}, nil)
	said := ""
	if err == nil {
		defer stream.Close()
		out, _ := io.ReadAll(stream)
		said = string(out) + stream.Diagnostics()
	} else {
		said = err.Error()
	}
	if errors.Is(err, runner.ErrNotFound) || !strings.Contains(said, "no-such-command") {
		t.Errorf("got %v, %q", err, said)
	}
}

// writableRoot has two runners over one image, each with a layer of its own.
func writableRoot(t *testing.T, s *suite) {
	d := s.driver(t, Config{})
	limits := SmallLimits
	limits.ReadOnlyRootfs, limits.DiskSize = false, "1G" // a quota is best effort
	a, _ := Create(t, d, limits)
	b, _ := Create(t, d, limits)
	got := Command(t, d, a, "sh", "-c", "echo x >/tmp/f && stat -c %a /tmp; for d in /home/sandbox /workspace; do echo x >$d/f && stat -c '%n %u %a' $d; done; grep -cE ' (/workspace|/home/sandbox) ' /proc/mounts; touch /usr/x")
	if want := "1777\n/home/sandbox 1000 755\n/workspace 1000 755\n0\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := Command(t, d, b, "sh", "-c", "ls /workspace /home/sandbox"); strings.Contains(got, "f\n") {
		t.Errorf("the other runner sees %q", got)
	}
}

func operatorProfile(t *testing.T, s *suite) {
	// Everything allowed but mkdir: a profile nobody would take for the default.
	d := s.driver(t, Config{Profile: []byte("{\n\"defaultAction\": \"SCMP_ACT_ALLOW\",\n\"syscalls\": [{\"names\": [\"mkdir\", \"mkdirat\"], \"action\": \"SCMP_ACT_ERRNO\", \"errnoRet\": 95}]\n}\n")})
	id, _ := Create(t, d, SmallLimits)
	got := strings.TrimSpace(Python(t, d, id, "import os\ntry: os.mkdir('/tmp/d')\nexcept OSError as e: print(e.errno)"))
	if got != "95" && got != "1" { // Docker before 20.10.10 ignores errnoRet
		t.Errorf("mkdir under the operator's profile: %q", got)
	}
}

// localhost: programs talk to themselves by name.
func localhost(t *testing.T, s *suite) {
	d := s.driver(t, Config{})
	id, _ := Create(t, d, SmallLimits)
	got := strings.TrimSpace(Python(t, d, id, `
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

// nothingOnHostDisk: what is printed is kept nowhere.
func nothingOnHostDisk(t *testing.T, s *suite) {
	if s.opts.Directory == nil {
		t.Skip("this engine has no directories of runners")
	}
	d := s.driver(t, Config{})
	id, _ := Create(t, d, SmallLimits)
	const secret = "printed-by-a-program-7f3a"
	if got := Command(t, d, id, "sh", "-c", "echo "+secret+"; echo "+secret+" >&2"); got != secret+"\n" {
		t.Fatalf("got %q", got)
	}
	dir := s.opts.Directory(t, id)
	if dir == "" {
		t.Skip("the engine's host is another")
	}
	files := 0
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		files++
		if strings.HasSuffix(path, ".log") {
			t.Errorf("a log file: %s", path)
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), secret) {
			t.Errorf("output is kept in %s", path)
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("looked at %d files, %v", files, err)
	}
}
