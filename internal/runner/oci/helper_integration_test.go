//go:build integration

package oci_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci/image"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

// testInstance marks all that these tests make.
var testInstance = "test-oci-" + runnertest.RandomHex(4)

// runDir is where an instance's bundles and states are, layerDir what its runners
// write, for all processes of a test.
func runDir(instance string) string {
	return filepath.Dir(filepath.Dir(strings.Replace(oci.Bundles(), "*", instance, 1)))
}

func layerDir(instance string) string { return filepath.Join("/var/tmp", instance) }

func init() {
	leftovers = func() (left []string, err error) {
		for _, pattern := range []string{runDir("test-*"), layerDir("test-*")} {
			dirs, err := filepath.Glob(pattern)
			if err != nil {
				return nil, err
			}
			for _, dir := range dirs {
				if !made[filepath.Base(dir)] {
					continue
				}
				found, err := filepath.Glob(filepath.Join(dir, "*", "*"))
				if err != nil {
					return nil, err
				}
				if left = append(left, found...); len(found) > 0 {
					continue
				}
				if err := os.RemoveAll(dir); err != nil {
					return nil, err
				}
			}
		}
		return left, nil
	}
}

// made are the instances that these tests have had drivers for.
var made = map[string]bool{}

// testImages is the store that scripts/oci.sh fills.
func testImages(t testing.TB) *image.Store {
	t.Helper()
	dir := os.Getenv("SANDBOX_IMAGE_DIR")
	if dir == "" {
		dir = filepath.Join(runnertest.CacheDir(t), "images")
	}
	s, err := image.Open(dir, oci.Bundles())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// config is for a driver on a runtime.
func config(t testing.TB, runtime string, c runnertest.Config) oci.Config {
	t.Helper()
	instance := testInstance + "-" + runtime
	if c.Instance != "" {
		instance = c.Instance
	}
	made[instance] = true
	cfg := oci.Config{
		Images: testImages(t), Image: runnertest.Image(), Instance: instance, LayerDir: layerDir(instance),
		Runtime: runnertest.Program(t, runtime), SeccompProfile: c.Profile,
	}
	if c.Image != "" {
		cfg.Image = c.Image
	}
	return cfg
}

func newDriver(t testing.TB, runtime string) *oci.Driver {
	t.Helper()
	d, err := oci.New(config(t, runtime, runnertest.Config{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// program runs a runtime by hand, on the tests' own runners.
func program(t testing.TB, runtime string, args ...string) {
	t.Helper()
	args = append([]string{"--root", filepath.Join(runDir(testInstance+"-"+runtime), "state")}, args...)
	if out, err := exec.Command(runnertest.Program(t, runtime), args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", runtime, args, err, out)
	}
}
