//go:build integration

package oci_test

import (
	"testing"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

func openRunc(t testing.TB) runner.Driver {
	t.Helper()
	d, err := oci.New(oci.Config{Images: testImages(t), Image: testImage(), Instance: testInstance, LayerDir: layerDir})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	runnertest.Run(t, openRunc, runnertest.Options{})
}

func BenchmarkRunner(b *testing.B) {
	runnertest.Bench(b, openRunc, runnertest.Options{})
}
