//go:build integration

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

// sidecarImage builds the service's image once; it goes with the last test.
var sidecarImage = sync.OnceValues(func() (string, error) {
	const tag = "aivory-test-sidecar:latest"
	out, err := exec.Command("../../scripts/sidecar-image.sh", tag).CombinedOutput()
	if err != nil {
		return "", errors.New(err.Error() + ": " + string(out))
	}
	before := afterTests
	afterTests = func() {
		before()
		if out, err := exec.Command("docker", "rmi", tag).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "cannot remove the image of the tests: %v: %s\n", err, out)
		}
	}
	return tag, nil
})

func dockerSays(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("docker", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// composers are the programs that Compose files are for: Debian 12's and, in long
// tests, since building it takes minutes, the second one.
func composers(t *testing.T) []string {
	list := []string{"docker-compose"}
	if soak {
		list = append(list, runnertest.Program(t, "docker-compose-2.40.3"))
	}
	return list
}

// eachComposer runs a test with each, at the same time.
func eachComposer(t *testing.T, test func(t *testing.T, composer string)) {
	for _, composer := range composers(t) {
		t.Run(filepath.Base(composer), func(t *testing.T) {
			t.Parallel()
			test(t, composer)
		})
	}
}

// TestCompose brings each Compose file up from images that were built here, goes
// through a session's life, and takes it down again.
func TestCompose(t *testing.T) {
	wantsDocker(t)
	t.Parallel() // most of it is waiting
	image, err := sidecarImage()
	if err != nil {
		t.Fatal(err)
	}
	if size, err := strconv.Atoi(dockerSays(t, "image", "inspect", "-f", "{{.Size}}", image)); err != nil || size > 40<<20 {
		t.Errorf("the image has %d bytes, %v", size, err)
	}
	images := map[string]string{"aivory-sandbox-sidecar:test": image, "aivory-sandbox:test": "aivory-sandbox:latest"}
	for _, file := range []string{"../../docker-compose.yml", "../../deploy/docker-compose.proxy.yml"} {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			eachComposer(t, func(t *testing.T, composer string) {
				s := deployment{composer: composer, files: []string{file}, service: "sidecar", images: images}.up(t)
				s.life(t)
			})
		})
	}
}

// TestComposeOlder takes a deployment of the older service over: its Compose file
// as it is, and what it left in its volume.
func TestComposeOlder(t *testing.T) {
	wantsDocker(t)
	t.Parallel()
	image, err := sidecarImage()
	if err != nil {
		t.Fatal(err)
	}
	// Its tests run beside others, which its file knows nothing of.
	apart := filepath.Join(t.TempDir(), "apart.yml")
	if err := os.WriteFile(apart, []byte("services: {sandbox: {environment: {SANDBOX_INSTANCE: $SANDBOX_INSTANCE}}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	eachComposer(t, func(t *testing.T, composer string) {
		s := deployment{
			composer: composer, files: []string{"testdata/docker-compose.older.yml", apart}, service: "sandbox",
			images: map[string]string{"aivory-sandbox-sidecar:latest": image, "aivory-sandbox:latest": "aivory-sandbox:latest"},
			prepare: func(name string) {
				cmd := exec.Command("docker", "run", "--rm", "-i", "--network", "none", "--user", "0:0", "-v", name+"_sandbox-archives:/volume", "aivory-sandbox:latest", "python3", "-")
				cmd.Stdin = strings.NewReader(plantOlderArchives)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("planting archives: %v: %s", err, out)
				}
			},
		}.up(t)
		for key, block := range map[string]map[string]any{
			"conversation-1": {"provider": "local"}, "conversation_2": {"provider": "local", "prefix": "tenant/"},
		} {
			id, err := sessionID(s.post("/sessions", map[string]any{"archive_key": key, "storage": block}))
			if err != nil {
				t.Fatal(err)
			}
			session := testSession{s, id}
			for path, want := range map[string]string{"notes.txt": "of " + key, "outputs/\u56fe\u8868.csv": "a,b\n1,2\n"} {
				if got := string(session.read(t, path)); got != want {
					t.Errorf("%s of %s holds %q", path, key, got)
				}
			}
			r := session.run(t, "import os; print(os.access('tool.sh', os.X_OK), os.stat('notes.txt').st_uid); open('notes.txt', 'a').write(', and more')", 0)
			if r.Stdout != "True 1000\n" || r.Exit != 0 {
				t.Errorf("a run on what was restored: %v", r)
			}
			if a := s.do(context.Background(), http.MethodDelete, "/sessions/"+id, map[string]any{"archive_key": key, "storage": block}); a.status != 200 {
				t.Errorf("release: %v", a)
			}
			id, err = sessionID(s.post("/sessions", map[string]any{"archive_key": key, "storage": block}))
			if err != nil {
				t.Fatal(err)
			}
			if got := string((testSession{s, id}).read(t, "notes.txt")); got != "of "+key+", and more" {
				t.Errorf("the second archive of %s holds %q", key, got)
			}
			if a := s.do(context.Background(), http.MethodDelete, "/sessions/"+id, map[string]any{"discard": true}); a.status != 200 {
				t.Errorf("release: %v", a)
			}
		}
		s.life(t)
	})
}

// plantOlderArchives writes two archives as the older service did, with the
// default prefix and with another.
const plantOlderArchives = `
import io, os, tarfile
for prefix, key in (("workspaces", "conversation-1"), ("tenant", "conversation_2")):
    directory = f"/volume/{prefix}/workspaces"
    os.makedirs(directory)
    with tarfile.open(f"{directory}/{key}.tgz", "w:gz") as tar:
        def add(name, mode, data=None):
            member = tarfile.TarInfo(name)
            member.mode, member.mtime, member.uid, member.gid = mode, 1700000000, 1000, 1000
            member.uname = member.gname = "sandbox"
            if data is None:
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(data)
            tar.addfile(member, io.BytesIO(data or b""))
        add("./", 0o755)
        add("./notes.txt", 0o644, b"of " + key.encode())
        add("./tool.sh", 0o755, b"#!/bin/sh\n")
        add("./outputs/", 0o755)
        add("./outputs/\u56fe\u8868.csv", 0o644, b"a,b\n1,2\n")
`

// TestComposeDaemonless is TestCompose for the service that needs no engine. A
// registry would have to give the runner image: it is imported instead.
func TestComposeDaemonless(t *testing.T) {
	wantsDocker(t)
	if !soak {
		t.Skip("importing an image takes long: AIVORY_SOAK=1 does")
	}
	sidecar, err := sidecarImage()
	if err != nil {
		t.Fatal(err)
	}
	const image = "aivory-test-daemonless:latest"
	dockerSays(t, "build", "-q", "--network", "none", "-f", "../../Dockerfile.daemonless", "--build-arg", "BASE="+proxyImage, "--build-arg", "SIDECAR="+sidecar, "-t", image, "../..")
	t.Cleanup(func() { dockerSays(t, "rmi", image) })
	rootfs, err := exec.Command("../../images/runner/build.sh", "--print-rootfs").Output()
	if err != nil {
		t.Fatal(err)
	}
	eachComposer(t, func(t *testing.T, composer string) {
		s := deployment{
			composer: composer, files: []string{"../../deploy/docker-compose.daemonless.yml"}, service: "sidecar", images: map[string]string{"aivory-sandbox-daemonless:test": image},
			prepare: func(name string) {
				t.Cleanup(func() { _ = os.RemoveAll("/run/aivory-sandbox/" + name) })
				dockerSays(t, "run", "--rm", "--network", "none", "-v", name+"_state:/var/lib/aivory-sandbox", "-v", strings.TrimSpace(string(rootfs))+":/rootfs.tar:ro",
					image, "image", "import", "/rootfs.tar", "ghcr.io/"+name+"/aivory-sandbox:test")
			},
		}.up(t)
		s.life(t)
	})
}

// deployment is Compose files and what they need.
type deployment struct {
	// composer is the program that is asked.
	composer string
	files    []string
	// service is the name that the files have for the service.
	service string
	// images are the ones here, by the names of the owner's images and their tags.
	images map[string]string
	// prepare, where not nil, is called with the project's name once its volumes
	// are there, before anything runs.
	prepare func(name string)
}

// up brings a deployment up until it is healthy. The test's end takes it down, and
// nothing may be left of it.
func (d deployment) up(t *testing.T) *testService {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	name := "aivorytest" + randomHex()[:8]
	s := &testService{url: "http://127.0.0.1:" + port, key: randomHex(), instance: name, http: newHTTPClient()}
	var tags []string
	for tagged, from := range d.images {
		tag := "ghcr.io/" + name + "/" + tagged
		dockerSays(t, "tag", from, tag)
		tags = append(tags, tag)
	}
	t.Cleanup(func() { dockerSays(t, append([]string{"rmi"}, tags...)...) })
	compose := func(args ...string) string {
		t.Helper()
		command := []string{"-p", name}
		for _, file := range d.files {
			command = append(command, "-f", file)
		}
		cmd := exec.Command(d.composer, append(command, args...)...)
		cmd.Env = append(os.Environ(), "OWNER="+name, "TAG=test", "SANDBOX_API_KEY="+s.key, "SANDBOX_PORT="+port, "SANDBOX_INSTANCE="+name, "PROXY_IMAGE="+proxyImage)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v: %s", d.composer, args, err, out)
		}
		return string(out)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(compose("logs", "--no-color", "--tail", "40"))
		}
		// Volumes without a name of their own too.
		mounted := dockerSays(t, "ps", "-aq", "--filter", "label=com.docker.compose.project="+name)
		if mounted != "" {
			mounted = dockerSays(t, append([]string{"inspect", "-f", `{{range .Mounts}}{{.Name}} {{end}}`}, strings.Fields(mounted)...)...)
		}
		compose("down", "-v")
		for _, volume := range strings.Fields(mounted) {
			if exec.Command("docker", "volume", "inspect", volume).Run() == nil {
				t.Errorf("volume %s is left", volume)
			}
		}
		if left, err := s.removeContainers(); err != nil || left > 0 {
			t.Errorf("%d runners are left, %v", left, err)
		}
		for kind, list := range map[string][]string{
			"containers": {"ps", "-aq", "--filter", "label=com.docker.compose.project=" + name}, "volumes": {"volume", "ls", "-q", "--filter", "name=" + name},
			"networks": {"network", "ls", "-q", "--filter", "name=" + name},
		} {
			if left := dockerSays(t, list...); left != "" {
				t.Errorf("%s are left: %s", kind, left)
			}
		}
	})
	if d.prepare != nil {
		compose("up", "--no-start")
		d.prepare(name)
	}
	compose("up", "-d")
	waitLong(t, "the service's health", func() bool {
		id := dockerSays(t, "ps", "-q", "--filter", "label=com.docker.compose.project="+name, "--filter", "label=com.docker.compose.service="+d.service)
		return id != "" && dockerSays(t, "inspect", "-f", "{{.State.Health.Status}}", id) == "healthy"
	})
	return s
}

// life leads a session through its life. An archive outlives the service's
// container, in the volume.
func (s *testService) life(t *testing.T) {
	t.Helper()
	block := map[string]any{"provider": "local"}
	id, err := sessionID(s.post("/sessions", map[string]any{"archive_key": "kept", "storage": block}))
	if err != nil {
		t.Fatal(err)
	}
	if r := (testSession{s, id}).run(t, "open('kept.txt', 'w').write('here'); print(2 + 2)", time.Minute); r.Stdout != "4\n" {
		t.Errorf("a run: %v", r)
	}
	if a := s.release(id); a.status != 200 {
		t.Errorf("release: %v", a)
	}
	id, err = sessionID(s.post("/sessions", map[string]any{"archive_key": "kept", "storage": block}))
	if err != nil {
		t.Fatal(err)
	}
	if got := string((testSession{s, id}).read(t, "kept.txt")); got != "here" {
		t.Errorf("the archive holds %q", got)
	}
	if a := s.do(context.Background(), http.MethodDelete, "/sessions/"+id, map[string]any{"discard": true}); a.status != 200 {
		t.Errorf("release: %v", a)
	}
}

// TestUnit holds the unit file against what systemd thinks of it.
func TestUnit(t *testing.T) {
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "../../deploy/aivory-sandbox.service").CombinedOutput()
	found := regexp.MustCompile(`exposure level for \S+: ([0-9.]+)`).FindSubmatch(out)
	if found == nil {
		t.Fatalf("systemd-analyze: %v: %s", err, out)
	}
	if level, err := strconv.ParseFloat(string(found[1]), 64); err != nil || level >= 3 {
		t.Errorf("exposure %s, %v", found[1], err)
	}
}
