package runnertest

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// clean empties outputs, and makes it a directory again.
const clean = `
import os, shutil
p = '/workspace/outputs'
if os.path.islink(p) or os.path.isfile(p): os.unlink(p)
if os.path.isdir(p):
    os.chmod(p, 0o755)
    shutil.rmtree(p)
os.mkdir(p)
`

func testArtifacts(t *testing.T, s *suite) {
	b := s.sandbox(t)
	sub := func(name string, test func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			s.skip(t)
			b.run(t, clean)
			test(t)
			b.works(t)
		})
	}
	write := func(path, content string) string {
		return fmt.Sprintf("import os\np = '/workspace/outputs/' + %q\nos.makedirs(os.path.dirname(p), exist_ok=True)\nopen(p, 'w').write(%s)\n", path, content)
	}

	sub("Changed", func(t *testing.T) {
		o := b.run(t, write("b.txt", "'one'")+write("a/x.txt", "''")+write("a/名\n.txt", "'two'"))
		if !slices.Equal(o.paths(), []string{"a/x.txt", "a/名\n.txt", "b.txt"}) || string(o.files[2].content) != "one" {
			t.Errorf("new files: %q", o.paths())
		}
		if o := b.run(t, "import os; os.chmod('/workspace/outputs/b.txt', 0o600)"); len(o.files) != 0 {
			t.Errorf("nothing changed: %q", o.paths())
		}
		if o := b.run(t, write("b.txt", "'two'")); !slices.Equal(o.paths(), []string{"b.txt"}) {
			t.Errorf("same size, other content: %q", o.paths())
		}
		if o := b.run(t, "import os; os.utime('/workspace/outputs/b.txt', (5, 5))"); !slices.Equal(o.paths(), []string{"b.txt"}) {
			t.Errorf("another time: %q", o.paths())
		}
		if o := b.run(t, "import os; os.rename('/workspace/outputs/b.txt', '/workspace/outputs/c.txt')"); !slices.Equal(o.paths(), []string{"c.txt"}) {
			t.Errorf("renamed: %q", o.paths())
		}
		b.put(t, "outputs/put.txt", "by the service")
		if o := b.run(t, "pass"); len(o.files) != 0 {
			t.Errorf("written from outside: %q", o.paths())
		}
		b.reopen()
		if o := b.run(t, write("d.txt", "'x'")); !slices.Equal(o.paths(), []string{"d.txt"}) {
			t.Errorf("after a new connection: %q", o.paths())
		}
	})
	sub("Limits", func(t *testing.T) {
		o := b.run(t, "for i in range(25): open('/workspace/outputs/%02d' % i, 'w').write('x')")
		if len(o.files) != 20 || o.files[19].path != "19" || o.Skipped != 5 || o.Unreadable != 0 || o.Incomplete {
			t.Errorf("number: %d files, %d skipped", len(o.files), o.Skipped)
		}
		b.run(t, clean)
		o = b.run(t, `
for name, size in (('a', 1 << 20), ('b', (1 << 20) + 1), ('c', 1 << 20), ('d', 1 << 20), ('e', 0), ('f', 1)):
    open('/workspace/outputs/' + name, 'wb').write(b'x' * size)
`, func(r *runner.ExecRequest) { r.Artifacts.MaxFileBytes, r.Artifacts.MaxTotalBytes = 1<<20, 3<<20 })
		if !slices.Equal(o.paths(), []string{"a", "c", "d", "e"}) || o.Skipped != 2 {
			t.Errorf("sizes: %q, %d skipped", o.paths(), o.Skipped)
		}
		for _, f := range o.files {
			if len(bytes.Trim(f.content, "x")) != 0 {
				t.Errorf("%s has other content", f.path)
			}
		}
		b.run(t, clean)
		o = b.run(t, "for i in range(5): open('/workspace/outputs/%d' % i, 'w')", func(r *runner.ExecRequest) { r.Artifacts.MaxFiles = 0 })
		if len(o.files) != 0 || o.Skipped != 5 {
			t.Errorf("none allowed: %q, %d skipped", o.paths(), o.Skipped)
		}
	})
	sub("Lies", func(t *testing.T) {
		o := b.run(t, `
import os, socket
os.chdir('/workspace/outputs')
os.symlink('/etc/passwd', 'passwd'); os.symlink('/etc', 'etc'); os.symlink('missing', 'broken'); os.symlink('.', 'loop')
os.mkfifo('fifo')
socket.socket(socket.AF_UNIX).bind('socket')
open('closed', 'w').write('x'); os.chmod('closed', 0)
open('empty', 'w')
open('sparse', 'w').truncate(10 << 30)
open('large', 'wb').write(b'x' * (30 << 20))
open(b'\xff\xfe', 'w').write('name')
open('/workspace/older', 'w').write('older'); os.link('/workspace/older', 'hard')
os.makedirs('shut/inside'); open('shut/inside/x', 'w').write('x'); os.chmod('shut', 0)
`)
		if want := []string{"closed", "empty", "hard", "\ufffd\ufffd"}; !slices.Equal(o.paths(), want) {
			t.Errorf("got %q, want %q", o.paths(), want)
		}
		if o.Skipped != 2 || o.Unreadable != 0 || !o.Incomplete {
			t.Errorf("%d skipped, %d unreadable, incomplete %v", o.Skipped, o.Unreadable, o.Incomplete)
		}
		b.run(t, "import os; os.chmod('/workspace/outputs/shut', 0o755)")
	})
	sub("Replaced", func(t *testing.T) {
		for _, code := range []string{
			"os.symlink('/etc', p)", "os.symlink('/workspace', p)", "open(p, 'w').write('x')", "os.mkfifo(p)", "pass",
		} {
			o := b.run(t, clean+"os.rmdir(p)\n"+code)
			if len(o.files) != 0 || o.ExitCode != 0 {
				t.Errorf("%s: %q, stderr %q", code, o.paths(), o.err)
			}
			if code == "os.mkfifo(p)" {
				b.run(t, "import os; os.unlink('/workspace/outputs')")
			}
		}
		b.run(t, "import os; os.mkdir('/workspace/outputs')")
		if o := b.run(t, "import os; open('/workspace/outputs/x', 'w').write('x'); os.chmod('/workspace/outputs', 0)"); o.ExitCode != 0 {
			t.Errorf("closed outputs: %q", o.err)
		}
	})
	sub("Many", func(t *testing.T) {
		start := time.Now()
		o := b.run(t, `
for i in range(10000): open('/workspace/outputs/%05d' % i, 'w').write('x' * 1000)
for d in 'ab':
    import os; os.mkdir('/workspace/outputs/' + d); open('/workspace/outputs/%s/same' % d, 'w').write(d)
`)
		if len(o.files) != 20 || o.files[0].path != "00000" || o.files[19].path != "00019" || o.Skipped != 9982 {
			t.Errorf("%d files, %d skipped", len(o.files), o.Skipped)
		}
		t.Logf("10,000 files: %v, of which collecting %v", time.Since(start), o.Usage.Collect)
	})
	sub("Deep", func(t *testing.T) {
		o := b.run(t, `
import os
os.chdir('/workspace/outputs')
for _ in range(300):
    os.mkdir('d' * 100); os.chdir('d' * 100)
open('x', 'w').write('x')
open('/workspace/outputs/seen', 'w').write('x')
`)
		if !slices.Equal(o.paths(), []string{"seen"}) || !o.Incomplete {
			t.Errorf("%q, incomplete %v, stderr %q", o.paths(), o.Incomplete, o.err)
		}
		b.run(t, `
import os, subprocess
subprocess.run(['rm', '-rf', '/workspace/outputs'], check=True); os.mkdir('/workspace/outputs')`)
	})
	sub("Time", func(t *testing.T) {
		o := b.run(t, "for i in range(100): open('/workspace/outputs/%d' % i, 'w')", func(r *runner.ExecRequest) { r.Artifacts.MaxDuration = time.Nanosecond })
		if len(o.files)+o.Skipped > 100 || len(o.files) > 1 || !o.Incomplete {
			t.Errorf("%d files, %d skipped, incomplete %v", len(o.files), o.Skipped, o.Incomplete)
		}
	})
	sub("HalfRead", func(t *testing.T) {
		for range 3 {
			x, err := b.Exec(t.Context(), request("for i in range(5): open('/workspace/outputs/%d' % i, 'wb').write(b'x' * (2 << 20))"))
			if err != nil {
				t.Fatal(err)
			}
			if len(x.Files) != 5 {
				t.Fatalf("%d files", len(x.Files))
			}
			content, err := x.Next()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(content, make([]byte, 100000)); err != nil {
				t.Error(err)
			}
			if err := x.Close(); err != nil {
				t.Error(err)
			}
			b.works(t)
		}
	})
	sub("WhileItRan", func(t *testing.T) {
		// A process that goes on writing is gone before files are looked at.
		o := b.run(t, `
import os, time
if os.fork() == 0:
    os.setsid()
    n = 0
    while True:
        n += 1
        with open('/workspace/outputs/busy', 'wb') as f: f.write(b'x' * (n % 5000))
time.sleep(0.2)
`)
		if len(o.files) != 1 || strings.Trim(string(o.files[0].content), "x") != "" {
			t.Errorf("got %q", o.paths())
		}
		if o := b.run(t, "pass"); len(o.files) != 0 {
			t.Errorf("changed after the run: %q", o.paths())
		}
	})
}
