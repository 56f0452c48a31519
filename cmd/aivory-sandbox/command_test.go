package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/config"
)

func TestRun(t *testing.T) {
	state := "SANDBOX_STATE_DIR=" + t.TempDir()
	taken := httptest.NewServer(http.NotFoundHandler())
	defer taken.Close()
	inUse := strings.TrimPrefix(taken.URL, "http://")
	missing := filepath.Join(t.TempDir(), "profile.json")
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		args    []string
		environ []string
		code    int
		stdout  string // a part of it
		stderr  string
	}{
		{name: "nothing", code: 2, stderr: "Usage: "},
		{name: "too much", args: []string{"serve", "now"}, code: 2, stderr: "Usage: "},
		{name: "unknown", args: []string{"srve"}, code: 2, stderr: "unexpected argument srve"},
		{name: "help", args: []string{"--help"}, stdout: "Usage: "},
		{name: "help of a command", args: []string{"help", "image", "import"}, stdout: "Usage: aivory-sandbox image import <source>"},
		{name: "version", args: []string{"version"}, stdout: "aivory-sandbox "},
		{name: "no key", args: []string{"serve"}, environ: []string{state}, code: 1, stderr: "SANDBOX_API_KEY: is not set"},
		{name: "bad values", args: []string{"serve"}, environ: []string{state, "SANDBOX_MEMORY=x", "SANDBOX_CPUS=y"}, code: 1, stderr: "\nSANDBOX_CPUS: "},
		{name: "address in use", args: []string{"serve"}, environ: []string{state, "SANDBOX_API_KEY=k", "SANDBOX_LISTEN=" + inUse}, code: 1, stderr: "another program listens on " + inUse},
		{name: "no profile", args: []string{"serve"}, environ: []string{state, "SANDBOX_API_KEY=k", "SANDBOX_LISTEN=127.0.0.1:0", "SANDBOX_SECCOMP_PROFILE=" + missing}, code: 1, stderr: "SANDBOX_SECCOMP_PROFILE: "},
		{name: "no profile among others", args: []string{"serve"}, environ: []string{state, "SANDBOX_MEMORY=x", "SANDBOX_SECCOMP_PROFILE=" + missing}, code: 1, stderr: "\nSANDBOX_SECCOMP_PROFILE: \"" + missing},
		{name: "broken profile", args: []string{"serve"}, environ: []string{state, "SANDBOX_API_KEY=k", "SANDBOX_LISTEN=127.0.0.1:0", "SANDBOX_SECCOMP_PROFILE=" + broken}, code: 1, stderr: "seccomp"},
		{name: "driver without what it needs", args: []string{"serve"}, environ: []string{state, "SANDBOX_API_KEY=k", "SANDBOX_LISTEN=127.0.0.1:0", "SANDBOX_DRIVER=oci", "SANDBOX_RUNTIME=no-such-runtime"}, code: 1, stderr: "cannot "},
		{name: "image", args: []string{"image"}, environ: []string{state}, code: 2, stderr: "Usage: aivory-sandbox image"},
		{name: "image of nothing", args: []string{"image", "import"}, environ: []string{state}, code: 2, stderr: "Usage: aivory-sandbox image"},
		{name: "image of no file", args: []string{"image", "import", missing}, environ: []string{state}, code: 1, stderr: "cannot import "},
		{name: "image of no tar", args: []string{"image", "import", "nope.tar"}, environ: []string{state}, code: 1, stderr: "cannot import the image: stat nope.tar: no such file"},
		{name: "image of no compressed tar", args: []string{"image", "import", "a/nope.tar.gz"}, environ: []string{state}, code: 1, stderr: "cannot import the image: stat a/nope.tar.gz: no such file"},
		{name: "image of no tgz", args: []string{"image", "import", "nope.tgz"}, environ: []string{state}, code: 1, stderr: "cannot import the image: stat nope.tgz: no such file"},
		{name: "images, but none", args: []string{"image", "list"}, environ: []string{state}, stdout: "NAME  DIGEST"},
		{name: "images in a file", args: []string{"image", "list"}, environ: []string{state, "SANDBOX_IMAGE_DIR=" + broken}, code: 1, stderr: "cannot make the image directory"},
		{name: "image that is not there", args: []string{"image", "remove", "x"}, environ: []string{state}, code: 1, stderr: "no such image: x"},
		{name: "not healthy", args: []string{"healthcheck"}, environ: []string{"SANDBOX_LISTEN=" + inUse}, code: 1, stderr: "not healthy: status 404"},
		{name: "nobody there", args: []string{"healthcheck"}, environ: []string{"SANDBOX_LISTEN=127.0.0.1:1"}, code: 1, stderr: "not healthy: "},
		{name: "healthcheck of nowhere", args: []string{"healthcheck"}, environ: []string{"SANDBOX_LISTEN=nowhere"}, code: 1, stderr: "SANDBOX_LISTEN: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(context.Background(), tt.args, tt.environ, &stdout, &stderr)
			if code != tt.code || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("exit code %d\nstdout: %s\nstderr: %s", code, &stdout, &stderr)
			}
		})
	}
}

func TestHealthcheck(t *testing.T) {
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" || r.Header.Get("Authorization") != "" {
			t.Errorf("asked %s with %v", r.URL, r.Header)
		}
		w.WriteHeader(status)
	}))
	defer server.Close()
	environ := []string{"SANDBOX_LISTEN=0.0.0.0:" + server.URL[strings.LastIndex(server.URL, ":")+1:]}
	if err := healthcheck(t.Context(), environ); err != nil {
		t.Error(err)
	}
	status = http.StatusServiceUnavailable
	if err := healthcheck(t.Context(), environ); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a service without an engine: %v", err)
	}
}

func TestReachable(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:1": "127.0.0.1:1", "0.0.0.0:1": "127.0.0.1:1", ":1": "127.0.0.1:1",
		"[::]:1": "[::1]:1", "[::1]:1": "[::1]:1", "localhost:1": "localhost:1", "10.0.0.1:1": "10.0.0.1:1",
	} {
		if got := reachable(address); got != want {
			t.Errorf("%s: %s, wanted %s", address, got, want)
		}
	}
}

func TestVersionOf(t *testing.T) {
	revision := []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}}
	for _, tt := range []struct {
		info *debug.BuildInfo
		ok   bool
		want string
	}{
		{nil, false, "unknown"},
		{&debug.BuildInfo{}, true, "devel"},
		{&debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: revision}, true, "v1.2.3"},
		{&debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: revision}, true, "abc"},
	} {
		if got := versionOf(tt.info, tt.ok); got != tt.want {
			t.Errorf("%+v: %s", tt.info, got)
		}
	}
}

func TestStateDirIsPrivateAndHeldOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "state")
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	first, err := openStateDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory is %v, %v", info.Mode(), err)
	}
	if _, err := openStateDir(path); err == nil || !strings.Contains(err.Error(), "another service uses") {
		t.Errorf("a second service: %v", err)
	}
	tmp, err := first.fresh("tmp")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "left"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	second, err := openStateDir(path)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	defer second.Close()
	if tmp, err = second.fresh("tmp"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
		t.Errorf("temporary files outlive their process: %v, %v", left, err)
	}
	if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openStateDir(filepath.Join(path, "file")); err == nil {
		t.Error("a file is a state directory")
	}
}

func TestLogger(t *testing.T) {
	for _, tt := range []struct{ level, format, want string }{
		{"info", "", `"msg":"shown"`},
		{"info", "json", `"msg":"shown","took":"1.5s"`},
		{"warn", "text", "msg=shown took=1.5s"},
	} {
		var out bytes.Buffer
		log := newLogger(config.Config{LogLevel: tt.level, LogFormat: tt.format}, &out)
		log.Debug("hidden")
		log.Warn("shown", "took", 1500*time.Millisecond)
		if !strings.Contains(out.String(), tt.want) || strings.Contains(out.String(), "hidden") {
			t.Errorf("%+v: %s", tt, &out)
		}
	}
}
