//go:build integration

package docker_test

import (
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// killer leaves a process behind that kills each new process of its user at
// once, and takes its agent down before that.
const killer = `
import os, signal
if os.fork() == 0:
    os.setsid()
    while True:
        try: os.kill(-1, signal.SIGKILL)
        except OSError: pass
`

// TestKillerEnds: a process that keeps killing agents before they can sweep it
// holds its own session up, but not for long and not for good.
func TestKillerEnds(t *testing.T) {
	d := newDriver(t, nil)
	id, _ := create(t, d, testLimits)
	r := runner.New(d, id, runner.Options{CPUs: 1, Logf: t.Logf})
	defer func() { _ = r.Close() }()

	run := func(code string) (*runner.Execution, error) {
		return r.Exec(t.Context(), runner.ExecRequest{
			Code: []byte(code), Timeout: time.Second, MaxOutputBytes: 1 << 10,
			Artifacts: runner.ArtifactLimits{MaxFiles: 1, MaxDuration: time.Second, FileTimeout: time.Second},
		})
	}
	if _, err := run(`open('/workspace/kept', 'w').write('x')`); err != nil {
		t.Fatal(err)
	}
	if _, err := run(killer); err == nil {
		t.Fatal("the killer did not kill")
	}
	deadline := time.Now().Add(90 * time.Second)
	for {
		x, err := run(`print(open('/workspace/kept').read())`)
		if err == nil && string(x.Stdout) == "x\n" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still not usable: %+v, %v", x, err)
		}
		time.Sleep(time.Second)
	}
}
