//go:build integration

package main

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"strings"
	"testing"
)

func TestPaths(t *testing.T) {
	s := sharedService(t).session(t)
	if r := s.run(t, `
import os
os.symlink("/tmp", "/workspace/out"); os.symlink("/etc/passwd", "/workspace/passwd"); os.symlink("/tmp/none", "/workspace/dangling")
os.symlink("..", "/workspace/up"); os.symlink("loop", "/workspace/loop"); os.symlink("uploads", "/workspace/inner")
open("/workspace/plain", "w").write("plain"); os.mkfifo("/workspace/fifo")
open("/workspace/uploads/one", "w").write("one"); os.link("/workspace/uploads/one", "/workspace/two")
os.symlink("uploads/one", "/workspace/to-one")
`, 0); r.Exit != 0 {
		t.Fatal(r)
	}
	for _, path := range []string{
		"../etc/x", "/workspace/../etc/x", "/workspacefoo/x", "", "uploads/", "uploads//", "a\x00b", "/etc/passwd", "/", "..", ".", "/workspace", "/workspace/", "/workspace/.",
		"a/../../etc/x", "out/x", "passwd", "dangling", "up/etc/x", "loop", "loop/x", "//etc/passwd", "/workspace/uploads/../../tmp/x", "~/x/../../..", "//workspace/double",
	} {
		t.Run(fmt.Sprintf("%q", path), func(t *testing.T) {
			if a := s.put(path, []byte("x")); a.status != 400 {
				t.Errorf("put: %v", a)
			}
			if a := s.get(path); a.status != 400 && a.status != 404 {
				t.Errorf("get: %v", a)
			}
		})
	}
	t.Run("nothing was written outside", func(t *testing.T) {
		r := s.run(t, "import os; print(os.listdir('/tmp') == [os.path.basename(__file__)], open('/etc/passwd').readline().startswith('root:'))", 0)
		if r.Stdout != "True True\n" {
			t.Error(r)
		}
	})
	for _, name := range []string{
		"uploads/a b .txt ", "数据/😀.csv", "a/b/c/d/e/f/g/h.txt", "/workspace/abs.txt", "./dot/./x.txt", "x/../y.txt", "...", "-rf", "tab\tname", "line\nname", "back\\slash", "$(touch x)", "'q'", strings.Repeat("n", 255),
		"inner/through",
	} {
		t.Run(fmt.Sprintf("%.40q", name), func(t *testing.T) {
			content := []byte("content of " + name)
			if a := s.put(name, content); a.status != 200 || string(a.body) != `{"ok":true}` {
				t.Fatalf("put: %v", a)
			}
			if got := s.read(t, name); !bytes.Equal(got, content) {
				t.Errorf("get gives %q", got)
			}
			r := s.run(t, "import os; print(open("+python(path.Join("/workspace", strings.TrimPrefix(name, "/workspace/")))+").read(), end='')", 0)
			if r.Stdout != string(content) {
				t.Errorf("a program reads %v", r)
			}
			s.alive(t)
		})
	}
	t.Run("exact names", func(t *testing.T) {
		listed := s.list(t)
		for _, path := range []string{"uploads/a b .txt ", "数据/😀.csv", "abs.txt", "dot/x.txt", "y.txt", "...", "-rf", "tab\tname", "line\nname", "uploads/through"} {
			if _, ok := listed[path]; !ok {
				t.Errorf("%q is not listed: %v", path, listed)
			}
		}
	})
	t.Run("in the way", func(t *testing.T) {
		for _, path := range []string{"uploads", "plain/x", "fifo", strings.Repeat("n", 256), strings.Repeat("d/", 3000) + "x"} {
			if a := s.put(path, []byte("x")); a.status < 400 || a.status > 499 {
				t.Errorf("put %.20q: %v", path, a)
			}
		}
		for _, path := range []string{"uploads", "plain/x", "fifo", "nothing", strings.Repeat("n", 256)} {
			if a := s.get(path); a.status != 404 && a.status != 400 {
				t.Errorf("get %.20q: %v", path, a)
			}
		}
	})
	t.Run("links", func(t *testing.T) {
		if a := s.put("two", []byte("changed")); a.status != 200 {
			t.Fatalf("put: %v", a)
		}
		if got := s.read(t, "uploads/one"); string(got) != "one" {
			t.Errorf("a hard link was written through: %q", got)
		}
		if a := s.put("to-one", []byte("through")); a.status != 200 {
			t.Fatalf("put: %v", a)
		}
		if got := s.read(t, "uploads/one"); string(got) != "through" {
			t.Errorf("a symlink inside was not followed: %q", got)
		}
	})
	t.Run("sizes", func(t *testing.T) {
		for _, size := range []int{0, 1, 40 << 20} {
			data := bytes.Repeat([]byte{0, 1, 0xff}, size/3+1)[:size]
			if a := s.put("big.bin", data); a.status != 200 {
				t.Fatalf("put of %d bytes: %v", size, a)
			}
			if got := s.read(t, "big.bin"); !bytes.Equal(got, data) {
				t.Errorf("get gives %d bytes of %d, or others", len(got), size)
			}
		}
		if a := s.put("big.bin", make([]byte, 40<<20+1)); a.status != 413 {
			t.Errorf("put of one byte more: %v", a)
		}
		if got := s.list(t)["big.bin"]; got != 40<<20 {
			t.Errorf("after that it has %d bytes", got)
		}
	})
	t.Run("a broken upload leaves the old file", func(t *testing.T) {
		for _, data := range []string{"!!!!", "YQ=", "YQ==YQ==", "data:text/plain;base64,YQ=="} {
			if a := s.post("/files", map[string]any{"session_id": s.id, "path": "abs.txt", "data_base64": data}); a.status != 400 {
				t.Errorf("%q: %v", data, a)
			}
		}
		if got := s.read(t, "abs.txt"); string(got) != "content of /workspace/abs.txt" {
			t.Errorf("the file holds %q", got)
		}
	})
	s.alive(t)
}

func TestJSONTyping(t *testing.T) {
	s := sharedService(t).session(t)
	for _, tt := range []struct {
		fields string
		status int
	}{
		{`"timeout_ms": "5000"`, 200}, {`"timeout_ms": 5000.0`, 200}, {`"timeout_ms": " 5_000 "`, 200}, {`"timeout_ms": "5000.0"`, 200}, {`"timeout_ms": true`, 200},
		{`"timeout_ms": 5000.5`, 422}, {`"timeout_ms": "5000.5"`, 422}, {`"timeout_ms": []`, 422}, {`"timeout_ms": "x"`, 422}, {`"timeout_ms": ""`, 422}, {`"timeout_ms": {}`, 422},
		{`"unknown": {"a": [1, null]}, "timeout_ms": 5000`, 200},
		{`"session_id": 123`, 422}, {`"session_id": null`, 422}, {`"session_id": ["x"]`, 422}, {`"session_id": "short"`, 400},
		{`"code": 1`, 422}, {`"code": null`, 422},
	} {
		t.Run(tt.fields, func(t *testing.T) {
			// The last of two fields of one name counts.
			a := s.post("/exec", fmt.Sprintf(`{"session_id": "%s", "code": "print(1)", %s}`, s.id, tt.fields))
			if a.status != tt.status {
				t.Errorf("wanted %d: %v", tt.status, a)
			}
		})
	}
	for name, body := range map[string]string{
		"in code":       `{"session_id": "` + s.id + `", "code": "print('\ud800')"}`,
		"in an id":      `{"session_id": "\udfff", "code": ""}`,
		"NaN":           `{"session_id": "` + s.id + `", "code": "", "timeout_ms": NaN}`,
		"infinity":      `{"session_id": "` + s.id + `", "code": "", "timeout_ms": 1e999}`,
		"broken":        `{"session_id": "` + s.id + `", "code": `,
		"invalid UTF-8": "{\"session_id\": \"" + s.id + "\", \"code\": \"\xff\"}",
		"deep":          strings.Repeat("[", 100000),
	} {
		t.Run("lone surrogates and the like: "+name, func(t *testing.T) {
			if a := s.post("/exec", body); a.status < 400 || a.status > 499 {
				t.Errorf("wanted a 4xx: %v", a)
			}
		})
	}
	t.Run("lone surrogate in a path", func(t *testing.T) {
		if a := s.do(context.Background(), "POST", "/files", `{"session_id": "`+s.id+`", "path": "a\ud800b", "data_base64": ""}`); a.status < 400 || a.status > 499 {
			t.Errorf("wanted a 4xx: %v", a)
		}
	})
	s.alive(t)
}
