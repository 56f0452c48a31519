//go:build integration

package docker_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/docker"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

func openConformance(t testing.TB) runner.Driver {
	t.Helper()
	d, err := docker.New(docker.Config{Image: testImage(), Instance: testInstance})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	runnertest.Run(t, openConformance, runnertest.Options{Legacy: legacy})
}

func BenchmarkRunner(b *testing.B) {
	runnertest.Bench(b, openConformance, runnertest.Options{})
}

// legacy makes and starts a container with the options of the older service.
func legacy(t testing.TB) string {
	t.Helper()
	c := engineClient(t)
	init, pids := true, int64(128)
	made, err := c.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Name: "aivory-sbx-" + randomHex(16),
		Config: &container.Config{
			Image: testImage(), User: "1000:1000", Cmd: []string{"sleep", "infinity"}, WorkingDir: "/workspace",
			Labels: map[string]string{
				"aivory.sandbox": "1", "aivory.session_id": randomHex(16), "aivory.created_at": "1600000000", "aivory.test": testInstance,
			},
		},
		HostConfig: &container.HostConfig{
			NetworkMode: "none", CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges"}, ReadonlyRootfs: true, Init: &init,
			LogConfig: container.LogConfig{Type: "none"},
			Tmpfs: map[string]string{
				"/tmp":          "rw,exec,size=67108864,mode=1777",
				"/home/sandbox": "rw,size=67108864,uid=1000,gid=1000",
				"/workspace":    "rw,exec,size=67108864,uid=1000,gid=1000",
			},
			Resources: container.Resources{Memory: 512 << 20, MemorySwap: 512 << 20, PidsLimit: &pids},
		},
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
	// Its process 1 has to start the sleep; an older service's did so long ago.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		top, err := c.ContainerTop(t.Context(), made.ID, client.ContainerTopOptions{})
		if err == nil && slices.ContainsFunc(top.Processes, func(row []string) bool { return row[len(row)-1] == "sleep infinity" }) {
			return made.ID
		}
		if time.Now().After(deadline) {
			t.Fatalf("the container is not ready: %v, %v", top, err)
		}
	}
}
