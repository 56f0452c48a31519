//go:build integration

package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
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

// begin starts a command whose program prints "on" first, and returns when it has.
func begin(t *testing.T, cmd *exec.Cmd) (stdout io.ReadCloser, stderr *bytes.Buffer) {
	t.Helper()
	stderr = new(bytes.Buffer)
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = io.ReadFull(stdout, make([]byte, len("on\n")))
	}
	if err != nil {
		t.Fatalf("%v: %v: %s", cmd.Args, err, stderr)
	}
	return stdout, stderr
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
	// What stands in the way of one file is not the end of the others.
	if err := os.Mkdir(filepath.Join(out, "in-the-way"), 0o700); err != nil {
		t.Fatal(err)
	}
	several := script(t, `for name in ("a", "in-the-way", "z"): open("/workspace/outputs/" + name, "w").write(name)`)
	if _, stderr := s.says(t, 1, "run", several, "--out", out); !strings.Contains(stderr, "in-the-way") {
		t.Errorf("a file that cannot be saved: %q", stderr)
	}
	for _, name := range []string{"a", "z"} {
		if got, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(got) != name {
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
	// Who runs these tests under nohup would have the command ignore the terminal's
	// end as well; what is handled here is the default there.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	for _, test := range []struct {
		name, code string
		signal     syscall.Signal
		signals    int
		stderr     string
	}{
		{"in order", "import time\nprint('on', flush=True)\ntime.sleep(60)", syscall.SIGINT, 1, "KeyboardInterrupt"},
		{"at once", "import signal, time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\nprint('on', flush=True)\ntime.sleep(60)", syscall.SIGINT, 2, ""},
		{"told to end", "import time\nprint('on', flush=True)\ntime.sleep(60)", syscall.SIGTERM, 1, "KeyboardInterrupt"},
		{"by a terminal that closes", "import time\nprint('on', flush=True)\ntime.sleep(60)", syscall.SIGHUP, 1, "KeyboardInterrupt"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := s.call(t.Context(), "run", script(t, test.code))
			stdout, stderr := begin(t, cmd)
			began := time.Now()
			for i := range test.signals {
				if i > 0 {
					time.Sleep(300 * time.Millisecond)
				}
				if err := cmd.Process.Signal(test.signal); err != nil {
					t.Fatal(err)
				}
			}
			_, _ = io.Copy(io.Discard, stdout)
			err := cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 128+int(test.signal) || !strings.Contains(stderr.String(), test.stderr) || time.Since(began) > 20*time.Second {
				t.Errorf("exit code %d after %v, %v, stderr %q", code, time.Since(began), err, stderr)
			}
			if n := len(s.sessions.Sessions()); n != 0 {
				t.Errorf("%d sessions are left", n)
			}
		})
	}
}

// TestRunCommandInAPipe is run | head -1: the program ends with its reader, and so
// does its session.
func TestRunCommandInAPipe(t *testing.T) {
	s := sharedService(t)
	cmd := s.call(t.Context(), "run", script(t, "import time\nwhile True:\n    print('on', flush=True)\n    time.sleep(0.05)"))
	stdout, stderr := begin(t, cmd)
	stdout.Close()
	err := cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 141 || stderr.Len() > 0 {
		t.Errorf("exit code %d, %v, stderr %q", code, err, stderr)
	}
	if n := len(s.sessions.Sessions()); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

func TestRunCommandUnderNohup(t *testing.T) {
	s := sharedService(t)
	cmd := s.call(t.Context(), "run", script(t, "import time\nprint('on', flush=True)\ntime.sleep(1)\nprint('off')"))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Args = append([]string{"sh", "-c", `trap '' HUP; exec "$0" "$@"`, self}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	stdout, _ := begin(t, cmd)
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	rest, readErr := io.ReadAll(stdout)
	if err := cmd.Wait(); err != nil || readErr != nil || string(rest) != "off\n" {
		t.Errorf("%v, %v, stdout goes on with %q", err, readErr, rest)
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
	// A pipe or a device is written to, and not replaced by a file.
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0) // so that nobody waits for another
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	s.says(t, 0, "file", "get", id, "a/b.txt", pipe)
	if info, err := os.Stat(pipe); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Fatalf("the pipe is %v, %v", info, err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(reader, got); err != nil || string(got) != "hello" {
		t.Errorf("got %q, %v", got, err)
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
	const made = runDir + "/doctor-*"
	others := must(filepath.Glob(made)) // of one that was killed
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
	if left := must(filepath.Glob(made)); !slices.Equal(left, others) {
		t.Errorf("left: %v", left)
	}
}

// TestSecondSignalLeaves: also where the service does not answer the first.
func TestSecondSignalLeaves(t *testing.T) {
	cancels, over := make(chan struct{}), make(chan struct{})
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch r.URL.Path {
		case "/sessions":
			_, _ = io.WriteString(w, `{"session_id":"`+strings.Repeat("1", 32)+`"}`)
		case "/exec/stream":
			_, _ = io.WriteString(w, "event: stdout\ndata: {\"text\":\"begun\"}\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-over:
			}
		case "/exec/cancel":
			close(cancels)
			<-over
		default:
			_, _ = io.WriteString(w, "{}")
		}
	}))
	defer service.Close()
	release := sync.OnceFunc(func() { close(over) })
	defer release()
	cmd := (&testService{url: service.URL}).call(t.Context(), "run", script(t, "print(1)"))
	out := must(cmd.StdoutPipe())
	must(0, cmd.Start())
	if _, err := io.ReadFull(out, make([]byte, 5)); err != nil {
		t.Error(err)
	}
	must(0, cmd.Process.Signal(syscall.SIGINT))
	<-cancels
	must(0, cmd.Process.Signal(syscall.SIGINT))
	began := time.Now()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("ended with %v", err)
	}
	// The first is waited for five seconds.
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
}
