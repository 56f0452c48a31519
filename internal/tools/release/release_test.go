package main

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// tarOf writes a tar of files, in this order: name, text, name, text.
func tarOf(t *testing.T, files ...string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: files[i], Mode: 0o644, Size: int64(len(files[i+1]))}); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(w, files[i+1])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return write(t, b.String())
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestSettings reads the Dockerfiles that images are made from.
func TestSettings(t *testing.T) {
	got, err := settings("../../../Dockerfile.sidecar")
	if err != nil {
		t.Fatal(err)
	}
	const program = "/usr/local/bin/aivory-sandbox"
	want := v1.Config{
		Entrypoint: []string{program}, Cmd: []string{"serve"}, StopSignal: "SIGTERM",
		Env:          []string{"SANDBOX_LISTEN=0.0.0.0:8000", "SANDBOX_STATE_DIR=/var/lib/aivory-sandbox"},
		Volumes:      map[string]struct{}{"/var/lib/aivory-sandbox": {}},
		ExposedPorts: map[string]struct{}{"8000/tcp": {}},
		Healthcheck:  &v1.HealthConfig{Test: []string{"CMD", program, "healthcheck"}, Interval: 10 * time.Second, Timeout: 12 * time.Second, StartPeriod: 10 * time.Second, Retries: 3},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "aivory-sandbox-sidecar",
			"org.opencontainers.image.source":   "https://github.com/hjxwz123/aivory-sandbox",
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Dockerfile.sidecar (-want +got):\n%s", diff)
	}
	got, err = settings("../../../Dockerfile.runner")
	if err != nil {
		t.Fatal(err)
	}
	if got.User != "sandbox" || got.WorkingDir != "/workspace" || !slices.Equal(got.Cmd, []string{"sleep", "infinity"}) ||
		got.Labels["aivory.localhost"] != "1" || !slices.Contains(got.Env, "MPLBACKEND=Agg") {
		t.Errorf("Dockerfile.runner: %+v", got)
	}
	for _, text := range []string{"FROM x\nSHELL [\"sh\"]", "FROM x\nENV A=1 B=2", "FROM x\nENV A=$B", "FROM x\nCMD serve", "FROM x\nHEALTHCHECK NONE", "FROM x\nHEALTHCHECK --start-interval=1s CMD [\"x\"]"} {
		if c, err := settings(write(t, text)); err == nil {
			t.Errorf("%q is understood as %+v", text, c)
		}
	}
}

// image makes an archive of one file, for one platform.
func image(t *testing.T, root string, p platform) (string, error) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.tar")
	c := imageCommand{
		Root: root, Dockerfile: "../../../Dockerfile.sidecar", Platform: p, Reference: "example.org/some/image:v1",
		Created: 1_700_000_000, Label: map[string]string{"more": "of it"}, Out: out,
	}
	return out, c.Run()
}

func TestImage(t *testing.T) {
	root := tarOf(t, "usr/local/bin/aivory-sandbox", strings.Repeat("program", 10000))
	out, err := image(t, root, "linux/arm64")
	if err != nil {
		t.Fatal(err)
	}
	again, err := image(t, root, "linux/arm64")
	if err != nil {
		t.Fatal(err)
	}
	one, two := read(t, out), read(t, again)
	if !bytes.Equal(one, two) {
		t.Error("the same image twice is not the same")
	}
	// As docker load reads it.
	tag, err := name.NewTag("example.org/some/image:v1")
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := tarball.ImageFromPath(out, &tag)
	if err != nil {
		t.Fatal(err)
	}
	file, err := loaded.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if file.OS != "linux" || file.Architecture != "arm64" || file.Created.Unix() != 1_700_000_000 || file.Config.Labels["more"] != "of it" ||
		file.Config.StopSignal != "SIGTERM" || len(file.RootFS.DiffIDs) != 1 {
		t.Errorf("%+v", file)
	}
	if _, err := image(t, root, "arm64"); err == nil {
		t.Error("a platform without a system")
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(out), "*")); err != nil || !slices.Equal(left, []string{out}) {
		t.Errorf("left: %q, %v", left, err)
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestPush pushes two platforms to a registry, and pulls each.
func TestPush(t *testing.T) {
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	var archives []string
	for _, p := range []platform{"linux/amd64", "linux/arm64"} {
		out, err := image(t, tarOf(t, "for", string(p)), p)
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, out)
	}
	c := pushCommand{Reference: []string{host + "/owner/image:v1", host + "/owner/image:latest"}, Archives: archives}
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	for _, reference := range c.Reference {
		tag, err := name.NewTag(reference)
		if err != nil {
			t.Fatal(err)
		}
		for _, machine := range []string{"amd64", "arm64"} {
			pulled, err := remote.Image(tag, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: machine}))
			if err != nil {
				t.Fatal(err)
			}
			if file, err := pulled.ConfigFile(); err != nil || file.Architecture != machine {
				t.Errorf("%s for %s: %+v, %v", reference, machine, file, err)
			}
		}
	}
	if err := (&pushCommand{Reference: c.Reference, Archives: []string{tarOf(t, "../escape", "x")}}).Run(); err == nil || !strings.Contains(err.Error(), "../escape") {
		t.Errorf("an archive that leads elsewhere: %v", err)
	}
}

func bomOf(t *testing.T, c sbomCommand) (*cdx.BOM, error) {
	t.Helper()
	c.Name, c.Version, c.Created, c.Out = "thing", "v1", 1_700_000_000, filepath.Join(t.TempDir(), "bom.json")
	if err := c.Run(); err != nil {
		return nil, err
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(read(t, c.Out)), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	return &bom, nil
}

func TestPackagesSBOM(t *testing.T) {
	root := tarOf(t,
		"./var/lib/dpkg/status", "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:2.41+b1\nDescription: C\n Version: not this\n\n"+
			"Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n",
		"./usr/local/lib/python3.13/dist-packages/Python_Pptx-1.0.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: Python_Pptx\nVersion: 1.0.2\n\nName: of the text\n",
		"./usr/lib/python3/dist-packages/old.egg-info/PKG-INFO", "Name: old\nVersion: 3\n",
		"./usr/share/elsewhere/x.dist-info/METADATA", "Name: x\nVersion: 3\n",
	)
	bom, err := bomOf(t, sbomCommand{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range *bom.Components {
		got = append(got, c.PackageURL)
	}
	want := []string{"pkg:deb/debian/libc6@1:2.41%2Bb1?arch=amd64", "pkg:pypi/old@3", "pkg:pypi/python-pptx@1.0.2"}
	if !slices.Equal(got, want) || bom.SpecVersion != cdx.SpecVersion1_6 || bom.Metadata.Component.Name != "thing" || bom.Metadata.Timestamp != "2023-11-14T22:13:20Z" {
		t.Errorf("%q, %+v", got, bom.Metadata)
	}
	if _, err := bomOf(t, sbomCommand{Root: tarOf(t, "x", "y")}); err == nil {
		t.Error("a list of nothing")
	}
	if _, err := bomOf(t, sbomCommand{Root: tarOf(t, "usr/lib/python3/dist-packages/a.dist-info/METADATA", "Name: a\n")}); err == nil {
		t.Error("a distribution without a version")
	}
}

func TestModulesSBOM(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bom, err := bomOf(t, sbomCommand{Program: self})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(*bom.Components, func(c cdx.Component) bool { return c.Name == "github.com/CycloneDX/cyclonedx-go" })
	if i < 0 {
		t.Fatalf("this test's own module is not among %+v", *bom.Components)
	}
	c := (*bom.Components)[i]
	if !strings.HasPrefix(c.Version, "v") || c.PackageURL != "pkg:golang/github.com/CycloneDX/cyclonedx-go@"+c.Version+"?type=module" || c.Hashes == nil || len((*c.Hashes)[0].Value) != 64 {
		t.Errorf("%+v", c)
	}
	if !strings.HasPrefix((*bom.Components)[len(*bom.Components)-1].PackageURL, "pkg:golang/") {
		t.Error("not all are Go's")
	}
	if _, err := bomOf(t, sbomCommand{Program: write(t, "no program")}); err == nil {
		t.Error("no program")
	}
}
