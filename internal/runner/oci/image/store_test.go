package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
)

func openStore(t testing.TB) *Store {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("images have root's files")
	}
	dir := t.TempDir()
	s, err := Open(filepath.Join(dir, "store"), filepath.Join(dir, "bundles", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// content is what the images of these tests hold, beside what prepare adds.
func content(t testing.TB, img *Image) map[string]string {
	t.Helper()
	found := look(t, img.Root)
	for _, dir := range append([]string{"/home", "/etc", "/etc/hosts"}, mountPoints...) {
		if _, ok := found[dir[1:]]; !ok {
			t.Errorf("the image has no %s", dir)
		}
		delete(found, dir[1:])
	}
	return found
}

// left names what is in the store but for images and their names.
func left(t testing.TB, s *Store) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "images" && e.Name() != "lock" && e.Name() != "references.json" {
			names = append(names, e.Name())
		}
	}
	return names
}

func write(t testing.TB, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestImportRootfs(t *testing.T) {
	s := openStore(t)
	raw := archive(t, dir("./"), dir("./usr"), file("./usr/f", "x"))
	img, err := s.Import(t.Context(), write(t, raw), "mine", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"usr": "drwxr-xr-x", "usr/f": "-rw-r--r-- x"}
	if diff := cmp.Diff(want, content(t, img)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(raw)
	_ = z.Close()
	same, err := s.Import(t.Context(), write(t, zipped.Bytes()), "other:v1", nil)
	if err != nil || same.Digest != img.Digest {
		t.Errorf("the same in gzip: %+v, %v", same, err)
	}
	for _, reference := range []string{"mine", "mine:latest", "other:v1", img.Digest} {
		if got, err := s.Find(reference); err != nil || got.Digest != img.Digest || got.Root != img.Root {
			t.Errorf("%s: %+v, %v", reference, got, err)
		}
	}
	if _, err := s.Find("other"); !errors.Is(err, ErrNotFound) {
		t.Errorf("other: %v", err)
	}
	list, err := s.List()
	if err != nil || len(list) != 1 || !cmp.Equal(list[0].References, []string{"mine:latest", "other:v1"}) {
		t.Errorf("listed %+v, %v", list, err)
	}
	if names := left(t, s); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
}

func TestImportReplacesName(t *testing.T) {
	s := openStore(t)
	first, err := s.Import(t.Context(), write(t, archive(t, file("usr/f", "1"))), "mine", nil)
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Import(t.Context(), write(t, archive(t, file("usr/f", "2"))), "mine", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Find("mine"); err != nil || got.Digest != second.Digest {
		t.Errorf("found %+v, %v", got, err)
	}
	// Runners may have it.
	if _, err := s.Find(first.Digest); err != nil {
		t.Error(err)
	}
}

func TestFailedImport(t *testing.T) {
	s := openStore(t)
	good := archive(t, file("usr/f", "x"))
	if _, err := s.Import(t.Context(), write(t, good), "mine", nil); err != nil {
		t.Fatal(err)
	}
	before, _ := s.List()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx     context.Context
		content []byte
	}{
		"hostile":   {t.Context(), archive(t, file("usr/f", "x"), file("../x", "x"))},
		"cut short": {t.Context(), good[:700]},
		"no tar":    {t.Context(), bytes.Repeat([]byte("x"), 2000)},
		"empty":     {t.Context(), archive(t)},
		"cancelled": {ctx, archive(t, file("usr/f", "y"))},
	} {
		if _, err := s.Import(c.ctx, write(t, c.content), "mine", nil); err == nil {
			t.Errorf("%s: imported", name)
		}
	}
	if _, err := s.Import(t.Context(), filepath.Join(t.TempDir(), "none"), "mine", nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	after, err := s.List()
	if diff := cmp.Diff(before, after); diff != "" || err != nil {
		t.Errorf("changed: %v (-want +got):\n%s", err, diff)
	}
	if names := left(t, s); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
}

// TestLostImport: what an import left that was killed goes with the next one,
// and what one left that lives does not.
func TestLostImport(t *testing.T) {
	s := openStore(t)
	lost := filepath.Join(s.dir, "new-lost")
	if err := os.MkdirAll(filepath.Join(lost, "root", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	living := filepath.Join(s.dir, "new-living")
	if err := os.MkdirAll(living, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(living)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Import(t.Context(), write(t, archive(t, file("usr/f", "x"))), "mine", nil); err != nil {
		t.Fatal(err)
	}
	if names := left(t, s); !cmp.Equal(names, []string{"new-living"}) {
		t.Errorf("left: %v", names)
	}
}

func TestRemove(t *testing.T) {
	s := openStore(t)
	img, err := s.Import(t.Context(), write(t, archive(t, file("usr/f", "x"))), "mine", nil)
	if err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(filepath.Dir(s.bundles), "runner")
	if err := os.MkdirAll(bundle, 0o700); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`{"annotations": {%q: %q}}`, Annotation, img.Digest)
	if err := os.WriteFile(filepath.Join(bundle, BundleConfig), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, reference := range []string{"mine", img.Digest} {
		if err := s.Remove(reference); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "runner") {
			t.Errorf("%s, in use: %v", reference, err)
		}
	}
	if _, err := s.Import(t.Context(), write(t, archive(t, file("usr/f", "x"))), "other", nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove("other"); err != nil {
		t.Errorf("one name of two: %v", err)
	}
	if _, err := s.Find("mine"); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(bundle); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove("mine"); err != nil {
		t.Error(err)
	}
	if err := s.Remove("mine"); !errors.Is(err, ErrNotFound) {
		t.Errorf("removed twice: %v", err)
	}
	if list, err := s.List(); err != nil || len(list) != 0 || len(left(t, s)) != 0 {
		t.Errorf("still there: %v, %v, %v", list, left(t, s), err)
	}
}

// testLayers is an image of two layers that share a file.
func testLayers(t testing.TB) v1.Image {
	t.Helper()
	var layers []v1.Layer
	for _, raw := range [][]byte{
		archive(t, dir("usr"), file("usr/f", "1"), file("usr/g", "1")),
		archive(t, file("usr/f", "2"), file("usr/.wh.g", "")),
	} {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil })
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, l)
	}
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Env: []string{"A=b"}, Labels: map[string]string{"l": "m"}, Volumes: map[string]struct{}{"/data/": {}, "/": {}}}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

func check(t testing.TB, img *Image, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"usr": "drwxr-xr-x", "usr/f": "-rw-r--r-- 2", "data": "drwxr-xr-x"}
	if diff := cmp.Diff(want, content(t, img)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got := Image{Env: img.Env, Labels: img.Labels, Volumes: img.Volumes}
	if diff := cmp.Diff(Image{Env: []string{"A=b"}, Labels: map[string]string{"l": "m"}, Volumes: []string{"/data"}}, got); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

func TestArchives(t *testing.T) {
	image := testLayers(t)
	docker := filepath.Join(t.TempDir(), "docker.tar")
	if err := tarball.WriteToFile(docker, name.MustParseReference("x:y"), image); err != nil {
		t.Fatal(err)
	}
	oci := t.TempDir()
	p, err := layout.Write(oci, empty.Index)
	if err == nil {
		err = p.AppendImage(image)
	}
	if err != nil {
		t.Fatal(err)
	}
	packed := write(t, tarOf(t, oci))
	for name, path := range map[string]string{"docker": docker, "directory": oci, "oci": packed} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t)
			var told int64
			img, err := s.Import(t.Context(), path, "mine", func(n int64) { told = n })
			check(t, img, err)
			if told == 0 {
				t.Error("no progress")
			}
			if again, err := s.Import(t.Context(), path, "again", nil); err != nil || again.Digest != img.Digest {
				t.Errorf("again: %v, %v", again, err)
			}
		})
	}
}

// tarOf packs a directory.
func tarOf(t testing.TB, root string) []byte {
	t.Helper()
	return archive(t, func(w *tar.Writer) error { return w.AddFS(os.DirFS(root)) })
}

func TestPull(t *testing.T) {
	s := openStore(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	image := testLayers(t)
	ref, err := name.ParseReference(host + "/some/runner:v1")
	if err == nil {
		err = remote.Write(ref, image)
	}
	if err != nil {
		t.Fatal(err)
	}
	img, err := s.Pull(t.Context(), ref.String(), "", nil)
	check(t, img, err)
	hash, _ := image.Digest()
	if img.Digest != hash.String() {
		t.Errorf("digest %s, want %s", img.Digest, hash)
	}
	byDigest := host + "/some/runner@" + hash.String()
	if img, err = s.Pull(t.Context(), byDigest, "", nil); err != nil || img.Digest != hash.String() {
		t.Errorf("by digest: %v, %v", img, err)
	}
	if found, err := s.Find(byDigest); err != nil || found.Digest != hash.String() {
		t.Errorf("found by digest: %v, %v", found, err)
	}
	if _, err := s.Pull(t.Context(), host+"/some/other:v1", "", nil); err == nil {
		t.Error("pulled what is not there")
	}
	remote.DefaultTransport.(interface{ CloseIdleConnections() }).CloseIdleConnections()
}

// wrong is an image whose layer is not what its configuration says.
type wrong struct{ v1.Image }

func (w wrong) Layers() ([]v1.Layer, error) {
	layers, err := w.Image.Layers()
	layers[1] = static.NewLayer([]byte("not it"), types.OCIUncompressedLayer)
	return layers, err
}

func TestWrongContent(t *testing.T) {
	s := openStore(t)
	image := testLayers(t)
	hash, _ := image.Digest()
	if _, err := s.add(t.Context(), layered{image: wrong{image}, hash: hash}, "mine", nil); err == nil {
		t.Error("imported another layer than was promised")
	}
	if _, err := s.add(t.Context(), layered{image: image, hash: hashOf([]byte("x"))}, "mine", nil); err == nil || !strings.Contains(err.Error(), "was promised") {
		t.Errorf("imported by a wrong digest: %v", err)
	}
	other, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	other = other.DeepCopy()
	other.Architecture = "z80"
	foreign, err := mutate.ConfigFile(image, other)
	if err != nil {
		t.Fatal(err)
	}
	hash, _ = foreign.Digest()
	if _, err := s.add(t.Context(), layered{image: foreign, hash: hash}, "mine", nil); err == nil || !strings.Contains(err.Error(), "linux/z80") {
		t.Errorf("another machine's image: %v", err)
	}
	if names := left(t, s); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
}
