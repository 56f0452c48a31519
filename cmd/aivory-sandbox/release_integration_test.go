//go:build integration

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const releaseVersion = "v0.0.1-test"

// releaseEpoch is the time of all that a release holds.
const releaseEpoch = 1_700_000_000

// copyTree copies the repository's files, without its history and what was built.
func copyTree(t *testing.T) string {
	t.Helper()
	const root = "../.."
	dir := t.TempDir()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, name)
		switch {
		case slices.Contains([]string{".git", "bin", "dist"}, name):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			return os.MkdirAll(to, 0o700)
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, text, info.Mode().Perm()&0o700)
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// release makes one of the service in a copy of the tree and returns where it is.
func release(t *testing.T, owner, umask string, environ ...string) string {
	t.Helper()
	dir := copyTree(t)
	cmd := exec.Command("bash", "-c", `umask "$0"; exec scripts/release.sh --service "$1"`, umask, releaseVersion)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "OWNER="+owner, "SOURCE_DATE_EPOCH=1700000000"), environ...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("release.sh: %v: %s", err, out)
	}
	return filepath.Join(dir, "dist")
}

// TestRelease makes a release of the service twice, in different places and
// circumstances, and looks at what is in it.
func TestRelease(t *testing.T) {
	wantsDocker(t)
	t.Parallel()
	owner := "aivorytest" + randomHex()[:8]
	dist := release(t, owner, "022")
	again := release(t, owner, "077", "TZ=Asia/Tokyo", "LC_ALL=C.UTF-8", "GOFLAGS=-buildvcs=true", "GOAMD64=v2")
	sums := func(dir string) string { return string(must(os.ReadFile(filepath.Join(dir, "SHA256SUMS")))) }
	if diff := cmp.Diff(sums(dist), sums(again)); diff != "" {
		t.Errorf("the second release is another (-first +second):\n%s", diff)
	}
	check := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = dist
	if out, err := check.CombinedOutput(); err != nil || strings.Count(string(out), ": OK") != 6 {
		t.Errorf("the checksums: %v: %s", err, out)
	}

	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		name := "aivory-sandbox_" + releaseVersion + "_linux_" + arch
		program := releasedProgram(t, filepath.Join(dist, name+".tar.gz"), name)
		if len(program) > 40<<20 {
			t.Errorf("the program for %s has %d bytes", arch, len(program))
		}
		file, err := elf.NewFile(bytes.NewReader(program))
		if err != nil {
			t.Fatal(err)
		}
		if file.Machine != machine || file.Class != elf.ELFCLASS64 || file.Section(".interp") != nil {
			t.Errorf("the program for %s: %v, interpreted: %v", arch, file.FileHeader, file.Section(".interp") != nil)
		}
		image, err := os.Stat(filepath.Join(dist, "aivory-sandbox-sidecar_"+releaseVersion+"_linux_"+arch+".oci.tar"))
		if err != nil || image.Size() > 40<<20 {
			t.Errorf("the image for %s: %d bytes, %v", arch, image.Size(), err)
		}
		modulesListed(t, filepath.Join(dist, name+".cdx.json"), arch)
	}
	releasedImage(t, filepath.Join(dist, "aivory-sandbox-sidecar_"+releaseVersion+"_linux_amd64.oci.tar"), "ghcr.io/"+owner+"/aivory-sandbox-sidecar:"+releaseVersion)
}

// releasedProgram looks at an archive and returns the program in it.
func releasedProgram(t *testing.T, archive, name string) []byte {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	packed, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if !packed.ModTime.IsZero() || packed.Name != "" {
		t.Errorf("%s tells when it was packed: %v %q", archive, packed.ModTime, packed.Name)
	}
	var names []string
	var program []byte
	for r := tar.NewReader(packed); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || h.ModTime.Unix() != releaseEpoch {
			t.Errorf("%s: %s is of %d:%d (%s:%s), %v", archive, h.Name, h.Uid, h.Gid, h.Uname, h.Gname, h.ModTime)
		}
		names = append(names, h.Name)
		if h.Name == name+"/aivory-sandbox" {
			if h.Mode != 0o755 {
				t.Errorf("the program's mode is %o", h.Mode)
			}
			if program, err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !slices.IsSorted(names) {
		t.Errorf("%s is not sorted: %q", archive, names)
	}
	for _, file := range []string{
		"LICENSE", "README.md", "CHANGELOG.md", "docker-compose.yml", "deploy/docker-compose.proxy.yml", "deploy/docker-compose.daemonless.yml",
		"deploy/haproxy.cfg", "deploy/aivory-sandbox.service", "aivory-sandbox",
	} {
		if !slices.Contains(names, name+"/"+file) {
			t.Errorf("%s lacks %s", archive, file)
		}
	}
	return program
}

// modulesListed holds a list of contents against what Go says the program is
// linked from.
func modulesListed(t *testing.T, file, arch string) {
	t.Helper()
	var bom struct {
		Format     string `json:"bomFormat"`
		Components []struct{ Name, Version string }
	}
	if err := json.Unmarshal(must(os.ReadFile(file)), &bom); err != nil || bom.Format != "CycloneDX" {
		t.Fatalf("%s: %v, %q", file, err, bom.Format)
	}
	listed := map[string]string{}
	for _, c := range bom.Components {
		listed[c.Name] = c.Version
	}
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}", ".")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"std": listed["std"]}
	for line := range strings.Lines(string(out)) {
		if module, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			want[module] = version
		}
	}
	if len(want) < 20 || !strings.HasPrefix(listed["std"], "1.") {
		t.Errorf("only %d modules, with Go %q", len(want), listed["std"])
	}
	if diff := cmp.Diff(want, listed); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// releasedImage loads an image into the engine, where it is what a build makes.
func releasedImage(t *testing.T, archive, reference string) {
	t.Helper()
	dockerSays(t, "load", "-q", "-i", archive)
	t.Cleanup(func() { dockerSays(t, "rmi", reference) })
	if said := dockerSays(t, "run", "--rm", "--network", "none", "--read-only", reference, "version"); !strings.Contains(said, releaseVersion) {
		t.Errorf("its version: %s", said)
	}
	built, err := sidecarImage()
	if err != nil {
		t.Fatal(err)
	}
	config := func(image string) map[string]any {
		var c map[string]any
		if err := json.Unmarshal([]byte(dockerSays(t, "image", "inspect", "-f", "{{json .Config}}", image)), &c); err != nil {
			t.Fatal(err)
		}
		for field, value := range c {
			// What nobody set: a build writes it down, and the engine's own image of itself.
			if value == nil || value == "" || value == false || field == "Image" || field == "Hostname" {
				delete(c, field)
			}
		}
		return c
	}
	want, got := config(built), config(reference)
	if labels, ok := got["Labels"].(map[string]any); ok {
		delete(labels, "org.opencontainers.image.version")
		delete(labels, "org.opencontainers.image.revision")
	}
	// A build repeats the path of the engine.
	want["Env"] = slices.DeleteFunc(want["Env"].([]any), func(v any) bool { return strings.HasPrefix(v.(string), "PATH=") })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the image's settings (-built +released):\n%s", diff)
	}
}

// TestReleaseRunner builds the runner image's root file system twice.
func TestReleaseRunner(t *testing.T) {
	wantsDocker(t) // it is not about runners: once is enough
	if !soak {
		t.Skip("building it takes minutes: AIVORY_SOAK=1 does")
	}
	dir := t.TempDir()
	for _, file := range []string{"first", "second"} {
		cmd := exec.Command("../../images/runner/build.sh", "--force", "--rootfs", filepath.Join(dir, file))
		cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build.sh: %v: %s", err, out)
		}
	}
	if out, err := exec.Command("cmp", filepath.Join(dir, "first"), filepath.Join(dir, "second")).CombinedOutput(); err != nil {
		t.Errorf("the second is another: %v: %s", err, out)
	}
}

// TestReleaseBrokenOff: what is half done is not in the directory, where the next
// call would vouch for it.
func TestReleaseBrokenOff(t *testing.T) {
	dir, programs := copyTree(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(programs, "gzip"), []byte("#!/bin/sh\nhead -c 1000\nkill -TERM $PPID\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, environ := range [][]string{
		{"OWNER=someone", "PATH=" + programs + ":" + os.Getenv("PATH")},
		{"OWNER=../someone"}, {"OWNER=Someone"}, {"OWNER=some one"},
	} {
		cmd := exec.Command("scripts/release.sh", "--service", releaseVersion)
		cmd.Dir = dir
		cmd.Env = append(append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000"), environ...)
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("%q made a release: %s", environ, out)
		}
		if left, err := os.ReadDir(filepath.Join(dir, "dist")); err != nil && !errors.Is(err, fs.ErrNotExist) || len(left) > 0 {
			t.Errorf("%q left %v, %v", environ, left, err)
		}
	}
}
