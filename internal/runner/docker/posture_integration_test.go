//go:build integration

package docker_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/container"

	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

func TestPostureThroughEngine(t *testing.T) {
	d := newDriver(t, nil)
	id, spec := runnertest.Create(t, d, runnertest.SmallLimits)
	c := inspect(t, "", id)
	h, cfg := c.HostConfig, c.Config

	check := func(what string, got, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	check("name", c.Name, "/aivory-sbx-"+spec.SessionID)
	check("user", cfg.User, "65534:65534")
	check("memory", h.Memory, int64(384<<20))
	check("memory+swap", h.MemorySwap, int64(384<<20))
	check("cpus", h.NanoCPUs, int64(750_000_000))
	check("pids", *h.PidsLimit, int64(97))
	check("log driver", h.LogConfig.Type, "none")
	check("log path", c.LogPath, "")
	nofile := slices.IndexFunc(h.Ulimits, func(u *container.Ulimit) bool { return u.Name == "nofile" })
	if nofile < 0 {
		t.Fatalf("no limit on open files: %v", h.Ulimits)
	}
	// Seen from inside the soft one is not to be relied on: a runc that was built
	// with Go 1.19 raises it to the hard one.
	check("open files", *h.Ulimits[nofile], container.Ulimit{Name: "nofile", Soft: 512, Hard: 640})
	check("network", string(h.NetworkMode), "none")
	check("capabilities added", len(h.CapAdd), 0)
	check("capabilities dropped", h.CapDrop, []string{"ALL"})
	check("privileged", h.Privileged, false)
	check("read-only root", h.ReadonlyRootfs, true)
	check("IPC", string(h.IpcMode), "private")
	check("PID", string(h.PidMode), "")
	check("cgroup namespace", string(h.CgroupnsMode), "private")
	check("restarts", h.RestartPolicy.IsAlways() || h.RestartPolicy.IsOnFailure() || h.RestartPolicy.IsUnlessStopped(), false)
	check("auto-remove", h.AutoRemove, false)
	check("binds", len(h.Binds)+len(c.Mounts), 0)
	check("devices", len(h.Devices), 0)
	check("masked paths", slices.Contains(h.MaskedPaths, "/proc/kcore"), true)
	check("read-only paths", slices.Contains(h.ReadonlyPaths, "/proc/sys"), true)
	for label, want := range map[string]string{
		"aivory.sandbox": "1", "aivory.session_id": spec.SessionID,
		"aivory.created_at": "1700000000", "aivory.instance": testInstance,
	} {
		check(label, cfg.Labels[label], want)
	}
	if !slices.Contains(h.SecurityOpt, "no-new-privileges") {
		t.Errorf("security options lack no-new-privileges: %.200q", h.SecurityOpt)
	}
	var profile string
	for _, o := range h.SecurityOpt {
		if p, ok := strings.CutPrefix(o, "seccomp="); ok {
			profile = p
		}
	}
	if !json.Valid([]byte(profile)) || strings.Contains(profile, "io_uring") {
		t.Errorf("seccomp profile is not the one of today: %.200q", profile)
	}
}
