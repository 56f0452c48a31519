//go:build integration

package docker_test

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/hjxwz123/aivory-sandbox/internal/runner/docker"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

// testInstance marks all that these tests make.
var testInstance = "test-docker-" + runnertest.RandomHex(4)

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

// newDriver makes a driver that the test's end closes.
func newDriver(t testing.TB, change func(*docker.Config)) *docker.Driver {
	t.Helper()
	d := makeDriver(t, change)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func makeDriver(t testing.TB, change func(*docker.Config)) *docker.Driver {
	t.Helper()
	dir := t.TempDir()
	// An engine of another user's has to find the profile.
	for up := filepath.Dir(dir); strings.HasPrefix(filepath.Base(up), "Test") || filepath.Base(up) == "001"; up = filepath.Dir(up) {
		if err := os.Chmod(up, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cfg := docker.Config{Image: runnertest.Image(), Instance: testInstance, ProfileFile: filepath.Join(dir, "seccomp.json")}
	if change != nil {
		change(&cfg)
	}
	d, err := docker.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// engineClient is a second way to an engine, to look at what the driver made. An
// empty host is this machine's own engine.
func engineClient(t testing.TB, host string) *client.Client {
	t.Helper()
	c, err := client.New(client.FromEnv, client.WithHost(cmp.Or(host, os.Getenv(client.EnvOverrideHost), client.DefaultDockerHost)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func inspect(t testing.TB, host, id string) container.InspectResponse {
	t.Helper()
	r, err := engineClient(t, host).ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Container
}

// foreign makes and starts a container as some other service would: like the
// older one where labels lack the instance. It returns its name.
func foreign(t testing.TB, config container.Config, host *container.HostConfig) string {
	t.Helper()
	c := engineClient(t, "")
	config.Labels["aivory.test"] = testInstance
	config.Image, config.User = runnertest.Image(), "1000:1000"
	host.NetworkMode, host.LogConfig.Type = "none", "none"
	name := "aivory-sbx-" + runnertest.RandomHex(16)
	if _, err := c.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: name, Config: &config, HostConfig: host}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = c.ContainerRemove(context.Background(), name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	})
	if _, err := c.ContainerStart(t.Context(), name, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	return name
}
