//go:build integration

package oci_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

// on returns a maker of drivers on a runtime, and what the suite has to know.
func on(runtime string) (runnertest.Open, runnertest.Options) {
	open := func(t testing.TB, c runnertest.Config) runner.Driver {
		t.Helper()
		d, err := oci.New(config(t, runtime, c))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	return open, runnertest.Options{
		Control: func(t testing.TB, id, verb string) {
			if verb == "kill" {
				program(t, runtime, "kill", id, "KILL")
			} else {
				program(t, runtime, verb, id)
			}
		},
		Directory: func(testing.TB, string) string { return runDir(testInstance + "-" + runtime) },
		Traces: func(_ testing.TB, instance string) []string {
			return []string{filepath.Join(runDir(instance), "*", "*"), filepath.Join(layerDir(instance), "*")}
		},
	}
}

func TestConformanceRunc(t *testing.T) {
	open, opts := on("runc")
	runnertest.Run(t, open, opts)
}

func TestConformanceCrun(t *testing.T) {
	open, opts := on("crun")
	opts.Short = true
	runnertest.Run(t, open, opts)
}

func TestConformanceRunsc(t *testing.T) {
	if os.Getenv("AIVORY_SOAK") != "1" {
		t.Skip("takes ten minutes; set AIVORY_SOAK=1")
	}
	open, opts := on("runsc")
	// A fork bomb's processes need more memory than on the host's kernel.
	opts.Limits = runnertest.DefaultLimits
	opts.Limits.MemoryBytes = 2 << 30
	opts.Except = exceptRunsc
	runnertest.Run(t, open, opts)
}

// exceptRunsc are the tests that gVisor makes impossible. What it does in place
// of the first few is tested by TestGVisorMemory.
var exceptRunsc = map[string]string{
	"Memory/AtOnce":          "a program meets a MemoryError of its own before the kernel's end",
	"Memory/BitByBit":        "a program meets a MemoryError of its own before the kernel's end",
	"Memory/AgainstTheAgent": "a program meets a MemoryError of its own before the kernel's end",
	"Memory/ChildAlone":      "a child meets a MemoryError of its own before the kernel's end",
	"Memory/Children":        "several processes together can use up the sandbox's memory, which ends it",
	"Archive/Bomb":           "a hole in a file counts as blocks",
	"Isolation/SharedMemory": "there is no /proc/sysvipc, by which the agent finds what runs leave",
	"Survivors/Respawning":   "kill(-1) can miss a process that is being forked, over and over",
	"Survivors/SubReaper":    "a process that dies with its subreaper ends the sandbox",
	"Agent/Memory":           "/proc shows the names of a non-dumpable process's files and its environment, not its memory",
	"Posture":                "capabilities, file systems and what a call is refused with are gVisor's own",
	"Escape/Init":            "/proc/1/fd can be listed, not opened",
	"Escape/Devices":         "device nodes are gVisor's own, and it has no devices of the host's",
	"Escape/Rights":          "oom_score_adj is gVisor's own",
	"Escape/Namespaces":      "user namespaces are gVisor's own, and open to everybody",
	"Escape/Mounts":          "so are mounts in them",
	"Escape/KernelSettings":  "settings in /proc/sys are gVisor's own",
	"Escape/SystemCalls":     "keyrings and the like are gVisor's own",
}

func BenchmarkRunc(b *testing.B)  { bench(b, "runc") }
func BenchmarkCrun(b *testing.B)  { bench(b, "crun") }
func BenchmarkRunsc(b *testing.B) { bench(b, "runsc") }

func bench(b *testing.B, runtime string) {
	open, opts := on(runtime)
	runnertest.Bench(b, open, opts)
}
