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
	runnertest.Run(t, opener(runsc(t)), runnertest.Options{})
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
