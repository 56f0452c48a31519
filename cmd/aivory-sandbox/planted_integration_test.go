//go:build integration

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// entry is a member of an archive that a test makes.
type entry struct {
	tar.Header
	content string
}

// archive packs entries as they are, whatever they say.
func archive(entries ...entry) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	a := tar.NewWriter(z)
	var err error
	for _, e := range entries {
		if e.Typeflag == 0 {
			e.Typeflag, e.Size = tar.TypeReg, int64(len(e.content))
		}
		if e.Mode == 0 {
			e.Mode = 0o777
		}
		err = errors.Join(err, a.WriteHeader(&e.Header))
		_, werr := io.WriteString(a, e.content)
		err = errors.Join(err, werr)
	}
	if err := errors.Join(err, a.Close(), z.Close()); err != nil {
		panic(err)
	}
	return out.Bytes()
}

func reg(name string) entry { return entry{tar.Header{Name: name}, "planted"} }

func link(kind byte, name, to string) entry {
	return entry{tar.Header{Typeflag: kind, Name: name, Linkname: to}, ""}
}

// bomb is an archive of a file of 10 GiB, all of one byte. Gzip members follow
// each other in it, so that making it is no work.
func bomb(t *testing.T, fill byte) []byte {
	t.Helper()
	const size, piece = 10 << 30, 64 << 20
	var out bytes.Buffer
	pack := func(content []byte) []byte {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		if _, err := z.Write(content); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return packed.Bytes()
	}
	var head bytes.Buffer
	if err := tar.NewWriter(&head).WriteHeader(&tar.Header{Name: "bomb", Size: size, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	out.Write(pack(head.Bytes()))
	one := pack(bytes.Repeat([]byte{fill}, piece))
	for range size / piece {
		out.Write(one)
	}
	out.Write(pack(make([]byte, 1024)))
	return out.Bytes()
}

// TestPlantedArchives restores what somebody put under the key who meant harm.
func TestPlantedArchives(t *testing.T) {
	dir := t.TempDir()
	store := localStore(t, dir)
	s := newState(t)
	p := s.fork(t, buildService(t), "SANDBOX_LOCAL_STORAGE_DIR="+dir, "SANDBOX_WORKSPACE_SIZE=64m", "SANDBOX_TMPFS_SIZE=16m", "SANDBOX_ARCHIVE_TIMEOUT_S=40")
	p.healthy(t)

	mark := "planted-" + randomHex()[:12]
	good := reg("good.txt")
	whole := archive(good, reg("second.txt"))
	var members [2]bytes.Buffer
	{
		plain, err := io.ReadAll(must(gzip.NewReader(bytes.NewReader(whole))))
		if err != nil {
			t.Fatal(err)
		}
		for i, part := range [][]byte{plain[:700], plain[700:]} {
			z := gzip.NewWriter(&members[i])
			_, _ = z.Write(part) // into memory
			_ = z.Close()
		}
	}
	// broken is what the log says of an archive that cannot be restored.
	const broken = "cannot restore"
	// around looks at all that no archive may change: what lies outside the
	// workspace, the inputs, and what kinds of files there are.
	const around = `
import os, stat
for name in ("uploads", "skills", "outputs"):
    print(name, stat.S_ISDIR(os.lstat("/workspace/" + name).st_mode), name == "outputs" or os.listdir("/workspace/" + name))
modes = {name: os.lstat("/workspace/" + name).st_mode for name in os.listdir("/workspace")}
print([name for name, mode in modes.items() if mode & 0o6000 or stat.S_IFMT(mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)])
seen = []
for top in ("/tmp", "/home", "/dev", "/var", "/run", "/etc", "/usr/local", "/opt", "/root", "/"):
    for d, dirs, files in os.walk(top):
        if top == "/": dirs.clear()
        seen += [os.path.join(d, n) for n in dirs + files if "aivory-cell" not in n and not d.startswith(("/dev/fd", "/dev/pts")) and n not in ("stdin",)]
print(len(seen), *[n for n in seen if MARK in n or n.startswith(("/tmp", "/home/sandbox", "/dev/shm"))], sep="\n")
`
	look := strings.ReplaceAll(around, "MARK", `"`+mark+`"`)
	clean := p.open(t, "clean", 600, store.block)
	want := clean.run(t, look, 0)
	if want.Exit != 0 || !strings.HasPrefix(want.Stdout, "uploads True []\nskills True []\noutputs True True\n[]\n") {
		t.Fatal(want)
	}
	clean.close(t, `{"discard":true}`)
	warm := p.open(t, "warm", 600, store.block)
	warm.store(t, "x", "x")
	warm.close(t, "{}")
	idle := p.status(t, "VmRSS")
	etc := must(os.ReadFile("/etc/passwd"))

	for _, tt := range []struct {
		name  string
		tar   []byte
		holds []string // files of the session afterwards, in any case these
		says  string   // in the log
	}{
		{"absolute", archive(reg("/tmp/"+mark), reg("/workspace/"+mark), reg("//tmp/"+mark), good), []string{"good.txt"}, "left out"},
		{"upwards", archive(reg("../tmp/"+mark), reg("a/../../tmp/"+mark), reg("../../../../../../tmp/"+mark), reg(".."), good), []string{"good.txt"}, "left out"},
		{"through a symlink", archive(link(tar.TypeSymlink, "out", "/tmp"), reg("out/"+mark), link(tar.TypeSymlink, "up", "../tmp"), reg("./up/"+mark),
			link(tar.TypeSymlink, "file", "/tmp/"+mark), reg("file"), good), []string{"good.txt"}, ""},
		{"through two symlinks", archive(link(tar.TypeSymlink, "a", "."), link(tar.TypeSymlink, "a/b", ".."), reg("b/tmp/"+mark), reg("a/b/tmp/"+mark), good), []string{"good.txt"}, ""},
		{"inputs elsewhere", archive(link(tar.TypeSymlink, "uploads", "/tmp"), reg("uploads/"+mark), link(tar.TypeSymlink, "skills", "."), reg("skills/"+mark), good), []string{"good.txt"}, ""},
		{"inputs", archive(reg("uploads/a"), reg("./skills/b"), reg("x/../uploads/c"), reg("uploads"), good), []string{"good.txt"}, ""},
		{"hard link outside", archive(link(tar.TypeLink, "hard", "/etc/passwd"), reg("hard"), link(tar.TypeLink, "hard2", "../etc/passwd"), link(tar.TypeLink, "hard3", "nowhere"), good), []string{"good.txt"}, "left out"},
		{"hard link through a symlink", archive(link(tar.TypeSymlink, "etc", "/etc"), link(tar.TypeLink, "hard", "etc/passwd"), good), []string{"good.txt"}, "left out"},
		{"devices", archive(entry{tar.Header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, ""},
			entry{tar.Header{Name: "disk", Typeflag: tar.TypeBlock, Devmajor: 8}, ""}, good), []string{"good.txt"}, "left out"},
		{"set-uid", archive(entry{tar.Header{Name: "suid", Typeflag: tar.TypeReg, Mode: 0o6777, Size: 1}, "x"}, good), []string{"good.txt", "suid"}, ""},
		{"names", archive(reg(strings.Repeat("n", 300)), reg(strings.Repeat("d/", 3000)+"f"), reg("."), reg("a\x01b"), good), []string{"good.txt"}, ""},
		{"two gzip members", append(members[0].Bytes(), members[1].Bytes()...), []string{"good.txt", "second.txt"}, "workspace restored"},
		{"something after the end", append(bytes.Clone(whole), bytes.Repeat([]byte("trailing"), 1000)...), nil, ""},
		{"cut short", whole[:len(whole)-20], nil, broken},
		{"garbage", bytes.Repeat([]byte("garbage "), 100_000), nil, broken},
		{"gzip of garbage", func() []byte {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			_, _ = z.Write(bytes.Repeat([]byte("garbage "), 100_000))
			_ = z.Close()
			return b.Bytes()
		}(), nil, broken},
		{"nothing", nil, nil, broken},
		{"bomb", bomb(t, 'x'), nil, broken},
		{"bomb of zeros", bomb(t, 0), nil, ""},
	} {
		if tt.name == "bomb of zeros" && !soak { // a minute
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			key := "planted-" + strings.ReplaceAll(tt.name, " ", "-")
			store.plant(t, key, bytes.NewReader(tt.tar))
			from := p.output.written()
			var session testSession
			p.bounded(t, "restoring", idle, func() { session = p.open(t, key, 600, store.block) })
			if r := session.run(t, look, 0); r.Stdout != want.Stdout || r.Exit != 0 {
				t.Errorf("it changed what it must not: %s%s", lineDiff(want.Stdout, r.Stdout), r.Stderr)
			}
			files := session.list(t)
			for _, name := range tt.holds {
				if _, ok := files[name]; !ok {
					t.Errorf("%s is missing: %v", name, files)
				}
			}
			session.store(t, "new.txt", "new")
			if got := session.read(t, "new.txt"); string(got) != "new" {
				t.Errorf("a new file holds %q", got)
			}
			if tt.says == broken {
				// It is not overwritten without a copy: somebody may still want it.
				session.close(t, "{}")
				i := slices.IndexFunc(store.keys(t), func(k string) bool { return strings.HasPrefix(k, "test/workspaces/"+key+".kept-") })
				if i < 0 {
					t.Fatalf("what could not be restored is gone: %q", store.keys(t))
				}
				kept := must(os.ReadFile(filepath.Join(dir, store.keys(t)[i])))
				if !bytes.Equal(kept, tt.tar) {
					t.Errorf("%d bytes were kept of %d", len(kept), len(tt.tar))
				}
				session = p.open(t, key, 600, store.block)
				if got := session.read(t, "new.txt"); string(got) != "new" {
					t.Errorf("the new file came back with %q", got)
				}
			}
			session.close(t, `{"discard":true}`)
			if log := p.output.since(from); !strings.Contains(log, tt.says) {
				t.Errorf("the log does not say %q:\n%s", tt.says, log)
			}
		})
	}
	// Other tests make users; what would be written there is the whole file's content.
	root, _, _ := bytes.Cut(etc, []byte("\n"))
	if now := must(os.ReadFile("/etc/passwd")); !bytes.HasPrefix(now, root) {
		t.Errorf("/etc/passwd was changed: %.200q", now)
	}
	for _, path := range []string{"/tmp/" + mark, "/workspace/" + mark} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s on the host: %v", path, err)
		}
	}
	for range 100 {
		if ids, err := s.containers(); err == nil && len(ids) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	p.terminate(t)
	if ids, err := s.containers(); err != nil || len(ids) != 0 {
		t.Errorf("left: %q, %v", ids, err)
	}
}
