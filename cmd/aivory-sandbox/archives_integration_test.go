//go:build integration

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/storage/s3/s3test"
)

// awkwardTree makes what a workspace may hold and archives tend to stumble over.
const awkwardTree = `
import os, socket
os.chdir("/workspace")
def put(name, content, mode=0o644):
    if os.path.dirname(name): os.makedirs(os.path.dirname(name), exist_ok=True)
    with open(name, "wb") as f: f.write(content)
    os.chmod(name, mode)
put("plain.txt", b"plain"); put("empty", b""); put("run.sh", b"#!/bin/sh\n", 0o755); put("shut", b"shut", 0); put("read-only", b"r", 0o444)
put("a b\n\t'\"$*", b"odd"); put(b"not-utf8-\xff\xfe", b"bytes"); put("-rf", b"dash")
put("数据/" + "汉" * 85 + "/" + "字" * 80 + ".csv", b"long CJK names"); put("deep/" + "/".join(["d" * 100] * 15) + "/file", b"deep")
put("random.bin", os.urandom(6 << 20)); put("outputs/out.txt", b"out")
os.link("plain.txt", "hard"); os.link("plain.txt", "deep/hard too")
os.symlink("plain.txt", "link"); os.symlink("nowhere", "dangling"); os.symlink("/etc/passwd", "outward"); os.symlink("../../etc", "upward"); os.symlink(".", "loop")
os.mkfifo("fifo", 0o640); socket.socket(socket.AF_UNIX).bind("sock")
put("locked/inside/x", b"x"); os.chmod("locked/inside", 0o111); os.chmod("locked", 0); os.mkdir("void", 0o700)
with open("sparse", "wb") as f:
    f.write(b"begin"); f.seek(20 << 20); f.write(b"middle"); f.truncate(64 << 20)
os.utime("plain.txt", (1 << 30, 1 << 30))
put("uploads/in.txt", b"in"); put("skills/s/skill.md", b"skill")
print("made")
`

// describeTree prints a tree entry by entry, with all that an archive carries of
// it. TOP stands for its root.
const describeTree = `
import hashlib, os, stat
def look(path, name):
    s = os.lstat(path); mode = stat.S_IMODE(s.st_mode)
    if stat.S_ISLNK(s.st_mode):
        return print(name, "->", os.readlink(path))
    row = [name, stat.filemode(s.st_mode)]
    if stat.S_ISDIR(s.st_mode):
        print(*row)
        os.chmod(path, 0o700)
        for child in sorted(os.listdir(path)): look(path + b"/" + child, name + b"/" + child)
        os.chmod(path, mode)
        return
    row += [s.st_nlink, int(s.st_mtime)]
    if stat.S_ISREG(s.st_mode):
        os.chmod(path, 0o600)
        with open(path, "rb") as f: row += [s.st_size, hashlib.sha256(f.read()).hexdigest()]
        os.chmod(path, mode)
    print(*row)
for child in sorted(os.listdir(TOP)):
    if child not in (b"uploads", b"skills"): look(TOP + b"/" + child, child)
`

// tree describes the workspace of a session.
func (s testSession) tree(t *testing.T) string {
	t.Helper()
	r := s.run(t, strings.ReplaceAll(describeTree, "TOP", `b"/workspace"`), time.Minute)
	if r.Exit != 0 || r.Stderr != "" {
		t.Fatalf("the tree cannot be described: %v", r)
	}
	return r.Stdout
}

// command runs a program on this machine and returns its output.
func command(t *testing.T, stdin io.Reader, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = stdin, &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", name, err, &stderr)
	}
	return string(out)
}

// withoutSocket takes the one thing out of a description that no archive carries.
func withoutSocket(t *testing.T, tree string) string {
	t.Helper()
	var kept []string
	for line := range strings.Lines(tree) {
		if !strings.HasPrefix(line, "b'sock' ") {
			kept = append(kept, line)
		}
	}
	if n := strings.Count(tree, "\n"); n < 40 || len(kept) != n-1 {
		t.Fatalf("the tree has %d entries, without the socket %d", n, len(kept))
	}
	return strings.Join(kept, "")
}

func TestAwkwardWorkspaceComesBack(t *testing.T) {
	for _, name := range append([]string{"local"}, s3test.Names...) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var store objectStore
			if name == "local" {
				store = localStore(t, dir)
			} else {
				store = openStore(t, "", s3Block(s3test.Start(t, name).NewBucket(t), ""))
			}
			service := startService(t, "SANDBOX_LOCAL_STORAGE_DIR="+dir, "SANDBOX_POOL_SIZE=0", "SANDBOX_MAX_OUTPUT_BYTES=1048576")
			same := func(what, got, want string) {
				t.Helper()
				if got != want {
					t.Errorf("%s:\n%s", what, lineDiff(want, got))
				}
			}
			s := service.open(t, "awkward", 600, store.block)
			if r := s.run(t, awkwardTree, time.Minute); r.Stdout != "made\n" {
				t.Fatal(r)
			}
			want := withoutSocket(t, s.tree(t))
			s.close(t, "{}")
			if log := service.log.since(0); !strings.Contains(log, "left out") || !strings.Contains(log, "sock") {
				t.Errorf("the log does not say what was left out:\n%s", log)
			}

			s = service.open(t, "awkward", 600, store.block)
			same("what came back", s.tree(t), want)
			s.prints(t, `import os; print(os.listdir("/workspace/uploads"), os.listdir("/workspace/skills"))`, "[] []\n")
			s.close(t, "{}")

			// Ours, unpacked by plain tar.
			host := t.TempDir()
			command(t, store.fetch(t, "awkward"), "tar", "xzpf", "-", "-C", host)
			// On the host the files may be root's, and the description is of names,
			// modes, times and content.
			same("what plain tar unpacks", command(t, nil, "python3", "-c", strings.ReplaceAll(describeTree, "TOP", fmt.Sprintf("%q.encode()", host))), want)

			// Theirs, made by plain tar, with inputs in it all the same.
			for _, input := range []string{"uploads/planted", "skills/planted"} {
				if err := os.MkdirAll(filepath.Join(host, input), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for stem, args := range map[string][]string{"plain": {"--exclude=./uploads", "--exclude=./skills"}, "inputs": nil} {
				archive := command(t, nil, "tar", append(append([]string{"czf", "-"}, args...), "-C", host, ".")...)
				store.plant(t, stem, strings.NewReader(archive))
				s = service.open(t, stem, 600, store.block)
				same("what plain tar made", s.tree(t), want)
				s.prints(t, `import os; print(os.listdir("/workspace/uploads"), os.listdir("/workspace/skills"))`, "[] []\n")
				s.close(t, `{"discard":true}`)
			}
		})
	}
}

// prints fails the test unless a program prints just that.
func (s testSession) prints(t *testing.T, code, want string) {
	t.Helper()
	if r := s.run(t, code, 0); r.Exit != 0 || r.Stdout != want || r.Stderr != "" {
		t.Errorf("not %q but %v", want, r)
	}
}
