package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/container"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/docker"
)

func createBody(t *testing.T, f *fakeEngine) container.CreateRequest {
	t.Helper()
	var body container.CreateRequest
	if err := json.Unmarshal(f.last(t, "POST /containers/create").body, &body); err != nil {
		t.Fatal(err)
	}
	return body
}

// TestGVisorsLimits: programs meet limits of gVisor's own before the sandbox
// meets the host's.
func TestGVisorsLimits(t *testing.T) {
	f := newFakeEngine(t).start(t)
	f.handle("GET /images/img:v1/json", reply(200, `{"Id":"sha256:1","Config":{}}`))
	d := f.driver(t, func(c *docker.Config) { c.Runtime = "runsc-debug" })
	if _, err := d.Create(t.Context(), testSpec); err != nil {
		t.Fatal(err)
	}
	host := createBody(t, f).HostConfig
	want := []*container.Ulimit{
		{Name: "core"}, {Name: "nofile", Soft: 100, Hard: 200}, {Name: "as", Soft: 384 << 20, Hard: 384 << 20}, {Name: "nproc", Soft: 64, Hard: 64},
	}
	if diff := cmp.Diff(want, host.Ulimits); diff != "" || *host.PidsLimit != 512 {
		t.Errorf("%d tasks, limits (-want +got):\n%s", *host.PidsLimit, diff)
	}
	for _, dir := range runner.GVisorLacks {
		if !strings.HasPrefix(host.Tmpfs[dir], "ro,") {
			t.Errorf("%s: %q", dir, host.Tmpfs[dir])
		}
	}
}

// TestGVisorWithAWritableRoot has no other mounts.
func TestGVisorWithAWritableRoot(t *testing.T) {
	f := newFakeEngine(t).start(t)
	f.handle("GET /images/img:v1/json", reply(200, `{"Id":"sha256:1","Config":{}}`))
	d := f.driver(t, func(c *docker.Config) { c.Runtime = "runsc" })
	spec := testSpec
	spec.Limits.ReadOnlyRootfs = false
	if _, err := d.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if got := createBody(t, f).HostConfig.Tmpfs; len(got) != len(runner.GVisorLacks) {
		t.Errorf("mounts %v", got)
	}
}

func TestCreateAsksForThePosture(t *testing.T) {
	f := newFakeEngine(t).start(t)
	f.handle("GET /images/img:v1/json", reply(200, `{"Id":"sha256:1","Config":{"Volumes":{"/data":{},"/workspace":{},"/":{}},"Labels":{"a":"b"}}}`))
	d := f.driver(t, func(c *docker.Config) { c.Instance, c.Runtime = "blue", "kata" })
	if _, err := d.Create(t.Context(), testSpec); err != nil {
		t.Fatal(err)
	}
	want := []string{"GET /images/img:v1/json", "POST /containers/create", "POST /containers/NAME/start"}
	if got := f.calls(); !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}

	body := createBody(t, f)
	host := *body.HostConfig
	var profile string
	for i, o := range host.SecurityOpt {
		if p, ok := strings.CutPrefix(o, "seccomp="); ok {
			profile, host.SecurityOpt[i] = p, "seccomp=…"
		}
	}
	no, pids := false, int64(64)
	wantHost := container.HostConfig{
		NetworkMode: "none", CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges", "seccomp=…"},
		LogConfig: container.LogConfig{Type: "none"}, IpcMode: "private", CgroupnsMode: "private", Init: &no,
		Runtime: "kata", ReadonlyRootfs: true,
		Tmpfs: map[string]string{
			"/tmp":          "rw,exec,nosuid,nodev,size=1000,uid=1000,gid=1000,mode=1777",
			"/home/sandbox": "rw,exec,nosuid,nodev,size=1000,uid=1000,gid=1000,mode=755",
			"/workspace":    "rw,exec,nosuid,nodev,size=2000,uid=1000,gid=1000,mode=755",
			"/data":         "rw,exec,nosuid,nodev,size=1000,uid=1000,gid=1000,mode=755",
		},
		Resources: container.Resources{
			Memory: 512 << 20, MemorySwap: 512 << 20, NanoCPUs: 1e9, PidsLimit: &pids, OomKillDisable: &no,
			Ulimits: []*container.Ulimit{{Name: "core"}, {Name: "nofile", Soft: 100, Hard: 200}},
		},
	}
	if diff := cmp.Diff(wantHost, host); diff != "" {
		t.Errorf("host configuration (-want +got):\n%s", diff)
	}
	wantConfig := container.Config{
		Image: "img:v1", User: "65534:65534", WorkingDir: "/", Cmd: []string{},
		Entrypoint: []string{"sh", "-c", "while :; do sleep 2147483647 & wait; done"},
		Env: []string{
			"HOME=/home/sandbox", "LANG=C.UTF-8", "MPLBACKEND=Agg", "MPLCONFIGDIR=/home/sandbox/.config/matplotlib",
			"PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1",
		},
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		Labels: map[string]string{
			"aivory.sandbox": "1", "aivory.session_id": testSession, "aivory.created_at": "1700000000", "aivory.instance": "blue",
		},
	}
	if diff := cmp.Diff(wantConfig, *body.Config); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	checkDefaultProfile(t, profile)
}

// checkDefaultProfile: allow-list, with conditions for the engine to resolve,
// and without io_uring.
func checkDefaultProfile(t *testing.T, profile string) {
	t.Helper()
	var p struct {
		DefaultAction string `json:"defaultAction"`
		ArchMap       []any  `json:"archMap"`
		Syscalls      []struct {
			Names    []string `json:"names"`
			Action   string   `json:"action"`
			Includes *struct {
				MinKernel string   `json:"minKernel"`
				Caps      []string `json:"caps"`
			} `json:"includes"`
		} `json:"syscalls"`
	}
	if err := json.Unmarshal([]byte(profile), &p); err != nil {
		t.Fatal(err)
	}
	conditions := 0
	for _, s := range p.Syscalls {
		if s.Includes != nil && (s.Includes.MinKernel != "" || len(s.Includes.Caps) > 0) {
			conditions++
		}
		if s.Action == "SCMP_ACT_ALLOW" && slices.ContainsFunc(s.Names, func(n string) bool { return strings.HasPrefix(n, "io_uring") }) {
			t.Error("io_uring is allowed")
		}
	}
	if p.DefaultAction != "SCMP_ACT_ERRNO" || len(p.ArchMap) == 0 || len(p.Syscalls) < 20 || conditions < 5 {
		t.Errorf("default %s, %d architectures, %d rules, %d conditions", p.DefaultAction, len(p.ArchMap), len(p.Syscalls), conditions)
	}
}

func TestCreateWithoutLimits(t *testing.T) {
	f := newFakeEngine(t).start(t)
	spec := testSpec
	spec.Limits.MemoryBytes, spec.Limits.NanoCPUs, spec.Limits.PidsLimit, spec.Limits.NofileHard = 0, 0, 0, 0
	if _, err := f.driver(t, nil).Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	h := createBody(t, f).HostConfig
	if h.Memory != 0 || h.MemorySwap != 0 || h.NanoCPUs != 0 || h.PidsLimit != nil || len(h.Ulimits) != 1 {
		t.Errorf("%+v", h.Resources)
	}
}

func TestImageThatKnowsLocalhost(t *testing.T) {
	f := newFakeEngine(t).start(t)
	if _, err := f.driver(t, nil).Create(t.Context(), testSpec); err != nil || createBody(t, f).NetworkDisabled {
		t.Errorf("an ordinary image: %v, networking left out %v", err, createBody(t, f).NetworkDisabled)
	}
	f.handle("GET /images/img:v1/json", reply(200, `{"Id":"sha256:1","Config":{"Labels":{"aivory.localhost":"1"}}}`))
	if _, err := f.driver(t, nil).Create(t.Context(), testSpec); err != nil {
		t.Fatal(err)
	}
	if body := createBody(t, f); !body.NetworkDisabled || body.HostConfig.NetworkMode != "none" {
		t.Errorf("networking left out %v, mode %q", body.NetworkDisabled, body.HostConfig.NetworkMode)
	}
}

func TestWritableRootfsGetsDirectories(t *testing.T) {
	f := newFakeEngine(t).start(t)
	spec := testSpec
	spec.Limits.ReadOnlyRootfs = false
	if _, err := f.driver(t, nil).Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if h := createBody(t, f).HostConfig; h.ReadonlyRootfs || len(h.Tmpfs) != 0 {
		t.Errorf("read-only %v, tmpfs %v", h.ReadonlyRootfs, h.Tmpfs)
	}
	want := []string{"GET /images/img:v1/json", "POST /containers/create", "PUT /containers/NAME/archive", "POST /containers/NAME/start"}
	if got := f.calls(); !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
	var got []string
	r := tar.NewReader(bytes.NewReader(f.last(t, "PUT /containers/NAME/archive").body))
	for h, err := r.Next(); err != io.EOF; h, err = r.Next() {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%c %s %o %d:%d", h.Typeflag, h.Name, h.Mode, h.Uid, h.Gid))
	}
	want = []string{"5 tmp/ 1777 1000:1000", "5 home/sandbox/ 755 1000:1000", "5 workspace/ 755 1000:1000"}
	if !slices.Equal(got, want) {
		t.Errorf("directories %q, want %q", got, want)
	}
}

func TestDiskSizeRefused(t *testing.T) {
	f := newFakeEngine(t).start(t)
	f.handle("POST /containers/create", func(w http.ResponseWriter, r *http.Request) {
		if b, _ := io.ReadAll(r.Body); bytes.Contains(b, []byte("StorageOpt")) {
			reply(500, `{"message":"--storage-opt is supported only for overlay over xfs with 'pquota' mount option"}`)(w, r)
			return
		}
		reply(201, `{"Id":"`+fakeID+`"}`)(w, r)
	})
	var log bytes.Buffer
	d := f.driver(t, func(c *docker.Config) { c.Logger = logTo(&log) })
	spec := testSpec
	spec.Limits.DiskSize = "10G"
	for range 3 {
		if _, err := d.Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.count("POST /containers/create"); n != 4 {
		t.Errorf("%d requests for three runners, want one more", n)
	}
	if n := strings.Count(log.String(), "no disk quota"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
}

func TestDiskSizeTaken(t *testing.T) {
	f := newFakeEngine(t).start(t)
	spec := testSpec
	spec.Limits.DiskSize = "10G"
	if _, err := f.driver(t, nil).Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if got := createBody(t, f).HostConfig.StorageOpt; got["size"] != "10G" {
		t.Errorf("storage options %v", got)
	}
}

// TestNothingIsLeft: whatever goes wrong after the container may exist, it is
// removed; what the engine refused to make, or made for somebody else, is not.
func TestNothingIsLeft(t *testing.T) {
	const remove = "DELETE /containers/NAME"
	cut := func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }
	for _, x := range []struct {
		name    string
		on      string
		do      http.HandlerFunc
		rw      bool
		removed bool
		want    string
	}{
		{"start fails", "POST /containers/NAME/start", reply(500, `{"message":"OCI runtime create failed: no sh"}`), false, true, "no sh"},
		{"start hangs", "POST /containers/NAME/start", hang, false, true, "no answer within"},
		{"start is cut off", "POST /containers/NAME/start", cut, false, true, "cannot start container"},
		{"directories fail", "PUT /containers/NAME/archive", reply(500, `{"message":"disk full"}`), true, true, "disk full"},
		{"create hangs", "POST /containers/create", hang, false, true, "no answer within"},
		{"create is cut off", "POST /containers/create", cut, false, true, "cannot create container"},
		{"create answers nonsense", "POST /containers/create", reply(201, "<html>"), false, true, "cannot create container"},
		{"gateway gives up", "POST /containers/create", reply(504, "gateway timeout"), false, true, "gateway timeout"},
		{"create is refused", "POST /containers/create", reply(400, `{"message":"invalid runtime"}`), false, false, "invalid runtime"},
		{"name is taken", "POST /containers/create", reply(409, `{"message":"Conflict. The container name is already in use"}`), false, false, "already in use"},
	} {
		t.Run(x.name, func(t *testing.T) {
			f := newFakeEngine(t).start(t)
			f.handle(x.on, x.do)
			d := f.driver(t, func(c *docker.Config) {
				if x.want == "no answer within" {
					c.CallTimeout = 500 * time.Millisecond
				}
			})
			spec := testSpec
			spec.Limits.ReadOnlyRootfs = !x.rw
			id, err := d.Create(t.Context(), spec)
			if err == nil || id != "" || !strings.Contains(err.Error(), x.want) || fault.KindOf(err) != fault.Internal {
				t.Errorf("got %q, %v, want %q", id, err, x.want)
			}
			if n := f.count(remove); (n > 0) != x.removed {
				t.Errorf("removed %d times, want %v", n, x.removed)
			}
		})
	}
}

func TestCallerGoesAwayDuringCreate(t *testing.T) {
	for _, at := range []string{"POST /containers/create", "POST /containers/NAME/start"} {
		t.Run(at, func(t *testing.T) {
			f := newFakeEngine(t).start(t)
			reason := errors.New("client hung up")
			ctx, cancel := context.WithCancelCause(t.Context())
			usual := map[string]http.HandlerFunc{
				"POST /containers/create":     reply(201, `{"Id":"`+fakeID+`"}`),
				"POST /containers/NAME/start": reply(204, ""),
			}[at]
			f.handle(at, func(w http.ResponseWriter, r *http.Request) {
				cancel(reason)
				time.Sleep(20 * time.Millisecond) // the engine takes its time
				usual(w, r)
			})
			if id, err := f.driver(t, nil).Create(ctx, testSpec); !errors.Is(err, reason) {
				t.Errorf("got %q, %v", id, err)
			}
			if n := f.count("DELETE /containers/NAME"); n != 1 {
				t.Errorf("removed %d times; calls: %q", n, f.calls())
			}
			if at == "POST /containers/create" && f.count("POST /containers/NAME/start") != 0 {
				t.Error("started for nobody")
			}
		})
	}
}

func TestWarningsAreLoggedOnce(t *testing.T) {
	f := newFakeEngine(t).start(t)
	f.handle("POST /containers/create", reply(201, `{"Id":"`+fakeID+`","Warnings":["no swap limit support"]}`))
	var log bytes.Buffer
	d := f.driver(t, func(c *docker.Config) { c.Logger = logTo(&log) })
	for range 3 {
		if _, err := d.Create(t.Context(), testSpec); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "no swap limit support"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
}

func TestMalformedSession(t *testing.T) {
	f := newFakeEngine(t).start(t)
	spec := testSpec
	spec.SessionID = "../x"
	if _, err := f.driver(t, nil).Create(t.Context(), spec); err == nil {
		t.Error("created")
	}
	if c := f.calls(); len(c) != 0 {
		t.Errorf("calls %q", c)
	}
}
