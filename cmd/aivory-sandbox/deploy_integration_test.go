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
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
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

// TestCompose brings each Compose file up from images that were built here, goes
// through a session's life, and takes it down again.
func TestCompose(t *testing.T) {
	wantsDocker(t)
	image, err := sidecarImage()
	if err != nil {
		t.Fatal(err)
	}
	if size, err := strconv.Atoi(dockerSays(t, "image", "inspect", "-f", "{{.Size}}", image)); err != nil || size > 40<<20 {
		t.Errorf("the image has %d bytes, %v", size, err)
	}
	for _, file := range []string{"../../docker-compose.yml", "../../deploy/docker-compose.proxy.yml"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			composed(t, file, map[string]string{"aivory-sandbox-sidecar": image, "aivory-sandbox": "aivory-sandbox:latest"}, nil)
		})
	}
}

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
	composed(t, "../../deploy/docker-compose.daemonless.yml", map[string]string{"aivory-sandbox-daemonless": image}, func(name string) {
		t.Cleanup(func() { _ = os.RemoveAll("/run/aivory-sandbox/" + name) })
		dockerSays(t, "run", "--rm", "--network", "none", "-v", name+"_state:/var/lib/aivory-sandbox", "-v", strings.TrimSpace(string(rootfs))+":/rootfs.tar:ro",
			image, "image", "import", "/rootfs.tar", "ghcr.io/"+name+"/aivory-sandbox:test")
	})
}

// composed brings one file up with images under the names that it has for them.
// Prepare, where not nil, is called with the project's name first.
func composed(t *testing.T, file string, images map[string]string, prepare func(name string)) {
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
	for tagged, from := range images {
		tag := "ghcr.io/" + name + "/" + tagged + ":test"
		dockerSays(t, "tag", from, tag)
		tags = append(tags, tag)
	}
	t.Cleanup(func() { dockerSays(t, append([]string{"rmi"}, tags...)...) })
	compose := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("docker-compose", append([]string{"-f", file, "-p", name}, args...)...)
		cmd.Env = append(os.Environ(), "OWNER="+name, "TAG=test", "SANDBOX_API_KEY="+s.key, "SANDBOX_PORT="+port, "SANDBOX_INSTANCE="+name, "PROXY_IMAGE="+proxyImage)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("docker-compose %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(compose("logs", "--no-color", "--tail", "40"))
		}
		compose("down", "-v")
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
	if prepare != nil {
		prepare(name)
	}
	compose("up", "-d")
	waitLong(t, "the service's health", func() bool {
		id := dockerSays(t, "ps", "-q", "--filter", "label=com.docker.compose.project="+name, "--filter", "label=com.docker.compose.service=sidecar")
		return id != "" && dockerSays(t, "inspect", "-f", "{{.State.Health.Status}}", id) == "healthy"
	})
	// An archive outlives the service's container, in the volume.
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
