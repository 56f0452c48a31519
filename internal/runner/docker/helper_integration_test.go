//go:build integration

package docker_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/docker"
)

// testInstance marks all that these tests make.
var testInstance = "test-docker-" + randomHex(4)

func init() {
	leftovers = func() ([]string, error) {
		c, err := client.New(client.FromEnv)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		found, err := c.ContainerList(context.Background(), client.ContainerListOptions{
			All: true, Filters: make(client.Filters).Add("label", "aivory.test="+testInstance),
		})
		if err != nil {
			return nil, err
		}
		ours, err := c.ContainerList(context.Background(), client.ContainerListOptions{
			All: true, Filters: make(client.Filters).Add("label", "aivory.instance="+testInstance),
		})
		var names []string
		for _, item := range append(found.Items, ours.Items...) {
			names = append(names, item.Names...)
		}
		return names, err
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

func newDriver(t testing.TB, change func(*docker.Config)) *docker.Driver {
	t.Helper()
	cfg := docker.Config{Image: testImage(), Instance: testInstance}
	if change != nil {
		change(&cfg)
	}
	d, err := docker.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// create makes a runner that goes with the test.
func create(t testing.TB, d *docker.Driver, limits runner.Limits) (id string, spec runner.Spec) {
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
func run(t testing.TB, d *docker.Driver, id string, command ...string) string {
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

func python(t testing.TB, d *docker.Driver, id, code string) string {
	t.Helper()
	return run(t, d, id, "python3", "-c", code)
}

// engineClient is a second way to the engine, to look at what the driver made.
func engineClient(t testing.TB) *client.Client {
	t.Helper()
	c, err := client.New(client.FromEnv)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func inspect(t testing.TB, id string) container.InspectResponse {
	t.Helper()
	r, err := engineClient(t).ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Container
}

// foreign makes and starts a container as some other service would: like the
// older one where labels lack the instance.
func foreign(t testing.TB, labels map[string]string) string {
	t.Helper()
	c := engineClient(t)
	labels["aivory.test"] = testInstance
	made, err := c.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Name: fmt.Sprintf("aivory-sbx-%s", randomHex(16)),
		Config: &container.Config{
			Image: testImage(), User: "1000:1000", Entrypoint: []string{"sleep", "infinity"}, Labels: labels,
		},
		HostConfig: &container.HostConfig{NetworkMode: "none", LogConfig: container.LogConfig{Type: "none"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = c.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	})
	if _, err := c.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	return made.ID
}
