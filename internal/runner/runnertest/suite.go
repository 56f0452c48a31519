// Package runnertest is what every runner driver has to stand: one suite of
// tests of a Runner over the real thing, and the benchmarks.
//
// Both make runners, and fail where one is left behind.
package runnertest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// Options say what the driver under test needs and can.
type Options struct {
	// Limits are given to the runners. Zero is DefaultLimits.
	Limits runner.Limits
	// Except names tests that this kind of isolation makes impossible, by their
	// name below the suite's own, each with the reason. They are skipped. A name
	// and what a trick prints, or begins with, excepts that alone: "Escape/Init:
	// works: kill 0".
	Except map[string]string
	// Posture is what differs from what every other runner shows of itself.
	Posture map[string]any
	// OwnMemory is for isolation with a limit of its own on a process's memory,
	// below the runner's: a program meets a MemoryError.
	OwnMemory bool
	// Short leaves out what hardly depends on the kind of isolation, where
	// AIVORY_SOAK is not 1: such a driver shares most with one that runs it all.
	Short bool
	// Control, where set, does something to a runner behind its driver's back:
	// "pause", "resume" or "kill".
	Control func(t testing.TB, id, verb string)
	// Traces, where set, returns patterns of files. Those that match one, and have
	// the instance or a runner's handle in their path, are all that an engine keeps
	// of runners on this host beside mounts, cgroups and processes.
	Traces func(t testing.TB, instance string) []string
	// Directory, where set, is where an engine keeps what it has of one runner, ""
	// where that is on another host.
	Directory func(t testing.TB, id string) string
	// Settle is how long an engine may go on with a request whose caller was
	// killed. Zero is for a driver without one.
	Settle time.Duration
	// Moment is about a twelfth of what a create takes; zero is 15 ms.
	Moment time.Duration
	// Legacy, where set, makes and starts a runner as the older service did:
	// process 1 belongs to the program's user and ends with its `sleep
	// infinity`. It returns the handle. The suite destroys it.
	Legacy func(t testing.TB) (id string)
}

// DefaultLimits are small, so that a test soon runs into them. The memory holds
// all of the tmpfs and an agent.
var DefaultLimits = runner.Limits{
	MemoryBytes:    640 << 20,
	NanoCPUs:       1_000_000_000,
	PidsLimit:      128,
	NofileSoft:     1024,
	NofileHard:     1024,
	ReadOnlyRootfs: true,
	TmpfsBytes:     48 << 20,
	WorkspaceBytes: 160 << 20,
}

// SmallLimits are all different, so that no two can be confused.
var SmallLimits = runner.Limits{
	MemoryBytes:    384 << 20,
	NanoCPUs:       750_000_000,
	PidsLimit:      97,
	NofileSoft:     512,
	NofileHard:     640,
	ReadOnlyRootfs: true,
	TmpfsBytes:     24 << 20,
	WorkspaceBytes: 40 << 20,
}

// Preload is what agents import ahead of need where a test wants it.
var Preload = []string{"numpy", "pandas", "matplotlib.pyplot"}

// slow is how long a run may take on a busy machine that is nobody's fault.
const slow = 2 * time.Minute

// Config is what a test wants of a driver. What is zero is the tests' own.
type Config struct {
	Image    string
	Instance string
	Profile  []byte // seccomp, in Docker's format
}

// Open makes a driver for a test, which fails where that cannot be. Whoever
// calls it closes the driver.
type Open func(t testing.TB, c Config) runner.Driver

// suite is one call of Run or Bench.
type suite struct {
	open Open
	opts Options
}

func newSuite(open Open, opts Options) *suite {
	if opts.Limits == (runner.Limits{}) {
		opts.Limits = DefaultLimits
	}
	if opts.Moment == 0 {
		opts.Moment = 15 * time.Millisecond
	}
	return &suite{open, opts}
}

// Run runs the suite. With AIVORY_SOAK=1 in the environment, what is repeated is
// repeated often.
func Run(t *testing.T, open Open, opts Options) {
	s := newSuite(open, opts)
	if instance := os.Getenv(victimOf); instance != "" {
		s.victim(t, instance)
		return
	}
	before := goleak.IgnoreCurrent()
	for _, test := range []struct {
		name  string
		run   func(*testing.T, *suite)
		short bool // part of the short form
	}{
		{"Driver", testDriver, true},
		{"Lifecycle", testLifecycle, true},
		{"Exec", testExec, false},
		{"Artifacts", testArtifacts, false},
		{"Files", testFiles, false},
		{"Archive", testArchive, false},
		{"Isolation", testIsolation, false},
		{"Program", testProgram, false},
		{"Survivors", testSurvivors, false},
		{"Agent", testAgent, false},
		{"Memory", testMemory, false},
		{"Legacy", testLegacy, false},
		{"Posture", testPosture, true},
		{"Escape", testEscape, true},
		{"Storm", testStorm, true},
		{"Killed", testKilled, true},
	} {
		if s.opts.Short && !test.short && soak(0, 1) == 1 {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			s.skip(t)
			test.run(t, s)
		})
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

// driver makes a driver that the test's end closes.
func (s *suite) driver(t testing.TB, c Config) runner.Driver {
	t.Helper()
	d := s.open(t, c)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// skip skips a test that the driver's exceptions name.
func (s *suite) skip(t testing.TB) {
	_, name, _ := strings.Cut(t.Name(), "/")
	if reason, ok := s.opts.Except[name]; ok {
		t.Skip(reason)
	}
}

// excepted returns what a program has printed without the lines that the
// driver's exceptions name.
func (s *suite) excepted(t testing.TB, printed string) string {
	_, name, _ := strings.Cut(t.Name(), "/")
	var rest strings.Builder
	for line := range strings.Lines(printed) {
		known := false
		for exception := range s.opts.Except {
			start, ok := strings.CutPrefix(exception, name+": ")
			known = known || ok && strings.HasPrefix(line, start)
		}
		if !known {
			rest.WriteString(line)
		}
	}
	return rest.String()
}

// part is one of several tests on the same runner.
type part struct {
	name string
	test func(*testing.T, *sandbox)
}

// run runs the part and checks that it left the runner of use.
func (p part) run(t *testing.T, b *sandbox) {
	t.Run(p.name, func(t *testing.T) {
		b.suite.skip(t)
		p.test(t, b)
		b.works(t)
	})
}

func soak(often, rarely int) int {
	if os.Getenv("AIVORY_SOAK") == "1" {
		return often
	}
	return rarely
}

// sandbox is a runner for a test, with the connection to it.
type sandbox struct {
	*runner.Runner
	t       testing.TB
	suite   *suite
	driver  runner.Driver
	id      string
	preload []string
}

// sandbox makes a runner that goes with the test, and sees to it that it does.
func (s *suite) sandbox(t testing.TB, preload ...string) *sandbox {
	t.Helper()
	return s.limited(t, s.opts.Limits, preload...)
}

// limited is sandbox for a runner with limits of its own.
func (s *suite) limited(t testing.TB, limits runner.Limits, preload ...string) *sandbox {
	t.Helper()
	d := s.driver(t, Config{})
	b := &sandbox{t: t, suite: s, driver: d, preload: preload}
	b.id, _ = Create(t, d, limits)
	b.reopen()
	return b
}

// adopt is a runner that is there already.
func (s *suite) adopt(t testing.TB, id string) *sandbox {
	t.Helper()
	d := s.driver(t, Config{})
	t.Cleanup(func() { Remove(t, d, id) })
	b := &sandbox{t: t, suite: s, driver: d, id: id}
	b.reopen()
	return b
}

// reopen forgets the connection, as a service that is started again.
func (b *sandbox) reopen() {
	if b.Runner != nil {
		_ = b.Close()
	}
	b.Runner = runner.New(b.driver, b.id, runner.Options{
		Preload: b.preload, CPUs: float64(b.suite.opts.Limits.NanoCPUs) / 1e9, DialTimeout: time.Minute,
	})
	r := b.Runner
	b.t.Cleanup(func() { _ = r.Close() })
}

// outcome is a run with its artifacts' content.
type outcome struct {
	*runner.Execution
	out, err string
	files    []file
}

type file struct {
	path    string
	content []byte
}

func (o outcome) paths() (paths []string) {
	for _, f := range o.files {
		paths = append(paths, f.path)
	}
	return paths
}

func request(code string) runner.ExecRequest {
	return runner.ExecRequest{
		Code: []byte(code), Timeout: slow, MaxOutputBytes: 32 << 10,
		Artifacts: runner.ArtifactLimits{
			MaxFiles: 20, MaxFileBytes: 20 << 20, MaxTotalBytes: 50 << 20,
			MaxDuration: time.Minute, FileTimeout: 30 * time.Second,
		},
	}
}

// run runs a program and takes its artifacts.
func (b *sandbox) run(t testing.TB, code string, change ...func(*runner.ExecRequest)) outcome {
	t.Helper()
	o, err := b.try(t.Context(), code, change...)
	if err != nil {
		t.Fatalf("%.80q: %v", code, err)
	}
	return o
}

func (b *sandbox) try(ctx context.Context, code string, change ...func(*runner.ExecRequest)) (outcome, error) {
	req := request(code)
	for _, f := range change {
		f(&req)
	}
	x, err := b.Exec(ctx, req)
	if err != nil {
		return outcome{}, err
	}
	o := outcome{Execution: x, out: string(x.Stdout), err: string(x.Stderr)}
	for _, f := range x.Files {
		content, err := x.Next()
		if err != nil {
			return o, errors.Join(err, x.Close())
		}
		data, err := io.ReadAll(content)
		if err != nil || int64(len(data)) != f.Size {
			return o, errors.Join(err, io.ErrUnexpectedEOF, x.Close())
		}
		o.files = append(o.files, file{f.Path, data})
	}
	return o, x.Close()
}

// prints runs a program that must end well and print want.
func (b *sandbox) prints(t testing.TB, code, want string) {
	t.Helper()
	if o := b.run(t, code); o.out != want || o.ExitCode != 0 || o.Reason != runner.ReasonExit {
		t.Errorf("%.80q: printed %.300q, want %.300q; %d %s, stderr %.1000q", code, o.out, want, o.ExitCode, o.Reason, o.err)
	}
}

// works checks that the runner is of use, and has kept a file of the test's.
func (b *sandbox) works(t testing.TB) {
	t.Helper()
	b.prints(t, `print(1)`, "1\n")
}

func (b *sandbox) put(t testing.TB, path, content string) {
	t.Helper()
	if err := b.Write(t.Context(), path, strings.NewReader(content), int64(len(content))); err != nil {
		t.Errorf("put %.80q: %v", path, err)
	}
}

func (b *sandbox) get(t testing.TB, path string) string {
	t.Helper()
	body, size, err := b.Read(t.Context(), path)
	if err != nil {
		t.Errorf("get %.80q: %v", path, err)
		return ""
	}
	data, err := io.ReadAll(body)
	if err = errors.Join(err, body.Close()); err != nil || int64(len(data)) != size {
		t.Errorf("get %.80q: %d bytes of %d, %v", path, len(data), size, err)
	}
	return string(data)
}

func (b *sandbox) pack(t testing.TB) ([]byte, runner.PackStats) {
	t.Helper()
	var w bytes.Buffer
	stats, err := b.Pack(t.Context(), &w, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return w.Bytes(), stats
}

// command runs a command in the runner as an agent would be, to its end.
func (b *sandbox) command(t testing.TB, input string, command ...string) string {
	t.Helper()
	return commandWith(t, b.driver, b.id, input, command...)
}

// processes are the command lines of all processes of the program's user but
// the agent's.
const processes = `
import os
found = []
for pid in os.listdir('/proc'):
    if pid.isdigit() and pid != '1' and int(pid) not in (os.getpid(), os.getppid()):
        try:
            if os.stat('/proc/' + pid).st_uid == 1000 or open('/proc/%s/status' % pid).read().split('Uid:\t')[1].startswith('1000'):
                found.append(open('/proc/%s/cmdline' % pid).read().replace('\0', ' ').strip())
        except OSError:
            pass
print(sorted(found))
`
