package docker_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/docker"
)

// fakePodman is an engine that says that it is Podman, without root and with
// cgroups of a version.
func fakePodman(t *testing.T, cgroups string) *fakeEngine {
	t.Helper()
	f := newFakeEngine(t)
	f.handle("GET /images/img:v1/json", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "Libpod/4.3.1 (linux)")
		reply(200, `{"Id":"sha256:1","Config":{}}`)(w, r)
	})
	f.handle("GET /containers/json", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "Libpod/4.3.1 (linux)")
		reply(200, "[]")(w, r)
	})
	f.handle("GET /info", reply(200, `{"CgroupVersion":"`+cgroups+`","SecurityOptions":["name=seccomp,profile=default","name=rootless"]}`))
	f.handle("POST /exec/e1/start", hijack(func(net.Conn) {}))
	return f.start(t)
}

func TestPodman(t *testing.T) {
	for cgroups, want := range map[string]string{"1": "it bounds neither memory", "2": "it may not bound open files"} {
		f := fakePodman(t, cgroups)
		file := filepath.Join(t.TempDir(), "seccomp.json")
		var log bytes.Buffer
		d := f.driver(t, func(c *docker.Config) { c.ProfileFile, c.Logger = file, logTo(&log) })
		for range 2 {
			if _, err := d.List(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(log.String(), want); n != 1 {
				t.Errorf("warned %d times before there is a runner: %s", n, log.String())
			}
			if _, err := d.Create(t.Context(), testSpec); err != nil {
				t.Fatal(err)
			}
		}
		if n := f.count("GET /info"); n != 1 {
			t.Errorf("asked %d times", n)
		}
		host := createBody(t, f).HostConfig
		if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), "SCMP_ACT_ERRNO") || !slices.Contains(host.SecurityOpt, "seccomp="+file) {
			t.Errorf("profile %.40q, %v; asked for %.200q", b, err, host.SecurityOpt)
		}
		if options := host.Tmpfs["/workspace"]; strings.Contains(options, "uid=") || !strings.Contains(options, "size=2000") {
			t.Errorf("tmpfs %q", options)
		}
		if body := string(f.last(t, "POST /containers/NAME/exec").body); !strings.Contains(body, "chown 1000:1000 /workspace") {
			t.Errorf("the program does not get its directories: %s", body)
		}
	}
}

func TestPodmanThatGivesNothingAway(t *testing.T) {
	f := fakePodman(t, "2")
	f.handle("POST /exec/e1/start", hijack(func(c net.Conn) {
		_, _ = io.WriteString(c, "\x02\x00\x00\x00\x00\x00\x00\x04oops")
	}))
	d := f.driver(t, func(c *docker.Config) { c.ProfileFile = filepath.Join(t.TempDir(), "seccomp.json") })
	_, err := d.Create(t.Context(), testSpec)
	if err == nil || !strings.Contains(err.Error(), "oops") || f.count("DELETE /containers/NAME") != 1 {
		t.Errorf("got %v after %v", err, f.calls())
	}
}

// TestPodmanListsAgain: it fails a list on which a container is that goes meanwhile.
func TestPodmanListsAgain(t *testing.T) {
	f := fakePodman(t, "2")
	failures := 3
	f.handle("GET /containers/json", func(w http.ResponseWriter, r *http.Request) {
		if failures--; failures >= 0 {
			reply(500, `{"message":"getting container from store \"a21b\": container not known"}`)(w, r)
			return
		}
		reply(200, `[{"Id":"`+fakeID+`","State":"running","Labels":{"aivory.sandbox":"1"}}]`)(w, r)
	})
	d := f.driver(t, nil)
	if list, err := d.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("listed %v, %v", list, err)
	}
	failures = 1000
	if _, err := d.List(t.Context()); err == nil || !strings.Contains(err.Error(), "container not known") || failures < 900 {
		t.Errorf("got %v, with %d failures to go", err, failures)
	}
}

// TestPodmansWords: a container that is stopped has the same words as one that is
// paused.
func TestPodmansWords(t *testing.T) {
	for state, stopped := range map[string]bool{"exited": true, "paused": false, "running": false} {
		f := fakePodman(t, "2")
		f.handle("POST /containers/NAME/exec", reply(409, `{"message":"can only create exec sessions on running containers: container state improper"}`))
		f.handle("GET /containers/json", reply(200, `[{"Id":"`+fakeID+`","Names":["/`+fakeName+`"],"State":"`+state+`","Labels":{"aivory.sandbox":"1"}}]`))
		_, err := f.driver(t, nil).Dial(t.Context(), fakeName, []string{"true"}, nil)
		if err == nil || errors.Is(err, runner.ErrNotFound) != stopped {
			t.Errorf("%s: %v", state, err)
		}
	}
}
