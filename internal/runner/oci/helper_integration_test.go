//go:build integration

package oci_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci/image"
)

// testInstance marks all that these tests make.
var testInstance = "test-oci-" + randomHex(4)

// layerDir is where runners of these tests keep what they write.
var layerDir = filepath.Join(os.TempDir(), testInstance)

func init() {
	leftovers = func() (left []string, err error) {
		instances, err := filepath.Glob(filepath.Join("/run/aivory-sandbox", testInstance+"*"))
		if err != nil {
			return nil, err
		}
		for _, dir := range append(instances, layerDir) {
			found, err := filepath.Glob(filepath.Join(dir, "*", "*"))
			if err != nil {
				return nil, err
			}
			if left = append(left, found...); len(found) == 0 {
				err = os.RemoveAll(dir)
			}
			if err != nil {
				return nil, err
			}
		}
		return left, nil
	}
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

func testImage() string {
	if image := os.Getenv("AIVORY_TEST_IMAGE"); image != "" {
		return image
	}
	return "aivory-sandbox:latest"
}

// testImages is the store that scripts/oci.sh fills.
func testImages(t testing.TB) *image.Store {
	t.Helper()
	dir := os.Getenv("SANDBOX_IMAGE_DIR")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(cache, "aivory-sandbox", "images")
	}
	s, err := image.Open(dir, oci.Bundles)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// testLimits are small and all different, so that no two can be confused.
var testLimits = runner.Limits{
	MemoryBytes:    384 << 20,
	NanoCPUs:       750_000_000,
	PidsLimit:      97,
	NofileSoft:     512,
	NofileHard:     640,
	ReadOnlyRootfs: true,
	TmpfsBytes:     24 << 20,
	WorkspaceBytes: 40 << 20,
}

func newDriver(t testing.TB, change func(*oci.Config)) *oci.Driver {
	t.Helper()
	cfg := oci.Config{Images: testImages(t), Image: testImage(), Instance: testInstance, LayerDir: layerDir}
	if change != nil {
		change(&cfg)
	}
	d, err := oci.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// create makes a runner that goes with the test.
func create(t testing.TB, d *oci.Driver, limits runner.Limits) (id string, spec runner.Spec) {
	t.Helper()
	spec = runner.Spec{SessionID: randomHex(16), CreatedAt: time.Unix(1_700_000_000, 0), Limits: limits}
	id, err := d.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Destroy(context.Background(), id); err != nil {
			t.Error(err)
		}
	})
	return id, spec
}

// run runs a command to its end as the agent would be, and returns its output.
func run(t testing.TB, d *oci.Driver, id string, command ...string) string {
	t.Helper()
	s, err := d.Dial(t.Context(), id, command, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	out, err := io.ReadAll(s)
	if err != nil {
		t.Fatalf("%s: %v; stderr: %s", strings.Join(command, " "), err, s.Diagnostics())
	}
	if d := s.Diagnostics(); d != "" {
		t.Logf("stderr: %s", d)
	}
	return string(out)
}

func python(t testing.TB, d *oci.Driver, id, code string) string {
	t.Helper()
	return run(t, d, id, "python3", "-c", code)
}
