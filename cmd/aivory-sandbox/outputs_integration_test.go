//go:build integration

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// gives checks which files a run gave back, by name and content.
func gives(want ...artifact) func(*testing.T, testSession, result) {
	return func(t *testing.T, _ testSession, r result) {
		t.Helper()
		same := len(r.Files) == len(want)
		for i := 0; same && i < len(want); i++ {
			same = r.Files[i].Name == want[i].Name && string(r.Files[i].Data) == string(want[i].Data)
		}
		if !same {
			t.Errorf("the files are not %q\n%v", want, r)
		}
		if strings.Contains(string(r.raw), "cm9vdDp4") || strings.Contains(string(r.raw), "root:x") {
			t.Errorf("/etc/passwd leaks: %v", r)
		}
	}
}

func file(name, content string) artifact { return artifact{Name: name, Data: []byte(content)} }

// said wants the remark about output files that were left out.
func said(n int) matcher { return like(fmt.Sprintf(`^\[sandbox\] skipped %d output file`, n)) }

func TestOutputsThatLie(t *testing.T) {
	const quick = 10 * time.Second
	s := sharedService(t).session(t)
	for _, p := range []program{
		{name: "symlink to a file", code: `import os; os.symlink("/etc/passwd", "/workspace/outputs/x.txt")`, check: gives()},
		{name: "symlink to a directory", code: `import os; os.symlink("/etc", "/workspace/outputs/dir")`, check: gives()},
		{name: "symlink to itself", code: `import os; os.symlink("loop", "/workspace/outputs/loop")`, check: gives()},
		{name: "symlink to an output", code: `import os; open("/workspace/a.txt", "w").write("a"); os.symlink("/workspace/a.txt", "/workspace/outputs/b.txt")`, check: gives()},
		{name: "FIFO", code: `import os; os.mkfifo("/workspace/outputs/fifo.txt")`, check: gives(), within: quick},
		{name: "socket", code: `import socket; socket.socket(socket.AF_UNIX).bind("/workspace/outputs/socket.txt")`, check: gives()},
		{name: "outputs is a symlink", code: `import os, shutil; shutil.rmtree("/workspace/outputs"); os.symlink("/etc", "/workspace/outputs")`, check: gives(), within: quick},
		{name: "after that", code: `import os
if os.path.islink("/workspace/outputs"): os.unlink("/workspace/outputs")
os.makedirs("/workspace/outputs", exist_ok=True)
open("/workspace/outputs/again.txt", "w").write("again")`, check: gives(file("again.txt", "again"))},
		{name: "outputs is a file", code: `import shutil; shutil.rmtree("/workspace/outputs"); open("/workspace/outputs", "w").write("x")`, check: gives()},
		{name: "outputs is gone", code: `import os; os.path.isfile("/workspace/outputs") and os.unlink("/workspace/outputs"); os.path.isdir("/workspace/outputs") and os.rmdir("/workspace/outputs")`, check: gives()},
		{name: "outputs is back", code: `import os; os.makedirs("/workspace/outputs", exist_ok=True); open("/workspace/outputs/back.txt", "w").write("back")`, check: gives(file("back.txt", "back"))},
		{name: "mode 000", code: `import os; open("/workspace/outputs/closed.txt", "w").write("closed"); os.chmod("/workspace/outputs/closed.txt", 0)`, err: whatever, check: givenOrSaid("closed.txt", "closed")},
		{name: "directory of mode 000", code: `import os; os.mkdir("/workspace/outputs/d"); open("/workspace/outputs/d/in.txt", "w").write("in"); os.chmod("/workspace/outputs/d", 0)`, err: whatever, check: func(t *testing.T, s testSession, r result) {
			givenOrSaid("in.txt", "in")(t, s, r)
			if r := s.run(t, `import os; os.chmod("/workspace/outputs/d", 0o755)`, 0); r.Exit != 0 {
				t.Error(r)
			}
		}},
		{name: "hard link to an older file", code: `import os; os.link("/workspace/a.txt", "/workspace/outputs/hard.txt")`, err: whatever, check: givenOrSaid("hard.txt", "a")},
		{name: "empty file", code: `open("/workspace/outputs/empty.txt", "w").close()`, check: gives(file("empty.txt", ""))},
		{name: "30 MiB", code: `open("/workspace/outputs/big.bin", "wb").write(bytes(30 << 20))`, err: said(1), check: gives(), within: quick},
		{name: "exactly the limit", code: "import os; os.unlink('/workspace/outputs/big.bin'); open('/workspace/outputs/fits.bin', 'wb').write(bytes(20 << 20))", check: func(t *testing.T, _ testSession, r result) {
			if len(r.Files) != 1 || len(r.Files[0].Data) != 20<<20 {
				t.Errorf("not given back whole: %v", r)
			}
		}},
		{name: "10 GiB, sparse", code: `import os; os.unlink("/workspace/outputs/fits.bin"); open("/workspace/outputs/sparse.bin", "wb").truncate(10 << 30)`, err: said(1), check: gives(), within: quick},
		{name: "a name that is not UTF-8", code: `import os; os.unlink("/workspace/outputs/sparse.bin"); open(b"/workspace/outputs/\xff\xfe.txt", "w").write("bytes")`, err: whatever, check: func(t *testing.T, _ testSession, r result) {
			if !(len(r.Files) == 1 && string(r.Files[0].Data) == "bytes") && !strings.Contains(r.Stderr, "[sandbox]") {
				t.Errorf("neither given nor said: %v", r)
			}
		}},
		{name: "names with separators in them", code: `
for i, n in enumerate(("tab\there.txt", "line\nbreak.txt", "cr\rhere.txt", "nel\x85.txt", "ls\u2028.txt", "back\\slash.txt", "quote'\".txt", " space .txt ", "中文😀.txt", "-rf.txt", "$(x).txt")):
    open("/workspace/outputs/" + n, "w").write(str(i))
`, check: func(t *testing.T, _ testSession, r result) {
			var names []string
			for _, f := range r.Files {
				names = append(names, f.Name)
			}
			for i, n := range []string{"tab\there.txt", "line\nbreak.txt", "cr\rhere.txt", "nel\u0085.txt", "ls\u2028.txt", "back\\slash.txt", "quote'\".txt", " space .txt ", "中文😀.txt", "-rf.txt", "$(x).txt"} {
				at := slices.Index(names, n)
				if at < 0 || string(r.Files[at].Data) != strconv.Itoa(i) {
					t.Errorf("%q is not among them, or with other content: %v", n, r)
				}
			}
		}},
		{name: "a directory with a newline in its name", code: `
import os
os.makedirs("/workspace/outputs/x\n/etc"); open("/workspace/outputs/x\n/etc/passwd", "w").write("harmless")`, check: gives(file("passwd", "harmless"))},
		{name: "deep", code: `
import os
path = "/workspace/outputs"
for i in range(100):
    path += "/e"
    os.mkdir(path)
open(path + "/deep.txt", "w").write("deep")`, check: gives(file("deep.txt", "deep"))},
		{name: "deeper than a path may be", err: whatever, within: quick, code: `
import os
os.chdir("/workspace/outputs")
for i in range(60):
    os.mkdir("d" * 200); os.chdir("d" * 200)
open("deepest.txt", "w").write("x")`, check: func(t *testing.T, s testSession, r result) {
			gives()(t, s, r)
			// From the bottom up, as no path leads there.
			if r := s.run(t, `
import os
os.chdir("/workspace/outputs")
for i in range(60): os.chdir("d" * 200)
os.unlink("deepest.txt")
for i in range(60): os.chdir(".."); os.rmdir("d" * 200)`, 0); r.Exit != 0 {
				t.Error(r)
			}
		}},
		{name: "a file that another process keeps changing", code: `
import os
if os.fork() == 0:
    os.setsid()
    while True:
        with open("/workspace/outputs/moving.txt", "w") as f: f.write("m" * 1000)
import time; time.sleep(.5)`, err: whatever, within: quick, check: func(t *testing.T, _ testSession, r result) {
			if len(r.Files) != 1 || strings.Trim(string(r.Files[0].Data), "m") != "" {
				t.Errorf("not one file of m: %v", r)
			}
		}},
		{name: "a file that was there and did not change", code: `print(open("/workspace/outputs/moving.txt").read()[:0])`, out: is("\n"), check: gives()},
		{name: "another file of the same size and time in its place", code: `
import os
p = "/workspace/outputs/back.txt"
st = os.stat(p); open(p + ".new", "w").write("dlog"); os.utime(p + ".new", ns=(st.st_atime_ns, st.st_mtime_ns)); os.rename(p + ".new", p)`, check: gives(file("back.txt", "dlog"))},
	} {
		t.Run(p.name, func(t *testing.T) { s.try(t, p) })
	}
}

// givenOrSaid wants a regular file to be given back whole, or stderr to say
// that something was not.
func givenOrSaid(name, content string) func(*testing.T, testSession, result) {
	return func(t *testing.T, _ testSession, r result) {
		t.Helper()
		given := slices.ContainsFunc(r.Files, func(f artifact) bool { return f.Name == name && string(f.Data) == content })
		if !given && !strings.Contains(r.Stderr, "[sandbox]") {
			t.Errorf("%s is neither given back nor is it said that it is not: %v", name, r)
		}
	}
}

func TestManyOutputs(t *testing.T) {
	s := sharedService(t).session(t)
	t.Run("10,000 files", func(t *testing.T) {
		s.try(t, program{within: 10 * time.Second, err: said(9980), code: `
for i in range(10000):
    open(f"/workspace/outputs/f{i:05}.txt", "w").write("x" * 1024)`,
			check: func(t *testing.T, _ testSession, r result) {
				if len(r.Files) != 20 {
					t.Fatalf("%d files: %v", len(r.Files), r)
				}
				for i, f := range r.Files {
					if f.Name != fmt.Sprintf("f%05d.txt", i) || len(f.Data) != 1024 || f.Type != "text/plain" {
						t.Errorf("file %d is %s of type %s with %d bytes", i, f.Name, f.Type, len(f.Data))
					}
				}
			}})
		if n := len(s.list(t)); n != 500 {
			t.Errorf("the listing has %d entries", n)
		}
		s.try(t, program{code: "import shutil, os; shutil.rmtree('/workspace/outputs'); os.mkdir('/workspace/outputs')"})
	})
	t.Run("one name in two folders", func(t *testing.T) {
		s.try(t, program{code: `
import os
for d in "b", "a":
    os.mkdir("/workspace/outputs/" + d); open(f"/workspace/outputs/{d}/same.txt", "w").write(d)`, check: gives(file("same.txt", "a"), file("same.txt", "b"))})
	})
	t.Run("total size", func(t *testing.T) {
		s.try(t, program{err: said(1), code: `
for i in range(4):
    open(f"/workspace/outputs/t{i}.bin", "wb").write(bytes([i]) * (15 << 20))`, check: func(t *testing.T, _ testSession, r result) {
			if len(r.Files) != 3 {
				t.Errorf("%d files: %v", len(r.Files), r)
			}
		}})
	})
	t.Run("no word of it when stderr is full", func(t *testing.T) {
		r := s.run(t, `
import sys
sys.stderr.write("e" * 100000)
open("/workspace/outputs/t9.bin", "wb").write(bytes(30 << 20))`, 0)
		if !regexp.MustCompile(`(?s)^e+.*truncated, stderr exceeded 32KB.*\[sandbox\] skipped 1 output file`).MatchString(r.Stderr) {
			t.Errorf("the remarks: %v", r)
		}
		s.alive(t)
	})
	t.Run("listing", func(t *testing.T) {
		s.try(t, program{code: `
import os, shutil
shutil.rmtree("/workspace/outputs"); os.mkdir("/workspace/outputs")
path = "/workspace"
for i in range(1, 9):
    path += f"/l{i}"
    os.mkdir(path); open(path + "/f.txt", "w").write("x" * i)
os.symlink("/etc/passwd", "/workspace/link")
os.mkfifo("/workspace/fifo")`})
		got := s.list(t)
		want := map[string]int64{"l1/f.txt": 1, "l1/l2/f.txt": 2, "l1/l2/l3/f.txt": 3, "l1/l2/l3/l4/f.txt": 4, "l1/l2/l3/l4/l5/f.txt": 5}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the listing is %v, wanted %v", got, want)
		}
	})
}
