//go:build integration

package docker_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/docker"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

// on returns a maker of drivers on an engine, this machine's own where host is
// empty, and what the suite has to know.
func on(host, runtime string) (runnertest.Open, runnertest.Options) {
	open := func(t testing.TB, c runnertest.Config) runner.Driver {
		t.Helper()
		return makeDriver(t, func(d *docker.Config) {
			d.Host, d.Runtime, d.SeccompProfile = host, runtime, c.Profile
			if c.Image != "" {
				d.Image = c.Image
			}
			if c.Instance != "" {
				d.Instance = c.Instance
			}
		})
	}
	return open, runnertest.Options{
		Control: func(t testing.TB, id, verb string) {
			c := engineClient(t, host)
			var err error
			switch verb {
			case "pause":
				_, err = c.ContainerPause(t.Context(), id, client.ContainerPauseOptions{})
			case "resume":
				_, err = c.ContainerUnpause(t.Context(), id, client.ContainerUnpauseOptions{})
			case "kill":
				_, err = c.ContainerKill(t.Context(), id, client.ContainerKillOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		Directory: func(t testing.TB, id string) string {
			dir := filepath.Dir(inspect(t, host, id).HostnamePath)
			if _, err := os.Stat(filepath.Join(dir, "config.v2.json")); err != nil {
				return ""
			}
			return dir
		},
		// Under the directories of an engine with its defaults, or of ownEngine.
		Traces: func(t testing.TB, _ string) (patterns []string) {
			for _, root := range []string{"/var/lib/docker", filepath.Join(runnertest.CacheDir(t), "test-*")} {
				patterns = append(patterns, filepath.Join(root, "containers", "*"), filepath.Join(root, "image", "*", "layerdb", "mounts", "*"))
			}
			for _, run := range []string{"/run/docker", "/run/aivory-test-*/exec"} {
				patterns = append(patterns, filepath.Join(run, "runtime-*", "moby", "*"), filepath.Join(run, "containerd", "daemon", "*", "moby", "*"))
			}
			return patterns
		},
		Moment: 30 * time.Millisecond,
		Settle: 700 * time.Millisecond,
	}
}

func TestConformance(t *testing.T) {
	open, opts := on("", "")
	opts.Legacy = legacy
	runnertest.Run(t, open, opts)
}

func TestConformanceRunsc(t *testing.T) {
	open, opts := on(dockerWithRunsc.start(t), "runsc")
	opts.Short = true
	runnertest.Run(t, open, runnertest.GVisor(opts))
}

func TestConformancePodman(t *testing.T) {
	open, opts := on(podman.start(t), "")
	opts.Short = true
	opts.Except = map[string]string{
		`Killed: process "/usr/bin/conmon\x00`: "Podman keeps what supervises a command for five minutes after its end",
	}
	opts.Posture = map[string]any{"groups": []any{}} // the program's own is in "gid"
	runnertest.Run(t, open, opts)
}

// TestConformancePodmanRootless leaves out what fills a machine up where nothing
// bounds a runner.
func TestConformancePodmanRootless(t *testing.T) {
	open, opts := on(podmanRootless.start(t), "")
	opts.Short = true
	const leftOut = "without root, Podman leaves out limits on open files and core files"
	opts.Except = map[string]string{
		`Killed: process "/usr/bin/conmon\x00`: "Podman keeps what supervises a command for five minutes after its end",
		"Driver/FailedStart":                   leftOut,
		"Escape/Rights: works: core files":     leftOut,
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		for _, name := range []string{"Memory", "Storm", "Isolation", "Driver/Stopped"} {
			opts.Except[name] = "without root and with cgroups of version 1, Podman bounds and pauses nothing"
		}
	}
	var core, files syscall.Rlimit
	if err := errors.Join(syscall.Getrlimit(syscall.RLIMIT_CORE, &core), syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files)); err != nil {
		t.Fatal(err)
	}
	opts.Posture = map[string]any{
		"groups": []any{}, // the program's own is in "gid"
		"core":   []any{float64(int64(core.Cur)), float64(int64(core.Max))}, "nofile": float64(files.Max),
	}
	runnertest.Run(t, open, opts)
}

func BenchmarkRunner(b *testing.B) {
	open, opts := on("", "")
	runnertest.Bench(b, open, opts)
}

// legacy makes and starts a container with the options of the older service.
func legacy(t testing.TB) string {
	t.Helper()
	init, pids := true, int64(128)
	id := foreign(t, container.Config{
		Cmd: []string{"sleep", "infinity"}, WorkingDir: "/workspace",
		Labels: map[string]string{"aivory.sandbox": "1", "aivory.session_id": runnertest.RandomHex(16), "aivory.created_at": "1600000000"},
	}, &container.HostConfig{
		CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges"}, ReadonlyRootfs: true, Init: &init,
		Tmpfs: map[string]string{
			"/tmp":          "rw,exec,size=67108864,mode=1777",
			"/home/sandbox": "rw,size=67108864,uid=1000,gid=1000",
			"/workspace":    "rw,exec,size=67108864,uid=1000,gid=1000",
		},
		Resources: container.Resources{Memory: 512 << 20, MemorySwap: 512 << 20, PidsLimit: &pids},
	})
	// Its process 1 has to start the sleep; an older service's did so long ago.
	c := engineClient(t, "")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		top, err := c.ContainerTop(t.Context(), id, client.ContainerTopOptions{})
		if err == nil && slices.ContainsFunc(top.Processes, func(row []string) bool { return row[len(row)-1] == "sleep infinity" }) {
			return id
		}
		if time.Now().After(deadline) {
			t.Fatalf("the container is not ready: %v, %v", top, err)
		}
	}
}
