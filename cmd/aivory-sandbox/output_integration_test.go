//go:build integration

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestBytesThatAreNotUTF8(t *testing.T) {
	s := sharedService(t).session(t)
	for _, tt := range []struct{ bytes, want string }{
		{"\xff\xfeok\xe4\xb8", "\ufffd\ufffdok\ufffd"},
		{"\xc3", "\ufffd"},
		{"\xc0\xaf", "\ufffd\ufffd"},
		{"\xe0\x80\x41", "\ufffd\ufffdA"},
		{"\xe4\xb8\x41", "\ufffdA"},
		{"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
		{"\xf0\x9f\x98", "\ufffd"},
		{"\xf0\x80\x80\x41", "\ufffd\ufffd\ufffdA"},
		{"\xf0\x9f\x98\xf0\x9f\x98\x80", "\ufffd😀"},
		{"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
		{"\xf8\x88\x80\x80\x80", "\ufffd\ufffd\ufffd\ufffd\ufffd"},
		{"a\x00b", "a\x00b"},
		{"\u2028\u2029\x7f\x1b\uffff😀\r\n\t", "\u2028\u2029\x7f\x1b\uffff😀\r\n\t"},
	} {
		t.Run(fmt.Sprintf("%q", tt.bytes), func(t *testing.T) {
			var octets []int
			for _, b := range []byte(tt.bytes) {
				octets = append(octets, int(b))
			}
			// Python's own opinion comes back on the other stream.
			r := s.run(t, "import json, os, sys\nb = bytes("+python(octets)+")\nos.write(1, b)\nos.write(2, json.dumps(b.decode('utf-8', 'replace')).encode())", 0)
			var own string
			if err := json.Unmarshal([]byte(r.Stderr), &own); err != nil || own != tt.want {
				t.Fatalf("Python says %q (%v), the test %q", own, err, tt.want)
			}
			if r.Stdout != tt.want {
				t.Errorf("stdout is %q", r.Stdout)
			}
		})
	}
	t.Run("every byte", func(t *testing.T) {
		r := s.run(t, "import os, sys\nb = bytes(range(256)) + bytes(range(255, -1, -1))\nos.write(1, b)\nos.write(2, ascii(b.decode('utf-8', 'replace')).encode())", 0)
		again := s.run(t, "print(ascii("+python(r.Stdout)+"), end='')", 0)
		if again.Stdout != r.Stderr {
			t.Errorf("the answer is not what Python makes of it: %v", r)
		}
	})
	tryAll(t, []program{
		{name: "character split over two writes", code: "import os, time\nos.write(1, b'\\xe4\\xb8'); time.sleep(.1); os.write(1, b'\\xad')", out: is("中")},
		{name: "character split between stdout and stderr", code: "import os\nos.write(1, b'\\xe4\\xb8'); os.write(2, b'\\xad')", out: is("\ufffd"), err: is("\ufffd")},
		{name: "NUL on the wire", code: `print("\0", end="")`, out: is("\x00"), check: func(t *testing.T, _ testSession, r result) {
			if !strings.Contains(string(r.raw), `"\u0000"`) {
				t.Errorf("the body is %q", r.raw)
			}
		}},
		{name: "lone surrogate", code: `print("\ud800")`, exit: 1, err: has("UnicodeEncodeError")},
		{name: "lone surrogate in an error", code: `raise ValueError("\ud800")`, exit: 1, err: has(`ValueError: \ud800`)},
	})
}

func TestOutputCap(t *testing.T) {
	const limit = 32768
	// cut is what a stream of the given first bytes, cut at the limit, looks like.
	cut := func(stream, unit string) matcher {
		return func(got string) string {
			body, ok := strings.CutSuffix(got, "\n... [truncated, "+stream+" exceeded 32KB]")
			switch {
			case !ok:
				return "has no marker at its end"
			case strings.Trim(body, unit) != "":
				return fmt.Sprintf("holds more than %q: %.50q", unit, strings.Trim(body, unit))
			case len(body) > limit || len(body) < limit-8:
				return fmt.Sprintf("has %d bytes before the marker", len(body))
			}
			return ""
		}
	}
	before := peakMemory(t)
	tryAll(t, []program{
		{name: "100 MB on one line", code: "import sys\nb = 'x' * 1000000\nfor _ in range(100): sys.stdout.write(b)\nsys.stderr.write('wrote it all')", out: cut("stdout", "x"), err: is("wrote it all")},
		{name: "100 MB on stderr", code: "import sys\nb = 'x' * 1000000\nfor _ in range(100): sys.stderr.write(b)\nprint('wrote it all')", out: is("wrote it all\n"), err: cut("stderr", "x")},
		{name: "both at once, from children", code: "import subprocess\nps = [subprocess.Popen(['sh', '-c', 'head -c 20000000 /dev/zero | tr \"\\\\0\" x ' + to]) for to in ('', '>&2')]\nprint([p.wait() for p in ps], file=open('/workspace/ends.txt', 'w'))",
			out: cut("stdout", "x"), err: cut("stderr", "x"), check: func(t *testing.T, s testSession, _ result) {
				if got := s.read(t, "ends.txt"); string(got) != "[0, 0]\n" {
					t.Errorf("the children ended with %q", got)
				}
			}},
		{name: "no half character", code: `print("中" * 20000, end="")`, out: cut("stdout", "中")},
		{name: "no half character of four bytes", code: `print("a" + "😀" * 20000, end="")`, out: func(got string) string { return cut("stdout", "😀")(strings.TrimPrefix(got, "a")) }},
		{name: "many short lines", code: "for i in range(100000): print(i)", out: like(`(?s)^0\n1\n2\n.*\n\.\.\. \[truncated, stdout exceeded 32KB\]$`)},
		{name: "at the limit", code: `print("x" * 32768, end="")`, out: is(strings.Repeat("x", limit))},
		{name: "one over", code: `print("x" * 32769, end="")`, out: cut("stdout", "x")},
		{name: "output and an endless loop", code: "import sys\nwhile True: sys.stdout.write('x' * 65536)", timeout: 2 * time.Second, within: 20 * time.Second, exit: 124, out: cut("stdout", "x"), err: has("exceeded 2.000s")},
	})
	// The test's own client is part of the growth.
	if grown := peakMemory(t) - before; grown > 64<<20 {
		t.Errorf("the service's memory grew by %d MiB", grown>>20)
	}
}

// peakMemory resets nothing: it returns the most memory that this process, the
// service in it included, has ever used, in bytes.
func peakMemory(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("no VmHWM in /proc/self/status")
	return 0
}

func TestStdinIsAtItsEnd(t *testing.T) {
	tryAll(t, []program{
		{name: "input", code: `input()`, exit: 1, err: like(`EOFError: EOF when reading a line\n$`), within: 20 * time.Second},
		{name: "read", code: `import sys; print(repr(sys.stdin.read()))`, out: is("''\n"), within: 20 * time.Second},
		{name: "descriptor", code: `import os; print(os.read(0, 1))`, out: is("b''\n")},
		{name: "of a child", code: `import subprocess; print(subprocess.run(["cat"], capture_output=True).stdout)`, out: is("b''\n"), within: 20 * time.Second},
		{name: "of a shell that reads", code: `import os; os.system("read x || echo end")`, out: is("end\n")},
	})
}
