package runnertest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// awkward makes a tree of all that a workspace can hold.
const awkward = `
import os
os.chdir('/workspace')
def put(name, content=b'', mode=0o644):
    if os.path.dirname(name): os.makedirs(os.path.dirname(name), exist_ok=True)
    with open(name, 'wb') as f: f.write(content)
    os.chmod(name, mode)
put('plain', b'content'); put('empty'); put('script', b'#!', 0o755); put('shut', b'secret', 0)
put('d/e/f/g', b'deep'); put('a b \n\t\'"$*', b'odd'); put('数据/😀.csv', b'unicode'); put('long/' + 'n' * 255, b'long')
put('deep/' + '/'.join(['d' * 100] * 20) + '/file', b'long path'); put(b'bad-\xff\xfe', b'not UTF-8')
put('random', os.urandom(3 << 20)); put('zeros', bytes(2 << 20))
os.symlink('plain', 'link'); os.symlink('missing', 'broken'); os.symlink('/etc/passwd', 'absolute'); os.symlink(b'to-\xff', b'from-\xfe')
os.link('plain', 'hard'); os.link('plain', 'd/hard too'); os.mkfifo('fifo', 0o600); os.mkdir('nothing', 0); os.mkdir('sticky', 0o755)
put('locked/inside/x', b'x'); os.chmod('locked/inside', 0o111); os.chmod('locked', 0o444)
with open('sparse', 'wb') as f:
    for at in (0, 5 << 20, 9 << 20): f.seek(at); f.write(b'data at %d' % at)
    f.truncate(32 << 20)
with open('hole', 'wb') as f: f.truncate(64 << 20)
os.utime('plain', (1 << 30, 1 << 30)); os.utime('empty', (0, 0))
put('uploads/x', b'x'); put('skills/x', b'x'); put('outputs/x', b'x')
`

// describe prints a tree entry by entry, with all that an archive carries.
const describe = `
import hashlib, os, stat
def look(path, name):
    s = os.lstat(path); m = stat.S_IMODE(s.st_mode)
    row = [name, oct(s.st_mode)]
    if stat.S_ISDIR(s.st_mode):
        os.chmod(path, 0o700)
        for child in sorted(os.listdir(path)): look(path + b'/' + child, name + b'/' + child)
        os.chmod(path, m)
    else:
        row += [s.st_nlink, int(s.st_mtime)]
    if stat.S_ISLNK(s.st_mode): row = [name, os.readlink(path)]
    if stat.S_ISREG(s.st_mode):
        os.chmod(path, 0o600)
        with open(path, 'rb') as f: digest = hashlib.file_digest(f, 'sha256').hexdigest() if hasattr(hashlib, 'file_digest') else hashlib.sha256(f.read()).hexdigest()
        os.chmod(path, m)
        row += [s.st_size, digest] + [s.st_blocks * 512 < s.st_size // 2] * (name in (b'sparse', b'hole'))
    print(*row)
for child in sorted(os.listdir(b'/workspace')):
    if child not in (b'uploads', b'skills'): look(b'/workspace/' + child, child)
`

// wipe removes all that awkward made.
const wipe = `
import subprocess
subprocess.run('chmod -R u+rwx /workspace 2>/dev/null; rm -rf /workspace/* /workspace/.[!.]*; mkdir -p /workspace/outputs /workspace/uploads /workspace/skills', shell=True, check=True)
`

func testArchive(t *testing.T, s *suite) {
	b := s.sandbox(t)
	tree := func(t *testing.T) string {
		t.Helper()
		o := b.run(t, describe, func(r *runner.ExecRequest) { r.MaxOutputBytes = 1 << 20 })
		if o.ExitCode != 0 {
			t.Fatalf("cannot look at the tree: %s", o.err)
		}
		return o.out
	}
	same := func(t *testing.T, got, want string) {
		t.Helper()
		g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
		for i := range max(len(g), len(w)) {
			var a, b string
			if i < len(g) {
				a = g[i]
			}
			if i < len(w) {
				b = w[i]
			}
			if a != b {
				t.Errorf("entry %d:\n got %.300s\nwant %.300s", i, a, b)
				return
			}
		}
	}
	if o := b.run(t, awkward); o.ExitCode != 0 {
		t.Fatal(o.err)
	}
	want := tree(t)
	archive, stats := b.pack(t)
	t.Logf("%d bytes: %+v", len(archive), stats)
	if stats.Left != 0 || stats.Files < 20 || len(archive) > 8<<20 {
		t.Errorf("packed %d bytes, %+v", len(archive), stats)
	}

	t.Run("RoundTrip", func(t *testing.T) {
		s.skip(t)
		b.run(t, wipe)
		got, err := b.Unpack(t.Context(), bytes.NewReader(archive))
		if err != nil || got.Left != 0 || got.Files != stats.Files || got.Bytes != stats.Bytes {
			t.Fatalf("unpacked %+v, packed %+v, %v", got, stats, err)
		}
		same(t, tree(t), want)
		b.prints(t, "import os; print(os.listdir('/workspace/uploads'), os.listdir('/workspace/skills'))", "[] []\n")
	})
	t.Run("PlainTarReadsOurs", func(t *testing.T) {
		s.skip(t)
		b.run(t, wipe)
		if said := b.command(t, base64.StdEncoding.EncodeToString(archive)+"\n", "sh", "-c",
			`head -n 1 | base64 -d | tar xzpf - -C /workspace 2>/dev/null; echo $?`); said != "0\n" {
			t.Fatalf("tar: %s", said)
		}
		same(t, tree(t), want)
	})
	t.Run("OursReadsPlainTar", func(t *testing.T) {
		s.skip(t)
		// Plain tar cannot enter what is shut, and does not see holes.
		b.run(t, "import subprocess; subprocess.run('cd /workspace; chmod -R u+rwx locked nothing shut; rm hole', shell=True, check=True)")
		want := tree(t)
		made := b.command(t, "", "sh", "-c", "tar czf - --exclude=./uploads --exclude=./skills -C /workspace .")
		b.run(t, wipe)
		got, err := b.Unpack(t.Context(), strings.NewReader(made))
		if err != nil || got.Left != 0 {
			t.Fatalf("unpacked %+v, %v", got, err)
		}
		same(t, tree(t), want)
	})
	t.Run("TooLarge", func(t *testing.T) {
		s.skip(t)
		var w bytes.Buffer
		b.put(t, "noise", string(noise(1<<20)))
		if _, err := b.Pack(t.Context(), &w, 1<<20); !errors.Is(err, runner.ErrTooLarge) || w.Len() > 1<<20 {
			t.Errorf("%d bytes, %v", w.Len(), err)
		}
		b.works(t)
	})
	t.Run("Broken", func(t *testing.T) {
		s.skip(t)
		for name, body := range map[string]string{
			"nothing": "", "garbage": "garbage", "half": string(archive[:len(archive)/2]), "not gzip": strings.Repeat("\x00", 10240),
		} {
			if _, err := b.Unpack(t.Context(), strings.NewReader(body)); !errors.Is(err, runner.ErrBadArchive) {
				t.Errorf("%s: %v", name, err)
			}
			b.works(t)
		}
		gone := errors.New("the bucket went away")
		if _, err := b.Unpack(t.Context(), io.MultiReader(bytes.NewReader(archive[:100]), failing{gone})); !errors.Is(err, gone) {
			t.Errorf("a body that fails: %v", err)
		}
		b.works(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(50*time.Millisecond, func() { cancel(gone) })
		if _, err := b.Unpack(ctx, slowly{}); !errors.Is(err, gone) {
			t.Errorf("cancelled: %v", err)
		}
		b.works(t)
	})
	t.Run("Bomb", func(t *testing.T) {
		s.skip(t)
		b.run(t, wipe)
		// Zeros are a hole, however many; anything else has to fit.
		size := int64(soak(10, 2)) << 30
		if got, err := b.Unpack(t.Context(), bomb(t, 0, size)); err != nil || got.Files != 1 {
			t.Errorf("zeros: %+v, %v", got, err)
		}
		b.prints(t, "import os; s = os.statvfs('/workspace'); print(os.stat('/workspace/bomb').st_size, s.f_bfree > 0.9 * s.f_blocks)", fmt.Sprintf("%d True\n", size))
		b.run(t, wipe)
		_, err := b.Unpack(t.Context(), bomb(t, 'x', 2*s.opts.Limits.WorkspaceBytes))
		var f *fault.Error
		if !errors.As(err, &f) || f.Detail != runner.DetailNoSpace {
			t.Errorf("more than fits: %v", err)
		}
		b.prints(t, "import os; print(os.path.exists('/workspace/bomb'))", "False\n")
	})
	t.Run("Hostile", func(t *testing.T) {
		s.skip(t)
		b.run(t, wipe)
		var w bytes.Buffer
		z := gzip.NewWriter(&w)
		a := tar.NewWriter(z)
		for _, h := range []tar.Header{
			{Name: "/tmp/absolute", Size: 1},
			{Name: "../tmp/up", Size: 1},
			{Name: "tmp", Typeflag: tar.TypeSymlink, Linkname: "/tmp"},
			{Name: "tmp/through", Size: 1},
			{Name: "tmp", Typeflag: tar.TypeDir, Mode: 0o777},
			{Name: "tmp/again", Size: 1},
			{Name: "hard", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"},
			{Name: "hard2", Typeflag: tar.TypeLink, Linkname: "../etc/passwd"},
			{Name: "device", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
			{Name: "uploads/planted", Size: 1},
			{Name: "./skills/planted", Size: 1},
			{Name: "outputs", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
			{Name: "suid", Size: 1, Mode: 0o6755},
			{Name: "good", Size: 1, Mode: 0o644},
		} {
			if err := a.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if h.Size > 0 {
				_, _ = a.Write([]byte("x"))
			}
		}
		if err := errors.Join(a.Close(), z.Close()); err != nil {
			t.Fatal(err)
		}
		got, err := b.Unpack(t.Context(), &w)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", got)
		b.prints(t, `
import os
print(sorted(n for n in os.listdir('/tmp') if not n.startswith('aivory-cell')), sorted(os.listdir('/workspace')))
print(os.listdir('uploads'), os.listdir('skills'), os.path.isdir('outputs'), oct(os.stat('suid').st_mode))
`, "[] ['good', 'outputs', 'skills', 'suid', 'tmp', 'uploads']\n[] [] True 0o100755\n")
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// noise is what does not compress.
func noise(n int) []byte {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// bomb is an archive of one file of one byte many times over.
func bomb(t *testing.T, fill byte, size int64) io.Reader {
	r, w := io.Pipe()
	go func() {
		z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
		a := tar.NewWriter(z)
		err := a.WriteHeader(&tar.Header{Name: "bomb", Size: size, Mode: 0o644})
		block := bytes.Repeat([]byte{fill}, 1<<20)
		for n := int64(0); n < size && err == nil; n += int64(len(block)) {
			_, err = a.Write(block[:min(size-n, int64(len(block)))])
		}
		w.CloseWithError(errors.Join(err, a.Close(), z.Close()))
	}()
	t.Cleanup(func() { _ = r.Close() })
	return r
}
