//go:build integration

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// withoutDocker are settings for a service that finds no engine.
func withoutDocker(t *testing.T) []string {
	t.Helper()
	t.Setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
	instance := "test-" + randomHex()[:12]
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Join(runDir, instance)) })
	return []string{"SANDBOX_DRIVER=oci", "SANDBOX_RUNTIME=" + ociWith, "SANDBOX_IMAGE_DIR=" + imageDir(), "SANDBOX_PRELOAD=", "SANDBOX_POOL_SIZE=0", "SANDBOX_INSTANCE=" + instance}
}

// TestWithoutDocker goes through a session's life, the service's restart in the
// middle of it, where there is no Docker.
func TestWithoutDocker(t *testing.T) {
	settings := withoutDocker(t)
	state := t.TempDir()
	s, err := launch(state, settings...)
	if err != nil {
		t.Fatal(err)
	}
	s.showLogOf(t)
	settings = append(settings, "SANDBOX_API_KEY="+s.key)

	var health struct {
		OK                             bool
		Docker, Image, Driver, Runtime string
		ImageReady                     bool `json:"image_ready"`
	}
	if a := s.do(t.Context(), "GET", "/healthz", nil); json.Unmarshal(a.body, &health) != nil || !health.OK || health.Driver != "oci" ||
		health.Runtime != ociWith || !strings.HasPrefix(health.Docker, ociWith+" ") || !health.ImageReady {
		t.Errorf("health: %v", a)
	}
	id, err := s.create()
	if err != nil {
		t.Fatal(err)
	}
	if r := (testSession{s, id}).run(t, "open('kept', 'w').write('content'); print(2 + 2)", 0); r.Stdout != "4\n" || r.Exit != 0 {
		t.Errorf("a run: %v", r)
	}
	if err := s.halt(); err != nil {
		t.Fatal(err)
	}

	if s, err = launch(state, settings...); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.halt(); err != nil {
			t.Error(err)
		}
	}()
	if r := (testSession{s, id}).run(t, "print(open('kept').read())", 0); r.Stdout != "content\n" {
		t.Errorf("after a restart: %v", r)
	}
	if a := s.release(id); a.status != 200 {
		t.Errorf("delete: %v", a)
	}
}

func TestWithoutImage(t *testing.T) {
	settings := append(withoutDocker(t), "SANDBOX_IMAGE=no-such-image:v1")
	_, err := launch(t.TempDir(), settings...)
	if err == nil || !strings.Contains(err.Error(), "no-such-image:v1") || !strings.Contains(err.Error(), "aivory-sandbox image import") {
		t.Errorf("started without an image: %v", err)
	}
	settings = append(settings, "SANDBOX_RUNTIME=no-such-runtime")
	_, err = launch(t.TempDir(), settings...)
	if err == nil || !strings.Contains(err.Error(), "apt-get install runc") {
		t.Errorf("started without a runtime: %v", err)
	}
}
