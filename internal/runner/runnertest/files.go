package runnertest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

func testFiles(t *testing.T, s *suite) {
	b := s.sandbox(t)
	for _, test := range []part{
		{"Paths", paths}, {"Links", links}, {"Modes", modes}, {"Closed", closedDirectories}, {"Space", space},
		{"Large", large}, {"List", list}, {"Reset", reset}, {"Cancel", cancelledFiles},
	} {
		test.run(t, b)
	}
}

func paths(t *testing.T, b *sandbox) {
	b.run(t, `
import os
os.chdir('/workspace')
os.makedirs('dir'); os.makedirs('outputs/o', exist_ok=True)
os.symlink('/etc', 'etc'); os.symlink('..', 'up'); os.symlink('dir', 'in'); os.symlink('/workspace', 'root')
os.symlink('missing', 'dangling'); os.symlink('loop', 'loop'); os.symlink('/etc/passwd', 'passwd'); os.symlink('dir/a', 'twice')
os.mkfifo('fifo'); open('file', 'w').write('x')
os.symlink('../workspacefoo', 'beside'); os.symlink('/proc/self/root/etc/passwd', 'proc')
`)
	long := strings.Repeat("n", 255)
	for _, path := range []string{
		"uploads/a b .txt ", "数据/😀.csv", "plain", "./dot", "a1/./b", "missing/../c", "p/q/r/s/t/u/v/w/deep", "/workspace/abs", "/workspace//double",
		" lead", "trail\n", "-dash", "--", "~", "%2e%2e", "C:\\x", "$(id)", "a\tb", "e\u0301", "\u00e9", long, "in/through", "root/again", "dangling", "twice",
	} {
		content := "content of " + path
		b.put(t, path, content)
		if got := b.get(t, path); got != content {
			t.Errorf("%.60q: got %q", path, got)
		}
	}
	b.prints(t, `
import os
os.chdir('/workspace')
print(open('missing').read(), open('dir/through').read(), open('dir/a').read(), os.readlink('twice'))
for p in ('p/q', 'plain'): s = os.stat(p); print(oct(s.st_mode), s.st_uid, s.st_gid)
print(sorted(os.listdir('uploads')), [len(os.listdir(b'.')) > 20, os.path.lexists('c')])
print([n for n in os.listdir() if n.startswith('.')])
`, "content of dangling content of in/through content of twice dir/a\n0o40755 1000 1000\n0o100644 1000 1000\n['a b .txt ']"+" [True, True]\n[]\n")

	for _, c := range []struct {
		path        string
		write, read fault.Kind
	}{
		{"", fault.Invalid, fault.Invalid},
		{"../etc/x", fault.Invalid, fault.Invalid},
		{"/workspace/../etc/x", fault.Invalid, fault.Invalid},
		{"/workspacefoo/x", fault.Invalid, fault.Invalid},
		{"//workspace/x", fault.Invalid, fault.Invalid},
		{"/", fault.Invalid, fault.Invalid},
		{"/etc/passwd", fault.Invalid, fault.Invalid},
		{"nul\x00", fault.Invalid, fault.Invalid},
		{"dir/", fault.Invalid, fault.NotFound},
		{"new/", fault.Invalid, fault.NotFound},
		{".", fault.Invalid, fault.NotFound},
		{"dir", fault.Invalid, fault.NotFound},
		{"fifo", fault.Invalid, fault.NotFound},
		{"file/below", fault.Invalid, fault.Invalid},
		{"etc/passwd", fault.Invalid, fault.Invalid},
		{"etc/new", fault.Invalid, fault.Invalid},
		{"passwd", fault.Invalid, fault.Invalid},
		{"proc", fault.Invalid, fault.Invalid},
		{"up/x", fault.Invalid, fault.Invalid},
		{"beside", fault.Invalid, fault.Invalid},
		{"loop", fault.Invalid, fault.NotFound},
		{"nothing/here", 255, fault.NotFound},
		{long + "n", fault.Invalid, fault.Invalid},
		{strings.Repeat("d/", 3000) + "x", fault.Invalid, fault.Invalid},
	} {
		if c.write != 255 {
			if err := b.Write(t.Context(), c.path, strings.NewReader("x"), 1); !fault.Is(err, c.write) {
				t.Errorf("write %.60q: %v", c.path, err)
			}
		}
		if _, _, err := b.Read(t.Context(), c.path); !fault.Is(err, c.read) {
			t.Errorf("read %.60q: %v", c.path, err)
		}
	}
}

func links(t *testing.T, b *sandbox) {
	b.put(t, "links/old", "old")
	b.run(t, "import os; os.chdir('/workspace/links'); os.link('old', 'hard'); os.symlink('old', 'soft')")
	b.put(t, "links/hard", "new")
	if got := b.get(t, "links/old"); got != "old" {
		t.Errorf("through a hard link: %q", got)
	}
	b.put(t, "links/soft", "newer")
	b.prints(t, "import os; os.chdir('/workspace/links'); print(open('old').read(), open('hard').read(), os.readlink('soft'))", "newer new old\n")
}

func modes(t *testing.T, b *sandbox) {
	b.put(t, "script", "one")
	for _, mode := range []string{"0o755", "0o600", "0o444", "0"} {
		b.run(t, "import os; os.chmod('/workspace/script', "+mode+")")
		b.put(t, "script", "content "+mode)
		if got := b.get(t, "script"); got != "content "+mode {
			t.Errorf("mode %s: got %q", mode, got)
		}
		b.prints(t, "import os; print(os.stat('/workspace/script').st_mode & 0o7777 == "+mode+")", "True\n")
	}
}

// closedDirectories are those that a program closed to its own user.
func closedDirectories(t *testing.T, b *sandbox) {
	b.put(t, "closed/sub/file", "old")
	b.run(t, "import os; os.chmod('/workspace/closed/sub', 0o555); os.chmod('/workspace/closed', 0)")
	b.put(t, "closed/sub/file", "new")
	if got := b.get(t, "closed/sub/file"); got != "new" {
		t.Errorf("got %q", got)
	}
	b.prints(t, "import os; s = os.stat('/workspace/closed'); print(oct(s.st_mode)); os.chmod('/workspace/closed', 0o755)", "0o40000\n")
	for _, mode := range []string{"0", "0o500", "0o300"} {
		b.run(t, "import os; os.chmod('/workspace', "+mode+")")
		b.put(t, "after", mode)
		b.prints(t, "import os; print(os.getcwd(), open('after').read())", "/workspace "+mode+"\n")
		b.command(t, "", "chmod", strings.TrimPrefix(mode, "0o"), "/workspace")
		b.reopen()
		b.works(t)
	}
}

func space(t *testing.T, b *sandbox) {
	b.put(t, "full/old", "old")
	size := b.suite.opts.Limits.WorkspaceBytes
	err := b.Write(t.Context(), "full/old", io.LimitReader(zeros{}, size+1), size+1)
	var f *fault.Error
	if !errors.As(err, &f) || f.Detail != runner.DetailNoSpace {
		t.Errorf("more than there is: %v", err)
	}
	if got := b.get(t, "full/old"); got != "old" {
		t.Errorf("the old file is %q", got)
	}
	b.prints(t, `
import os
try:
    with open('/workspace/filler', 'wb', buffering=0) as f:
        while True: f.write(bytes(1 << 16))
except OSError as e: print(e.errno)
`, "28\n")
	if err := b.Write(t.Context(), "full/new", io.LimitReader(zeros{}, 1<<20), 1<<20); !errors.As(err, &f) || f.Detail != runner.DetailNoSpace {
		t.Errorf("into a full workspace: %v", err)
	}
	b.reopen() // a full workspace is no reason not to start
	b.prints(t, `
import os
print(os.path.exists('/workspace/full/new'), [n for n in os.listdir('/workspace') if n.startswith('.')])
os.unlink('/workspace/filler')
`, "False []\n")
	b.put(t, "full/new", "x")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func large(t *testing.T, b *sandbox) {
	const size = 39 << 20
	content := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	start := time.Now()
	if err := b.Write(t.Context(), "large", bytes.NewReader(content), size); err != nil {
		t.Fatal(err)
	}
	put := time.Since(start)
	body, n, err := b.Read(t.Context(), "large")
	if err != nil || n != size {
		t.Fatal(n, err)
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, body); err != nil {
		t.Error(err)
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
	if want := sha256.Sum256(content); !bytes.Equal(hash.Sum(nil), want[:]) {
		t.Error("other bytes came back")
	}
	t.Logf("39 MiB: put %v, get %v", put, time.Since(start)-put)
	// A reader that stops early.
	body, _, err = b.Read(t.Context(), "large")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(body, make([]byte, 100)); err != nil {
		t.Error(err)
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
	b.run(t, "import os; os.unlink('/workspace/large')")
}

func list(t *testing.T, b *sandbox) {
	b.run(t, `
import os, shutil, subprocess
subprocess.run('chmod -R u+rwx /workspace; rm -rf /workspace/* /workspace/.[!.]*', shell=True, check=True)
os.chdir('/workspace')
os.makedirs('1/2/3/4/5/6')
open('1/2/3/4/5/six', 'w').write('66'); open('1/2/3/4/5/6/seven', 'w')
open('名\n\t', 'w'); open(b'\xff', 'w'); os.symlink('1', 'link'); os.mkfifo('fifo'); os.mkdir('shut', 0)
os.symlink('/etc/passwd', 'passwd')
`)
	files, err := b.List(t.Context(), 500, 6)
	want := []runner.FileInfo{{Path: "1/2/3/4/5/six", Size: 2}, {Path: "名\n\t"}, {Path: "\ufffd"}}
	if err != nil || !slices.Equal(files, want) {
		t.Errorf("listed %+v, %v", files, err)
	}
	b.run(t, "import os; os.mkdir('/workspace/many')\nfor i in range(3000): open('/workspace/many/%04d' % i, 'w')")
	if files, err := b.List(t.Context(), 500, 6); err != nil || len(files) != 500 || files[0] != want[0] || files[499].Path != "many/0498" {
		t.Errorf("listed %d files, %v", len(files), err)
	}
	b.run(t, "for i in range(60000): os.mkdir('/workspace/many/%s-%05d' % ('d' * 100, i))", func(r *runner.ExecRequest) {
		r.Code = append([]byte("import os\n"), r.Code...)
	})
	start := time.Now()
	if files, err := b.List(t.Context(), 500, 6); err != nil || len(files) > 500 {
		t.Errorf("listed %d files of a tree without end, %v", len(files), err)
	}
	t.Logf("a listing cut short: %v", time.Since(start))
	b.run(t, "import shutil; shutil.rmtree('/workspace/many')")
}

func reset(t *testing.T, b *sandbox) {
	b.put(t, "uploads/a/b", "x")
	b.put(t, "skills/x", "x")
	b.put(t, "downloads/kept", "x")
	b.run(t, `
import os
os.chdir('/workspace/uploads')
os.makedirs('shut/inside'); open('shut/inside/x', 'w'); os.chmod('shut/inside', 0); os.chmod('shut', 0)
os.symlink('/workspace/downloads', 'link'); os.mkfifo('fifo')
for _ in range(3000):
    os.mkdir('d' * 50); os.chdir('d' * 50)
os.chdir('/workspace')
import shutil
shutil.rmtree('skills'); os.symlink('downloads', 'skills')
`)
	check := func() {
		t.Helper()
		if err := b.ResetInputs(t.Context()); err != nil {
			t.Error(err)
		}
		b.prints(t, `
import os, stat
for d in ('uploads', 'skills', 'downloads'): print(oct(os.lstat('/workspace/' + d).st_mode), os.listdir('/workspace/' + d))
`, "0o40755 []\n0o40755 []\n0o40755 ['kept']\n")
	}
	check()
	for _, code := range []string{"os.rmdir('uploads')", "os.rmdir('uploads'); open('uploads', 'w')", "os.rmdir('uploads'); os.mkfifo('uploads')", "os.chmod('uploads', 0)"} {
		b.run(t, "import os; "+code)
		check()
	}
}

func cancelledFiles(t *testing.T, b *sandbox) {
	gone := errors.New("client went away")
	b.put(t, "kept", "old")
	for _, after := range []time.Duration{0, time.Millisecond, 30 * time.Millisecond, 200 * time.Millisecond} {
		b.works(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(after, func() { cancel(gone) })
		const size = 128 << 20
		body := io.LimitReader(slowly{}, size)
		if err := b.Write(ctx, "kept", body, size); !errors.Is(err, gone) {
			t.Errorf("cancelled after %v: %v", after, err)
		}
		if got := b.get(t, "kept"); got != "old" {
			t.Errorf("cancelled after %v: the file is %.20q", after, got)
		}
	}
	b.prints(t, "import os; print([n for n in os.listdir('/workspace') if n.startswith('.')])", "[]\n")
	if err := b.Write(t.Context(), "kept", strings.NewReader("short"), 100); err == nil {
		t.Error("a short body was taken")
	}
	if got := b.get(t, "kept"); got != "old" {
		t.Errorf("after a short body the file is %.20q", got)
	}
	b.put(t, "read", strings.Repeat("x", 20<<20))
	ctx, cancel := context.WithCancelCause(t.Context())
	body, _, err := b.Read(ctx, "read")
	if err != nil {
		t.Fatal(err)
	}
	cancel(gone)
	if _, err := io.Copy(io.Discard, body); !errors.Is(err, gone) {
		t.Errorf("reading: %v", err)
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
}

// slowly gives zeros, a little at a time.
type slowly struct{}

func (slowly) Read(p []byte) (int, error) {
	time.Sleep(5 * time.Millisecond)
	return zeros{}.Read(p)
}
