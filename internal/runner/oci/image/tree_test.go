package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// entry is a tar header with content; mode 0 is 0644, or 0755 for directories.
func entry(kind byte, name, rest string, mode ...int64) func(*tar.Writer) error {
	h := &tar.Header{Typeflag: kind, Name: name, Mode: 0o644, Uid: os.Getuid(), Gid: os.Getgid(), ModTime: time.Unix(1_000_000_000, 0), Format: tar.FormatPAX}
	if kind == tar.TypeDir {
		h.Mode = 0o755
	}
	if len(mode) > 0 {
		h.Mode = mode[0]
	}
	switch kind {
	case tar.TypeReg:
		h.Size = int64(len(rest))
	case tar.TypeSymlink, tar.TypeLink:
		h.Linkname = rest
	}
	return func(w *tar.Writer) error {
		err := w.WriteHeader(h)
		if err == nil && kind == tar.TypeReg {
			_, err = w.Write([]byte(rest))
		}
		return err
	}
}

func file(name, content string, mode ...int64) func(*tar.Writer) error {
	return entry(tar.TypeReg, name, content, mode...)
}
func dir(name string, mode ...int64) func(*tar.Writer) error {
	return entry(tar.TypeDir, name, "", mode...)
}
func symlink(name, to string) func(*tar.Writer) error { return entry(tar.TypeSymlink, name, to) }
func hardlink(name, to string) func(*tar.Writer) error {
	return entry(tar.TypeLink, name, to)
}

func archive(t testing.TB, entries ...func(*tar.Writer) error) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, write := range entries {
		if err := write(w); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// unpack applies layers to a new directory beside a file that must not change.
func unpack(t testing.TB, layers ...[]byte) (root string, err error) {
	t.Helper()
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("untouched"), 0o644); err != nil {
		t.Fatal(err)
	}
	root = filepath.Join(outside, "a", "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	tr, err := newTree(t.Context(), root, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	for _, l := range layers {
		if err = tr.apply(bytes.NewReader(l), true); err != nil {
			break
		}
	}
	if err == nil {
		err = tr.finishDirs()
	}
	if b, readErr := os.ReadFile(filepath.Join(outside, "secret")); readErr != nil || string(b) != "untouched" {
		t.Errorf("outside of the image: %q, %v", b, readErr)
	}
	for _, d := range []string{outside, filepath.Join(outside, "a")} {
		entries, _ := os.ReadDir(d)
		for _, e := range entries {
			if e.Name() != "secret" && e.Name() != "a" && e.Name() != "root" {
				t.Errorf("outside of the image there is %s", e.Name())
			}
		}
	}
	return root, err
}

// look lists a tree: a line each with mode, name and content or target.
func look(t testing.TB, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		what := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			what += " " + string(b)
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			what += " " + target
		}
		found[strings.TrimPrefix(path, root+"/")] = what
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestLayers(t *testing.T) {
	for name, c := range map[string]struct {
		layers [][]func(*tar.Writer) error
		want   map[string]string
	}{
		"plain": {
			[][]func(*tar.Writer) error{{dir("./"), dir("./a", 0o1777), file("./a/f", "x", 0o4755), symlink("l", "/a/f"), hardlink("./h", "./a/f")}},
			map[string]string{"a": "dtrwxrwxrwx", "a/f": "urwxr-xr-x x", "l": "Lrwxrwxrwx /a/f", "h": "urwxr-xr-x x"},
		},
		"missing directories": {
			[][]func(*tar.Writer) error{{file("a/b/c", "x")}},
			map[string]string{"a": "drwxr-xr-x", "a/b": "drwxr-xr-x", "a/b/c": "-rw-r--r-- x"},
		},
		"replaced": {
			[][]func(*tar.Writer) error{
				{dir("a"), file("a/f", "x"), file("b", "x"), symlink("c", "a"), dir("d")},
				{file("a", "y"), dir("b"), file("b/g", "y"), dir("c"), file("c/h", "y"), file("d/i", "y")},
			},
			map[string]string{"a": "-rw-r--r-- y", "b": "drwxr-xr-x", "b/g": "-rw-r--r-- y", "c": "drwxr-xr-x", "c/h": "-rw-r--r-- y", "d": "drwxr-xr-x", "d/i": "-rw-r--r-- y"},
		},
		"whiteouts": {
			[][]func(*tar.Writer) error{
				{dir("a"), file("a/f", "x"), file("a/g", "x"), dir("b"), file("b/f", "x"), file("c", "x")},
				{file("a/.wh.f", ""), file(".wh.b", ""), file(".wh.none", ""), file(".wh..wh.plnk", "")},
			},
			map[string]string{"a": "drwxr-xr-x", "a/g": "-rw-r--r-- x", "c": "-rw-r--r-- x"},
		},
		"opaque": {
			[][]func(*tar.Writer) error{
				{dir("a"), file("a/f", "x"), dir("a/d"), file("a/d/e", "x"), dir("a/k"), file("a/k/old", "x")},
				{dir("a"), file("a/new", "y"), file("a/k/new", "y"), file("a/.wh..wh..opq", ""), file("a/later", "y")},
			},
			map[string]string{"a": "drwxr-xr-x", "a/new": "-rw-r--r-- y", "a/later": "-rw-r--r-- y", "a/k": "drwxr-xr-x", "a/k/new": "-rw-r--r-- y"},
		},
		"a link to what a lower layer has": {
			[][]func(*tar.Writer) error{{file("a", "x")}, {hardlink("b", "a"), file(".wh.a", "")}},
			map[string]string{"b": "-rw-r--r-- x"},
		},
		"through an absolute link inside": {
			[][]func(*tar.Writer) error{{dir("run"), dir("var"), symlink("var/run", "/run")}, {file("var/run/x", "y")}},
			map[string]string{"run": "drwxr-xr-x", "run/x": "-rw-r--r-- y", "var": "drwxr-xr-x", "var/run": "Lrwxrwxrwx /run"},
		},
		"devices and pipes are left out": {
			[][]func(*tar.Writer) error{{entry(tar.TypeChar, "c", ""), entry(tar.TypeBlock, "b", ""), entry(tar.TypeFifo, "p", ""), file("f", "x")}},
			map[string]string{"f": "-rw-r--r-- x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var layers [][]byte
			for _, l := range c.layers {
				layers = append(layers, archive(t, l...))
			}
			root, err := unpack(t, layers...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, look(t, root)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTimesAndLinks(t *testing.T) {
	root, err := unpack(t, archive(t, dir("a"), file("a/f", "x"), hardlink("a/h", "a/f"), symlink("a/l", "f")))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "a/f", "a/h", "a/l"} {
		info, err := os.Lstat(filepath.Join(root, name))
		if err != nil || !info.ModTime().Equal(time.Unix(1_000_000_000, 0)) {
			t.Errorf("%s: %v, %v", name, info.ModTime(), err)
		}
	}
	f, _ := os.Lstat(filepath.Join(root, "a/f"))
	h, _ := os.Lstat(filepath.Join(root, "a/h"))
	if !os.SameFile(f, h) {
		t.Error("the hard link is a copy")
	}
}

// TestHostileLayers: whatever the outcome, unpack looks that nothing outside has
// changed.
func TestHostileLayers(t *testing.T) {
	long := strings.Repeat("n", 300)
	deep := strings.Repeat("d/", 3000)
	for name, c := range map[string]struct {
		layer []func(*tar.Writer) error
		fails bool
	}{
		"dots":                        {[]func(*tar.Writer) error{file("../secret", "evil")}, true},
		"dots in the middle":          {[]func(*tar.Writer) error{file("a/../../../secret", "evil")}, true},
		"absolute":                    {[]func(*tar.Writer) error{file("/secret", "inside")}, false},
		"link up, then through":       {[]func(*tar.Writer) error{symlink("up", "../.."), file("up/secret", "evil")}, false},
		"absolute link, then through": {[]func(*tar.Writer) error{symlink("out", os.TempDir()), file("out/x", "evil")}, true},
		"link as the file":            {[]func(*tar.Writer) error{symlink("f", "../../secret"), file("f", "evil")}, false},
		"chmod through a link":        {[]func(*tar.Writer) error{symlink("f", "../../secret"), entry(tar.TypeDir, "f", "", 0o777)}, false},
		"hard link out":               {[]func(*tar.Writer) error{hardlink("h", "../../secret"), file("h", "evil")}, true},
		"hard link through a link":    {[]func(*tar.Writer) error{symlink("up", "../.."), hardlink("h", "up/secret"), file("h", "evil")}, true},
		"hard link to a link":         {[]func(*tar.Writer) error{symlink("l", "../../secret"), hardlink("h", "l"), file("h/x", "evil")}, true},
		"hard link to a directory":    {[]func(*tar.Writer) error{dir("d"), hardlink("h", "d")}, true},
		"whiteout of dots":            {[]func(*tar.Writer) error{file(".wh...", "")}, true},
		"whiteout of a dot":           {[]func(*tar.Writer) error{file("a/.wh..", "")}, true},
		"whiteout of nothing":         {[]func(*tar.Writer) error{file(".wh.", "")}, true},
		"whiteout through a link":     {[]func(*tar.Writer) error{symlink("up", "../.."), file("up/.wh.secret", "")}, false},
		"opaque through a link":       {[]func(*tar.Writer) error{symlink("up", "../.."), file("up/.wh..wh..opq", "")}, false},
		"magic link":                  {[]func(*tar.Writer) error{symlink("m", "/proc/self/root"), file("m/secret", "x")}, true},
		"a loop of links":             {[]func(*tar.Writer) error{symlink("a", "b"), symlink("b", "a"), file("a/x", "x")}, true},
		"a file as a directory":       {[]func(*tar.Writer) error{file("f", "x"), file("f/g", "x")}, true},
		"the root as a file":          {[]func(*tar.Writer) error{file(".", "x")}, true},
		"the root as a link":          {[]func(*tar.Writer) error{symlink(".", "..")}, true},
		"a long name":                 {[]func(*tar.Writer) error{file(long, "x")}, true},
		"a deep name":                 {[]func(*tar.Writer) error{file(deep+"x", "x")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			root, err := unpack(t, archive(t, c.layer...))
			if (err != nil) != c.fails {
				t.Errorf("%v; there is %v", err, look(t, root))
			}
		})
	}
}

func TestBrokenArchive(t *testing.T) {
	whole := archive(t, file("a", strings.Repeat("x", 2000)), file("b", "y"))
	for _, n := range []int{1, 300, 512, 1000, 2600} {
		if _, err := unpack(t, whole[:n]); err == nil {
			t.Errorf("%d bytes of %d were an image", n, len(whole))
		}
	}
}

func TestBounds(t *testing.T) {
	tr := &tree{ctx: t.Context(), read: maxBytes}
	if _, err := (bounded{tr, strings.NewReader("x")}).Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("one byte too many: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := (bounded{&tree{ctx: ctx}, strings.NewReader("x")}).Read(make([]byte, 1)); fmt.Sprint(err) != "enough" {
		t.Errorf("cancelled: %v", err)
	}
}

func TestOwners(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root gives files away")
	}
	owned := func(w *tar.Writer) error {
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o6711, Uid: 1234, Gid: 4321})
	}
	root, err := unpack(t, archive(t, owned))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(filepath.Join(root, "f"))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 1234 || st.Gid != 4321 || st.Mode&0o7777 != 0o6711 {
		t.Errorf("owned by %d:%d with mode %o", st.Uid, st.Gid, st.Mode)
	}
}
