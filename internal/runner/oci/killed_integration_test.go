//go:build integration

package oci_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci"
)

// victimOf names, in the environment, the instance of the test that this process
// is started by, to be killed by it.
const victimOf = "AIVORY_TEST_VICTIM_OF"

// TestVictim is no test: it is what the tests below start and kill. It makes,
// dials and removes runners for as long as it is let, and prints their
// handles before they are made.
func TestVictim(t *testing.T) {
	instance := os.Getenv(victimOf)
	if instance == "" {
		t.Skip("started by other tests alone")
	}
	d, err := oci.New(oci.Config{Images: testImages(t), Image: testImage(), Instance: instance, LayerDir: layerDirOf(instance)})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 1000 {
		limits := testLimits
		limits.ReadOnlyRootfs = round%2 == 0
		session := randomHex(16)
		fmt.Printf("runner aivory-sbx-%s\n", session)
		id, err := d.Create(context.Background(), runner.Spec{SessionID: session, CreatedAt: time.Now(), Limits: limits})
		if err != nil {
			t.Fatal(err)
		}
		s, err := d.Dial(context.Background(), id, []string{"sh", "-c", "echo up; grep x"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(s, make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		fmt.Println("dialled", id)
		if os.Getenv(victimOf+"_STAYS") != "" {
			select {}
		}
		_ = s.Close()
		if err := d.Destroy(context.Background(), id); err != nil {
			t.Fatal(err)
		}
	}
}

func layerDirOf(instance string) string { return filepath.Join(os.TempDir(), instance) }

// startVictim returns the lines that it prints. They end with it.
func startVictim(t *testing.T, instance string, env ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestVictim$", "-test.v")
	cmd.Env = append(append(os.Environ(), victimOf+"="+instance), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

func newInstance(t *testing.T) string {
	t.Helper()
	instance := "test-oci-" + randomHex(4)
	t.Cleanup(func() {
		_ = os.RemoveAll(filepath.Join("/run/aivory-sandbox", instance))
		_ = os.RemoveAll(layerDirOf(instance))
	})
	return instance
}

// TestKilledService kills a service with -9 at any moment of what it does, over
// and over. The next one finds all that is left and can remove it.
func TestKilledService(t *testing.T) {
	rounds := 10
	if os.Getenv("AIVORY_SOAK") == "1" {
		rounds = 200
	}
	instance := newInstance(t)
	var handles []string
	states := map[string]int{}
	for range rounds {
		cmd, lines := startVictim(t, instance)
		if !lines.Scan() {
			t.Fatal("it did not start")
		}
		// A round of its own takes about this long.
		kill := time.AfterFunc(time.Duration(rand.IntN(1500))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		for {
			if id, ok := strings.CutPrefix(lines.Text(), "runner "); ok {
				handles = append(handles, id)
			}
			if !lines.Scan() {
				break
			}
		}
		kill.Stop()
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("it ended by itself: %v", err)
		}
		d, err := oci.New(oci.Config{Images: testImages(t), Image: testImage(), Instance: instance, LayerDir: layerDirOf(instance)})
		if err != nil {
			t.Fatal(err)
		}
		list, err := d.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(list) > 1 {
			t.Errorf("more than one runner is left: %+v", list)
		}
		for _, in := range list {
			states[fmt.Sprintf("running=%v", in.Running)]++
			if in.Running {
				checkAlive(t, d, in.ID)
			}
			if err := d.Destroy(t.Context(), in.ID); err != nil {
				t.Error(err)
			}
		}
		_ = d.Close()
		if traces := tracesOf(t, instance, handles); len(traces) > 0 {
			t.Fatalf("left behind: %v", traces)
		}
	}
	t.Logf("%d runners begun in %d rounds, found: %v", len(handles), rounds, states)
}

// checkAlive dials a runner that was listed as running. It may have been killed
// a moment before that, and found the moment after.
func checkAlive(t *testing.T, d *oci.Driver, id string) {
	t.Helper()
	s, err := d.Dial(t.Context(), id, []string{"echo", "alive"}, nil)
	if err == nil {
		defer s.Close()
		if out, err := io.ReadAll(s); err != nil || string(out) != "alive\n" {
			t.Errorf("a runner that lives says %q, %v", out, err)
		}
		return
	}
	for range 50 {
		if in, _ := find(t, d, id); !in.Running {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("a runner that lives cannot be dialled: %v", err)
}

// tracesOf returns all that a machine may keep of runners.
func tracesOf(t testing.TB, instance string, handles []string) (traces []string) {
	t.Helper()
	for _, pattern := range []string{
		filepath.Join("/run/aivory-sandbox", instance, "*", "*"),
		filepath.Join(layerDirOf(instance), "*"),
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		traces = append(traces, found...)
	}
	mine := func(text string) bool {
		return strings.Contains(text, instance) || slices.ContainsFunc(handles, func(id string) bool { return strings.Contains(text, id) })
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if mine(line) {
			traces = append(traces, line)
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/aivory-sandbox/*", "/sys/fs/cgroup/*/aivory-sandbox/*"} {
		cgroups, _ := filepath.Glob(pattern)
		traces = append(traces, slices.DeleteFunc(cgroups, func(path string) bool { return !mine(path) })...)
	}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		cgroup, _ := os.ReadFile(filepath.Join(p, "cgroup"))
		if mine(string(cgroup)) {
			stat, _ := os.ReadFile(filepath.Join(p, "stat"))
			if strings.Contains(string(stat), ") Z ") {
				continue // dead, and the next parent's to wait for
			}
			traces = append(traces, p+" "+string(stat))
		}
	}
	return traces
}

// TestKilledServiceLeavesNoAgent: an agent's input ends with the service, and
// with that the agent; the runner lives on.
func TestKilledServiceLeavesNoAgent(t *testing.T) {
	instance := newInstance(t)
	cmd, lines := startVictim(t, instance, victimOf+"_STAYS=1")
	var id string
	for id == "" && lines.Scan() {
		id, _ = strings.CutPrefix(lines.Text(), "dialled ")
		if id == lines.Text() {
			id = ""
		}
	}
	d := newDriver(t, func(c *oci.Config) { c.Instance, c.LayerDir = instance, layerDirOf(instance) })
	defer func() {
		if err := d.Destroy(context.Background(), id); err != nil {
			t.Error(err)
		}
	}()
	if got := commands(t, d, id); !slices.Contains(got, "grep") {
		t.Errorf("before: %v", got)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for range 100 {
		if !slices.Contains(commands(t, d, id), "grep") {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("the agent lives on")
}
