//go:build integration

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// call starts this program with arguments, as a process of its own.
func (s *testService) call(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), actAsService+"=1", "SANDBOX_URL="+s.url, "SANDBOX_API_KEY="+s.key)
	return cmd
}

// says makes a call in this process, which must end with a code, and returns
// what was printed.
func (s *testService) says(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	got := run(t.Context(), args, append(os.Environ(), "SANDBOX_URL="+s.url, "SANDBOX_API_KEY="+s.key), &out, &err)
	http.DefaultClient.CloseIdleConnections()
	if got != code {
		t.Fatalf("%v: exit code %d, not %d\nstdout: %s\nstderr: %s", args, got, code, &out, &err)
	}
	return out.String(), err.String()
}

func script(t *testing.T, code string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.py")
	if err := os.WriteFile(path, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRunCommand(t *testing.T) {
	s := sharedService(t)
	data := filepath.Join(t.TempDir(), "data.csv")
	if err := os.WriteFile(data, []byte("a,b\n1,2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "outputs")
	program := script(t, `
import os, sys
print(open("data.csv").read(), end="")
print("é", os.path.getsize("in/other"), file=sys.stderr)
os.makedirs("outputs/deep")
open("outputs/deep/same.txt", "w").write("1")
open("outputs/same.txt", "w").write("2")
sys.exit(3)`)
	stdout, stderr := s.says(t, 3, "run", program, "--file", data, "--file", data+":in/other", "--out", out)
	if stdout != "a,b\n1,2\n" || stderr != "é 8\n" {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
	for name, want := range map[string]string{"deep/same.txt": "1", "same.txt": "2"} {
		if got, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, stderr := s.says(t, 0, "run", script(t, `open("/workspace/outputs/x", "w")`)); !strings.Contains(stderr, "--out DIR saves") {
		t.Errorf("a file that is not saved: %q", stderr)
	}
	if _, stderr := s.says(t, 1, "run", script(t, "1/0")); !strings.Contains(stderr, "ZeroDivisionError") {
		t.Errorf("stderr %q", stderr)
	}
	s.says(t, 124, "run", "--timeout", "1s", script(t, "import time; time.sleep(60)"))
	s.says(t, 1, "run", "no-such-file.py")
	if n := len(s.sessions.Sessions()); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

func TestRunCommandIsInterrupted(t *testing.T) {
	s := sharedService(t)
	for _, test := range []struct {
		name, code string
		signals    int
		stderr     string
	}{
		{"in order", "import time\nprint('on', flush=True)\ntime.sleep(60)", 1, "KeyboardInterrupt"},
		{"at once", "import signal, time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\nprint('on', flush=True)\ntime.sleep(60)", 2, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := s.call(t.Context(), "run", script(t, test.code))
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(stdout, make([]byte, 3)); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			for i := range test.signals {
				if i > 0 {
					time.Sleep(300 * time.Millisecond)
				}
				if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
					t.Fatal(err)
				}
			}
			_, _ = io.Copy(io.Discard, stdout)
			err = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(stderr.String(), test.stderr) || time.Since(began) > 20*time.Second {
				t.Errorf("exit code %d after %v, %v, stderr %q", code, time.Since(began), err, &stderr)
			}
			if n := len(s.sessions.Sessions()); n != 0 {
				t.Errorf("%d sessions are left", n)
			}
		})
	}
}

func TestSessionAndFileCommands(t *testing.T) {
	s := sharedService(t)
	id, _ := s.says(t, 0, "session", "create", "--idle-ttl", "10m")
	id = strings.TrimSpace(id)
	if list, _ := s.says(t, 0, "session", "list"); !regexp.MustCompile(`(?m)^` + id + ` +ready +\d+s +(10m0s|9m5\ds) `).MatchString(list) {
		t.Errorf("listed:\n%s", list)
	}
	local := script(t, "hello")
	s.says(t, 0, "file", "put", id, local, "a/b.txt")
	if list, _ := s.says(t, 0, "file", "list", id); !strings.Contains(list, "5 a/b.txt\n") {
		t.Errorf("files: %q", list)
	}
	if text, _ := s.says(t, 0, "file", "get", id, "a/b.txt"); text != "hello" {
		t.Errorf("got %q", text)
	}
	target := filepath.Join(t.TempDir(), "copy")
	s.says(t, 0, "file", "get", id, "a/b.txt", target)
	if text, err := os.ReadFile(target); err != nil || string(text) != "hello" {
		t.Errorf("got %q, %v", text, err)
	}
	if stdout, _ := s.says(t, 0, "run", "--session", id, script(t, "print(open('a/b.txt').read())")); stdout != "hello\n" {
		t.Errorf("ran: %q", stdout)
	}
	if shown, _ := s.says(t, 0, "session", "show", id); !strings.Contains(shown, `"runs": 1`) {
		t.Errorf("shown: %s", shown)
	}
	if _, stderr := s.says(t, 0, "session", "cancel", id); !strings.Contains(stderr, "no run in hand") {
		t.Errorf("cancelled: %q", stderr)
	}
	if _, stderr := s.says(t, 1, "file", "get", id, "missing"); !strings.Contains(stderr, "file not found") {
		t.Errorf("a missing file: %q", stderr)
	}
	s.says(t, 0, "session", "delete", id)
	if _, stderr := s.says(t, 1, "session", "show", id); !strings.Contains(stderr, "404") {
		t.Errorf("after it was released: %q", stderr)
	}
}

func TestDoctorCommand(t *testing.T) {
	s := sharedService(t)
	t.Setenv("SANDBOX_LISTEN", "127.0.0.1:0")
	t.Setenv("SANDBOX_STATE_DIR", t.TempDir())
	began := time.Now()
	stdout, _ := s.says(t, 0, "doctor")
	t.Logf("after %v:\n%s", time.Since(began), stdout)
	for _, want := range []string{"ok    engine: docker", "ok    runner: made in ", "ok    memory limit: ", "state directory: "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("lacks %q:\n%s", want, stdout)
		}
	}
	without := withoutDocker(t) // which makes the engine unreachable
	stdout, _ = s.says(t, 1, "doctor")
	if !strings.Contains(stdout, "FAIL  engine: ") || !strings.Contains(stdout, "DOCKER_HOST") {
		t.Errorf("without an engine:\n%s", stdout)
	}
	for _, setting := range without {
		name, value, _ := strings.Cut(setting, "=")
		t.Setenv(name, value)
	}
	stdout, _ = s.says(t, 0, "doctor")
	if !strings.Contains(stdout, "ok    engine: oci") || !strings.Contains(stdout, "ok    runner: made in ") {
		t.Errorf("without Docker:\n%s", stdout)
	}
	if left, err := filepath.Glob("/run/aivory-sandbox/doctor-*"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestPipeThroughASession passes much through upload and download at once, from
// a pipe and into one; memory does not grow with it.
func TestPipeThroughASession(t *testing.T) {
	size := times(24<<20, 1<<30)
	room := strconv.Itoa(2 * size)
	s := startService(t, "SANDBOX_MAX_UPLOAD_BYTES="+room, "SANDBOX_MAX_BODY_BYTES="+room, "SANDBOX_WORKSPACE_SIZE="+room, "SANDBOX_MEMORY="+strconv.Itoa(3*size+1<<30))
	session := s.session(t)
	run := func(in io.Reader, out io.Writer, args ...string) {
		t.Helper()
		cmd := s.call(t.Context(), args...)
		var stderr bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		var peak int64 // not the usage's own, which counts this process from before the exec
		for over := false; !over; {
			select {
			case err := <-ended:
				if over = true; err != nil {
					t.Fatalf("%v: %v: %s", args, err, &stderr)
				}
			case <-time.After(10 * time.Millisecond):
				peak = max(peak, highWater(cmd.Process.Pid))
			}
		}
		t.Logf("%s: peak of %d MiB", args[1], peak>>10)
		if peak == 0 || peak>>10 > 120 { // most of it is the test binary, with the race detector
			t.Errorf("%s of %d MiB took %d MiB", args[1], size>>20, peak>>10)
		}
	}
	run(&pattern{left: size}, io.Discard, "file", "put", session.id, "-", "big")
	back := &pattern{left: size}
	run(strings.NewReader(""), back, "file", "get", session.id, "big")
	if back.left != 0 || back.wrong {
		t.Errorf("%d bytes are missing, wrong: %t", back.left, back.wrong)
	}
}

// highWater is the most memory that a process had, in KiB; 0 where it is gone.
func highWater(pid int) int64 {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		return 0
	}
	kib, _ := strconv.ParseInt(string(found[1]), 10, 64)
	return kib
}

// pattern gives bytes, and takes the same ones back.
type pattern struct {
	left, at int
	wrong    bool
}

func (p *pattern) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	n := min(len(b), p.left)
	for i := range n {
		b[i] = byte((p.at + i) % 251)
	}
	p.at, p.left = p.at+n, p.left-n
	return n, nil
}

func (p *pattern) Write(b []byte) (int, error) {
	for i, c := range b {
		if c != byte((p.at+i)%251) {
			p.wrong = true
		}
	}
	p.at, p.left = p.at+len(b), p.left-len(b)
	return len(b), nil
}

// TestProgramInREADME runs the Go program that the README shows.
func TestProgramInREADME(t *testing.T) {
	s := sharedService(t)
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```go\n(package main.*?)```").FindSubmatch(page)
	if found == nil {
		t.Fatal("the README shows no Go program")
	}
	// In here, so that the module is this one.
	dir, err := os.MkdirTemp(".", "_readme-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, found[1], 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", file)
	cmd.Env = append(os.Environ(), "SANDBOX_URL="+s.url, "SANDBOX_API_KEY="+s.key)
	out, err := cmd.CombinedOutput()
	if want := "4\ntotals.csv (text/csv): 13 bytes\n"; err != nil || string(out) != want {
		t.Errorf("%v, printed %q, not %q", err, out, want)
	}
	if lines := strings.Count(string(found[1]), "\n"); lines > 40 {
		t.Error(fmt.Sprint("it has grown to ", lines, " lines"))
	}
}
