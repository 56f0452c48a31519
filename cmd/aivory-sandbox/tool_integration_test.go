//go:build integration

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tool starts the program as it is shipped, with the service that s is.
func (s *testService) tool(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "SANDBOX_URL="+s.url, "SANDBOX_API_KEY="+s.key)
	return cmd
}

// TestRunShowsLinesAtOnce lets a program print the time, with a pause after each
// line, and compares it with the time at which the tool has printed the line: both
// have the host's clock. A machine that is busy delays single lines, whatever the
// tool does; one that held lines back, for a full buffer or for the end, would
// delay nearly all of them, by a pause at least. So it is the median that counts,
// and the best of three runs of the program.
func TestRunShowsLinesAtOnce(t *testing.T) {
	const lines, most = 9, 100 * time.Millisecond
	s := sharedService(t)
	program := script(t, fmt.Sprintf(`
import time
for _ in range(%d):
    print(time.time())
    time.sleep(0.15)`, lines))
	tool := buildService(t)
	once := func() time.Duration {
		cmd := s.tool(t.Context(), tool, "run", program)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var late []time.Duration
		for in := bufio.NewScanner(stdout); in.Scan(); {
			now := time.Now()
			printed, err := strconv.ParseFloat(in.Text(), 64)
			if err != nil {
				t.Fatal(err)
			}
			late = append(late, now.Sub(time.UnixMicro(int64(printed*1e6))))
		}
		if err := cmd.Wait(); err != nil || len(late) != lines {
			t.Fatalf("%d lines, %v", len(late), err)
		}
		t.Logf("late by %v", late)
		slices.Sort(late)
		return late[lines/2]
	}
	best := once()
	for i := 1; i < 3 && best > most; i++ {
		best = min(best, once())
	}
	if best > most {
		t.Errorf("lines came %v after they were printed", best)
	}
}

// TestInterruptEndsTheProgram sends the tool what Ctrl-C sends, and looks for the
// program in its runner.
func TestInterruptEndsTheProgram(t *testing.T) {
	s := sharedService(t).session(t)
	const began = `
import os
stat = open("/proc/self/stat").read().split()
open("/workspace/which", "w").write(stat[0] + " " + stat[21]) # its id, and when it began
print("on", flush=True)
`
	for _, test := range []struct {
		name, code string
		signals    int
		inOrder    bool
	}{
		{"one that ends in order", began + `
import time
try:
    time.sleep(60)
finally:
    open("/workspace/end", "w").write("in order")`, 1, true},
		{"one that does not listen", began + `
import signal, time
for n in (2, 15): signal.signal(n, signal.SIG_IGN)
time.sleep(60)`, 1, false},
		{"one that is left", began + `
import signal, time
for n in (2, 15): signal.signal(n, signal.SIG_IGN)
time.sleep(60)`, 2, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := s.call(t.Context(), "run", "--session", s.id, script(t, test.code))
			stdout, _ := begin(t, cmd)
			for i := range test.signals {
				if i > 0 {
					time.Sleep(300 * time.Millisecond) // two at once are one
				}
				if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
					t.Fatal(err)
				}
			}
			_, _ = io.Copy(io.Discard, stdout)
			err := cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 130 {
				t.Errorf("exit code %d, %v", code, err)
			}
			// The session is the next one's at once, and the program is not there.
			r := s.run(t, `
import os
pid, began = open("/workspace/which").read().split()
try:
    print(open(f"/proc/{pid}/stat").read().split()[21] == began)
except (FileNotFoundError, ProcessLookupError):
    print(False)
print(os.path.exists("/workspace/end"))
for name in "which", "end":
    if os.path.exists("/workspace/" + name): os.unlink("/workspace/" + name)`, 0)
			if want := fmt.Sprintf("False\n%s\n", map[bool]string{true: "True", false: "False"}[test.inOrder]); r.Stdout != want {
				t.Errorf("afterwards: is there, ended in order: %v", r)
			}
		})
	}
}

// TestPipeThroughASession passes much through upload and download, from a pipe and
// into one. Neither the tool's memory nor the service's grows with it.
func TestPipeThroughASession(t *testing.T) {
	size := times(64<<20, 1<<30)
	room := strconv.Itoa(2 * size)
	tool := buildService(t)
	p := newState(t).fork(t, tool, "SANDBOX_MAX_UPLOAD_BYTES="+room, "SANDBOX_MAX_BODY_BYTES="+room, "SANDBOX_WORKSPACE_SIZE="+room, "SANDBOX_MEMORY="+strconv.Itoa(3*size+1<<30))
	p.healthy(t)
	id, err := p.create()
	if err != nil {
		t.Fatal(err)
	}
	run := func(in io.Reader, out io.Writer, args ...string) (peak int64) {
		t.Helper()
		cmd := p.tool(t.Context(), tool, args...)
		var stderr bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		// Not the usage's own, which counts this process from before the exec.
		for {
			select {
			case err := <-ended:
				if err != nil {
					t.Fatalf("%v: %v: %s", args, err, &stderr)
				}
				if peak == 0 {
					t.Errorf("%v: its memory was not seen", args)
				}
				return peak
			case <-time.After(10 * time.Millisecond):
				peak = max(peak, highWater(cmd.Process.Pid))
			}
		}
	}
	// What a few bytes take is the program itself.
	small := run(&pattern{left: 5 << 20}, io.Discard, "file", "put", id, "-", "small")
	idle := p.status(t, "VmRSS")
	for _, way := range []string{"put", "get"} {
		p.bounded(t, "the service, "+way, idle, func() {
			var peak int64
			if way == "put" {
				peak = run(&pattern{left: size}, io.Discard, "file", "put", id, "-", "big")
			} else {
				back := &pattern{left: size}
				peak = run(nil, back, "file", "get", id, "big", "-")
				if back.left != 0 || back.wrong {
					t.Errorf("%d bytes are missing, wrong: %t", back.left, back.wrong)
				}
			}
			t.Logf("%s of %d MiB: the tool's peak %d MiB, with 5 MiB %d", way, size>>20, peak>>10, small>>10)
			if peak-small > 24<<10 {
				t.Errorf("%s of %d MiB took %d MiB, of 5 MiB %d", way, size>>20, peak>>10, small>>10)
			}
		})
	}
	p.terminate(t)
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

// patterns begin anew every 251 bytes.
var patterns = []byte(strings.Repeat(func() string {
	var b [251]byte
	for i := range b {
		b[i] = byte(i)
	}
	return string(b[:])
}(), 1<<10))

// next is what comes next of the pattern, n bytes at most.
func (p *pattern) next(n int) []byte {
	rest := patterns[p.at%251:]
	return rest[:min(n, len(rest))]
}

func (p *pattern) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.next(p.left))
	p.at, p.left = p.at+n, p.left-n
	return n, nil
}

func (p *pattern) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		want := p.next(len(rest))
		if !bytes.Equal(rest[:len(want)], want) {
			p.wrong = true
		}
		rest = rest[len(want):]
		p.at, p.left = p.at+len(want), p.left-len(want)
	}
	return len(b), nil
}
