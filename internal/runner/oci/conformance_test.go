//go:build integration

package oci_test

import (
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
	open, opts := on("runsc")
	opts.Short = true // all of it takes five minutes
	runnertest.Run(t, open, runnertest.GVisor(opts))
}

func BenchmarkRunc(b *testing.B)  { bench(b, "runc") }
func BenchmarkCrun(b *testing.B)  { bench(b, "crun") }
func BenchmarkRunsc(b *testing.B) { bench(b, "runsc") }

func bench(b *testing.B, runtime string) {
	open, opts := on(runtime)
	runnertest.Bench(b, open, opts)
}
