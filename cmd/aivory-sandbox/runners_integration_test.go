//go:build integration

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/hjxwz123/aivory-sandbox/internal/config"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

// What services in these tests make their runners with is the environment's to
// say, as it is for the service: this machine's Docker, unless SANDBOX_DRIVER is
// oci, and then SANDBOX_RUNTIME.
var (
	onDocker = cmp.Or(os.Getenv("SANDBOX_DRIVER"), "docker") == "docker"
	ociWith  = cmp.Or(os.Getenv("SANDBOX_RUNTIME"), "runc")
	onGVisor = !onDocker && ociWith == "runsc"
)

// runDir is where the oci driver keeps runners.
const runDir = "/run/aivory-sandbox"

// adopting is for the moments in which a service looks for runners that are left,
// and keeps those away that other tests have of the older service.
func adopting() (release func(), err error) {
	if !onDocker {
		return func() {}, nil
	}
	return runnertest.Adopting()
}

// runnerSettings are what a service needs for that.
func runnerSettings() []string {
	if onDocker {
		return nil
	}
	return []string{"SANDBOX_DRIVER=oci", "SANDBOX_RUNTIME=" + ociWith, "SANDBOX_IMAGE_DIR=" + imageDir()}
}

// imageDir is where set-up keeps the image for runners without Docker.
func imageDir() string {
	if dir := os.Getenv("SANDBOX_IMAGE_DIR"); dir != "" {
		return dir
	}
	return filepath.Join(must(os.UserCacheDir()), "aivory-sandbox", "images")
}

// wantsDocker skips a test that is about Docker, or looks at runners with it.
func wantsDocker(t *testing.T) {
	t.Helper()
	if !onDocker {
		t.Skip("is about Docker")
	}
}

// exceptOnGVisor skips what gVisor makes impossible.
func exceptOnGVisor(t *testing.T, why string) {
	t.Helper()
	if onGVisor {
		t.Skip("not on gVisor: " + why)
	}
}

// outside is a runner as it is seen from outside of it, a dead one included.
type outside struct {
	id, session string
	// pid is process 1's on the host, or gVisor's; 0 where it does not run.
	pid int
	// description is all that its maker knows of it.
	description string
}

// outsides returns this service's runners.
func (s *testService) outsides() ([]outside, error) {
	if !onDocker {
		return s.bundles()
	}
	cli, err := engine()
	if err != nil {
		return nil, err
	}
	defer cli.Close()
	found, err := cli.ContainerList(context.Background(), client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", "aivory.instance="+s.instance),
	})
	if err != nil {
		return nil, err
	}
	var list []outside
	for _, c := range found.Items {
		list = append(list, outside{id: strings.TrimPrefix(c.Names[0], "/"), session: c.Labels["aivory.session_id"]})
	}
	return list, nil
}

// bundles is outsides without Docker.
func (s *testService) bundles() ([]outside, error) {
	entries, err := os.ReadDir(filepath.Join(runDir, s.instance, "bundles"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var list []outside
	for _, e := range entries {
		list = append(list, outside{id: e.Name(), session: strings.TrimPrefix(e.Name(), "aivory-sbx-")})
	}
	return list, err
}

// runtime calls the OCI runtime about this service's runners.
func (s *testService) runtime(args ...string) ([]byte, error) {
	root := filepath.Join(runDir, s.instance, "state")
	out, err := exec.Command(ociWith, append([]string{"--root", root}, args...)...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s %v: %w: %s", ociWith, args, err, exit.Stderr)
	}
	return out, err
}

// look fills in what takes a call for each runner.
func (s *testService) look(t *testing.T, o outside) outside {
	t.Helper()
	if !onDocker {
		var state struct{ Pid int }
		if err := json.Unmarshal(must(s.runtime("state", o.id)), &state); err != nil {
			t.Fatal(err)
		}
		o.pid = state.Pid
		o.description = string(must(os.ReadFile(filepath.Join(runDir, s.instance, "bundles", o.id, "config.json"))))
		return o
	}
	cli := must(engine())
	defer cli.Close()
	seen, err := cli.ContainerInspect(context.Background(), o.id, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.pid = seen.Container.State.Pid
	o.description = fmt.Sprintf("%+v %+v", seen.Container.Config, seen.Container.HostConfig)
	return o
}

// containers returns the ids of this service's runners, dead ones included.
func (s *testService) containers() ([]string, error) {
	list, err := s.outsides()
	var ids []string
	for _, o := range list {
		ids = append(ids, o.id)
	}
	return ids, err
}

// killContainer kills a runner behind the service's back.
func (s *testService) killContainer(t *testing.T, session string) {
	t.Helper()
	name := "aivory-sbx-" + session
	if !onDocker {
		must(s.runtime("kill", name, "KILL"))
		return
	}
	cli := must(engine())
	defer cli.Close()
	if _, err := cli.ContainerKill(t.Context(), name, client.ContainerKillOptions{}); err != nil {
		t.Fatal(err)
	}
}

// removeContainers removes all runners of a service that has ended.
func (s *testService) removeContainers() (int, error) {
	ids, err := s.containers()
	if err != nil {
		return 0, err
	}
	if len(ids) > 0 {
		cfg, _, loadErr := config.Load(append(runnerSettings(), "SANDBOX_API_KEY=none", "SANDBOX_INSTANCE="+s.instance, "SANDBOX_STATE_DIR="+s.stateDir))
		if loadErr != nil {
			return 0, loadErr
		}
		d, newErr := newDriver(cfg, newLogger(cfg, new(tailWriter)))
		if newErr != nil {
			return 0, newErr
		}
		for _, id := range ids {
			err = errors.Join(err, d.Destroy(context.Background(), id))
		}
		err = errors.Join(err, d.Close())
	}
	if !onDocker {
		err = errors.Join(err, os.RemoveAll(filepath.Join(runDir, s.instance)))
	}
	return len(ids), err
}
