//go:build integration

package docker_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/docker"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

// TestLegacyRunners has two services on one engine, and runners of the older
// service, which both may adopt (and so may any other service on this engine).
func TestLegacyRunners(t *testing.T) {
	runnertest.MakeLegacy(t)
	mine := newDriver(t, nil)
	other := newDriver(t, func(c *docker.Config) { c.Instance = testInstance + "-other" })
	session, made := runnertest.RandomHex(16), time.Now().Add(-time.Minute).Truncate(time.Second)
	sleeper := func(labels map[string]string) string {
		return foreign(t, container.Config{Entrypoint: []string{"sleep", "infinity"}, Labels: labels}, &container.HostConfig{})
	}
	legacy := sleeper(map[string]string{
		"aivory.sandbox": "1", "aivory.session_id": session, "aivory.created_at": strconv.FormatInt(made.Unix(), 10),
	})
	odd := sleeper(map[string]string{"aivory.sandbox": "1", "aivory.session_id": "../../etc", "aivory.created_at": "soon"})
	unmarked := sleeper(map[string]string{"aivory.session_id": runnertest.RandomHex(16)})

	for name, d := range map[string]*docker.Driver{"mine": mine, "other": other} {
		if _, ok := runnertest.Find(t, d, unmarked); ok {
			t.Errorf("%s sees a container that is no runner", name)
		}
		in, ok := runnertest.Find(t, d, legacy)
		want := runner.Instance{ID: legacy, SessionID: session, CreatedAt: made, Running: true, Legacy: true}
		if !ok || in != want {
			t.Errorf("%s: legacy runner listed as %+v, want %+v", name, in, want)
		}
		if in, ok := runnertest.Find(t, d, odd); !ok || in.SessionID != "" || time.Since(in.CreatedAt) > time.Hour {
			t.Errorf("%s: runner with malformed labels listed as %+v, %v", name, in, ok)
		}
	}
	if got := runnertest.Command(t, mine, legacy, "sh", "-c", "id -u; pwd"); got != "1000\n/\n" {
		t.Errorf("a command in a legacy runner: %q", got)
	}
	if err := mine.Destroy(t.Context(), legacy); err != nil {
		t.Error(err)
	}
}

func TestUnknownRuntime(t *testing.T) {
	d := newDriver(t, func(c *docker.Config) { c.Runtime = "no-such-runtime" })
	_, err := d.Create(t.Context(), runnertest.Spec(runnertest.SmallLimits))
	if err == nil || !strings.Contains(err.Error(), "no-such-runtime") {
		t.Errorf("got %v", err)
	}
}
