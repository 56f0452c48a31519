package runnertest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// victimOf names, in the environment, the instance of a process that a test has
// started to kill it; victimStays makes it hold its first runner.
const victimOf, victimStays = "AIVORY_TEST_VICTIM_OF", "AIVORY_TEST_VICTIM_STAYS"

// victim makes, dials and removes runners for as long as it is let, and tells
// their names before they are made.
func (s *suite) victim(t *testing.T, instance string) {
	d := s.driver(t, Config{Instance: instance})
	for {
		limits := SmallLimits
		if _, never := s.opts.Except["Driver/WritableRoot"]; !never {
			limits.ReadOnlyRootfs = rand.IntN(2) == 0
		}
		spec := Spec(limits)
		fmt.Println("makes", runner.NamePrefix+spec.SessionID)
		id, err := d.Create(context.Background(), spec)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("made", id)
		stream, err := d.Dial(context.Background(), id, []string{"sh", "-c", "echo up; grep x"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(stream, make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		fmt.Println("dialled", id)
		if os.Getenv(victimStays) != "" {
			select {}
		}
		_ = stream.Close()
		if err := d.Destroy(context.Background(), id); err != nil {
			t.Fatal(err)
		}
		fmt.Println("removed", id)
	}
}

// service is a process of its own that the tests kill.
type service struct {
	cmd    *exec.Cmd
	lines  *bufio.Scanner
	output strings.Builder // all that was read of it
}

// startService starts a victim: this program, with the same test alone.
func startService(t *testing.T, instance string, env ...string) *service {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	v := &service{cmd: exec.Command(os.Args[0], "-test.run", "^"+test+"$")}
	// What it leaves of temporary files is this test's to remove.
	v.cmd.Env = append(append(os.Environ(), victimOf+"="+instance, "TMPDIR="+t.TempDir()), env...)
	v.cmd.Stderr = os.Stderr
	out, err := v.cmd.StdoutPipe()
	if err == nil {
		err = v.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	v.lines = bufio.NewScanner(out)
	return v
}

// next returns what it tells next, "" when it has ended.
func (v *service) next() (what, handle string) {
	if !v.lines.Scan() {
		return "", ""
	}
	v.output.WriteString(v.lines.Text() + "\n")
	what, handle, _ = strings.Cut(v.lines.Text(), " ")
	return what, handle
}

// kill kills it. What it leaves is then nobody's here: were this process, which
// has had drivers, to adopt it, that would be another's dead to wait for.
func (v *service) kill() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	_ = v.cmd.Process.Kill()
}

// died waits for its end, which must be by SIGKILL.
func (v *service) died(t *testing.T) {
	t.Helper()
	if err := v.cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("it ended by itself: %v\n%s", err, v.output.String())
	}
}

// testKilled kills a service with -9 at any moment of what it does, over and
// over. The next one finds all that is left and can remove it.
func testKilled(t *testing.T, s *suite) {
	instance := "test-killed-" + RandomHex(4)
	t.Run("Agent", func(t *testing.T) { s.killedWithAgent(t, instance) })
	var handles []string
	found := map[string]int{}
	span := time.Second // from one create to the next
	for round := range soak(200, 10) {
		v := startService(t, instance)
		var began time.Time
		var kill *time.Timer
		for {
			what, handle := v.next()
			if what == "" {
				break
			}
			handles = append(handles, handle)
			switch {
			case what == "makes" && began.IsZero():
				began = time.Now()
				if round > 0 {
					kill = time.AfterFunc(rand.N(span), v.kill)
				}
			case what == "removed" && round == 0:
				span = time.Since(began) * 5 / 4
				v.kill()
			}
		}
		if kill != nil {
			kill.Stop()
		}
		v.died(t)
		d := s.driver(t, Config{Instance: instance})
		for _, in := range s.settled(t, d) {
			handles = append(handles, in.ID)
			found[fmt.Sprintf("running=%v", in.Running)]++
			if in.Running {
				checkAlive(t, d, in.ID)
			}
			Remove(t, d, in.ID)
		}
		s.noTraces(t, instance, handles)
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
	slices.Sort(handles)
	t.Logf("%d runners, a life takes %v, found: %v", len(slices.Compact(handles)), span, found)
}

// settled lists runners once an engine has ended what a killed service asked of
// it. There cannot be more than one.
func (s *suite) settled(t *testing.T, d runner.Driver) []runner.Instance {
	t.Helper()
	time.Sleep(s.opts.Settle)
	list, err := d.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list = slices.DeleteFunc(list, func(in runner.Instance) bool { return in.Legacy })
	if len(list) > 1 {
		t.Errorf("more than one runner is left: %+v", list)
	}
	return list
}

// checkAlive dials a runner that was listed as running. It may have been killed
// a moment before that, and found the moment after.
func checkAlive(t *testing.T, d runner.Driver, id string) {
	t.Helper()
	stream, err := d.Dial(t.Context(), id, []string{"echo", "alive"}, nil)
	if err == nil {
		defer stream.Close()
		if out, err := io.ReadAll(stream); err != nil || string(out) != "alive\n" {
			t.Errorf("a runner that lives says %q, %v", out, err)
		}
		return
	}
	if !eventually(func() bool { in, _ := Find(t, d, id); return !in.Running }) {
		t.Errorf("a runner that lives cannot be dialled: %v", err)
	}
}

// noTraces fails the test where the machine keeps anything of runners. What a
// killed runtime had started and not finished ends by itself.
func (s *suite) noTraces(t *testing.T, instance string, handles []string) {
	t.Helper()
	var left []string
	gone := func() bool {
		left = slices.DeleteFunc(s.traces(t, instance, handles), func(trace string) bool { return s.excepted(t, trace) == "" })
		return len(left) == 0
	}
	if !eventually(gone) {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// traces returns the files, mounts, cgroups and processes of an instance's
// runners.
func (s *suite) traces(t *testing.T, instance string, handles []string) (left []string) {
	t.Helper()
	mine := func(text string) bool {
		return strings.Contains(text, instance) || slices.ContainsFunc(handles, func(id string) bool { return strings.Contains(text, id) })
	}
	if s.opts.Traces != nil {
		for _, pattern := range s.opts.Traces(t, instance) {
			paths, err := filepath.Glob(pattern)
			if err != nil {
				t.Fatal(err)
			}
			left = append(left, slices.DeleteFunc(paths, func(path string) bool { return !mine(path) })...)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if mine(line) {
			left = append(left, strings.TrimSpace(line))
		}
	}
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && mine(path) {
			left = append(left, path)
			return fs.SkipDir
		}
		return nil // others' come and go
	})
	if err != nil {
		t.Fatal(err)
	}
	processes, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well-formed
	for _, p := range processes {
		cgroup, _ := os.ReadFile(filepath.Join(p, "cgroup"))
		command, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		if !mine(string(cgroup)) && !mine(string(command)) {
			continue
		}
		// A dead one is its next parent's to wait for.
		if stat, _ := os.ReadFile(filepath.Join(p, "stat")); len(stat) > 0 && !strings.Contains(string(stat), ") Z ") {
			left = append(left, fmt.Sprintf("process %q in %s", command, p))
		}
	}
	return left
}

// killedWithAgent: an agent's input ends with the service, and with that the
// agent; the runner lives on.
func (s *suite) killedWithAgent(t *testing.T, instance string) {
	v := startService(t, instance, victimStays+"=1")
	var id string
	for what := "?"; what != "dialled" && what != ""; {
		what, id = v.next()
	}
	d := s.driver(t, Config{Instance: instance})
	defer Remove(t, d, id)
	if got := commands(t, d, id); !slices.Contains(got, "grep") {
		t.Errorf("before: %v", got)
	}
	v.kill()
	v.died(t)
	if !eventually(func() bool { return !slices.Contains(commands(t, d, id), "grep") }) {
		t.Error("the agent lives on")
	}
}
