//go:build integration

package oci_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

// opener returns a maker of drivers on a runtime.
func opener(runtime string) func(testing.TB) runner.Driver {
	return func(t testing.TB) runner.Driver {
		t.Helper()
		d, err := oci.New(oci.Config{
			Images: testImages(t), Image: testImage(), Instance: testInstance + "-" + filepath.Base(runtime), LayerDir: layerDir, Runtime: runtime,
		})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

func TestConformanceRunc(t *testing.T) {
	runnertest.Run(t, opener("runc"), runnertest.Options{})
}

func TestConformanceRunsc(t *testing.T) {
	if os.Getenv("AIVORY_SOAK") != "1" {
		t.Skip("takes ten minutes; set AIVORY_SOAK=1")
	}
	// A fork bomb's processes need more memory than on the host's kernel.
	limits := runnertest.DefaultLimits
	limits.MemoryBytes = 2 << 30
	runnertest.Run(t, opener(runsc(t)), runnertest.Options{Limits: limits, Except: exceptRunsc})
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

// runsc finds gVisor's runtime, on the path or where scripts/oci.sh puts it.
func runsc(t testing.TB) string {
	t.Helper()
	if path, err := exec.LookPath("runsc"); err == nil {
		return path
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cache, "aivory-sandbox", "bin", "runsc")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no runsc: SANDBOX_RUNTIME=runsc scripts/oci.sh fetches it: %v", err)
	}
	return path
}

func BenchmarkRunc(b *testing.B) {
	runnertest.Bench(b, opener("runc"), runnertest.Options{})
}

func BenchmarkRunsc(b *testing.B) {
	runnertest.Bench(b, opener(runsc(b)), runnertest.Options{})
}
