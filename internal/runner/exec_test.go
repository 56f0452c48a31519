package runner

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

func TestExec(t *testing.T) {
	r, d := fakeRunner(t, serve(map[string]func(*peer, request, []byte){"exec": func(p *peer, req request, code []byte) {
		want := request{
			Op: "exec", Timeout: 20, MaxOutput: 100, MaxFiles: 3, MaxFileBytes: 1 << 20,
			MaxTotalBytes: 2 << 20, CollectSeconds: 10,
		}
		if req.Op != want.Op || req.Timeout != want.Timeout || req.MaxOutput != want.MaxOutput || req.MaxFiles != want.MaxFiles ||
			req.MaxFileBytes != want.MaxFileBytes || req.MaxTotalBytes != want.MaxTotalBytes || req.CollectSeconds != want.CollectSeconds {
			t.Errorf("asked %+v, want %+v", req, want)
		}
		p.send(frameBeat, "")
		p.send(frameStdout, "one ")
		p.send(frameStderr, "two")
		p.send(frameBeat, "")
		p.send(frameStdout, string(code))
		p.send(frameResult, `{"exit_code":7,"reason":"exit","wall":1.5,"cpu":0.25,"rss":2048,"collect":0.5,"oom_kills":4,
			"oom_here":1,"stdout_truncated":false,"stderr_truncated":true,"skipped":2,"unreadable":3,"complete":false,"files":2}`)
		p.send(frameFile, `{"path":"a/b","size":3}`)
		p.send(frameFile, `{"path":"c","size":0}`)
		p.send(frameData, "a")
		p.send(frameData, "bc")
		p.send(frameEnd, "")
	}}))
	for range 3 {
		x, err := r.Exec(t.Context(), execRequest("three"))
		if err != nil {
			t.Fatal(err)
		}
		usage := Usage{Wall: 1500 * time.Millisecond, CPU: 250 * time.Millisecond, MaxRSS: 2 << 20, OOMKills: 1, Collect: 500 * time.Millisecond}
		if string(x.Stdout) != "one three" || string(x.Stderr) != "two" || x.StdoutTruncated || !x.StderrTruncated ||
			x.ExitCode != 7 || x.Reason != ReasonExit || x.Usage != usage || x.Skipped != 2 || x.Unreadable != 3 || !x.Incomplete ||
			len(x.Files) != 2 || x.Files[0] != (Artifact{"a/b", 3}) || x.Files[1] != (Artifact{"c", 0}) {
			t.Fatalf("got %+v", x)
		}
		for _, want := range []string{"abc", ""} {
			content, err := x.Next()
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(content); err != nil || string(got) != want {
				t.Errorf("artifact %q, %v; want %q", got, err, want)
			}
		}
		if _, err := x.Next(); err != io.EOF {
			t.Errorf("after the last artifact: %v", err)
		}
		for range 2 {
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := x.Next(); err != io.EOF {
			t.Errorf("after Close: %v", err)
		}
	}
	if d.dials != 1 {
		t.Errorf("dialled %d times", d.dials)
	}
}

func TestExecWithoutCode(t *testing.T) {
	r, _ := fakeRunner(t, tidy)
	x, err := r.Exec(t.Context(), ExecRequest{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if len(x.Stdout) != 0 {
		t.Errorf("got %q", x.Stdout)
	}
}

// TestCodeAtFrameEdges sends programs around one and two frames' length.
func TestCodeAtFrameEdges(t *testing.T) {
	var got []byte
	r, _ := fakeRunner(t, serve(map[string]func(*peer, request, []byte){"exec": func(p *peer, req request, code []byte) {
		got = code
		run(p, req, nil)
	}}))
	for _, n := range []int{0, 1, maxFrame - 1, maxFrame, maxFrame + 1, 2*maxFrame - 1, 2 * maxFrame, 2*maxFrame + 1} {
		code := bytes.Repeat([]byte("0123456789"), n/10+1)[:n]
		if _, err := r.Exec(t.Context(), execRequest(string(code))); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, code) {
			t.Errorf("%d bytes arrived as %d", n, len(got))
		}
	}
}

// TestOutputBound: whatever the agent sends, no more is kept than was asked for.
func TestOutputBound(t *testing.T) {
	for _, n := range []int{99, 100, 101, maxFrame} {
		r, _ := fakeRunner(t, serve(map[string]func(*peer, request, []byte){"exec": func(p *peer, req request, _ []byte) {
			p.send(frameStdout, strings.Repeat("x", n))
			p.send(frameStderr, strings.Repeat("x", 60))
			p.send(frameStderr, strings.Repeat("x", n-60))
			for range 5 {
				p.send(frameStdout, strings.Repeat("x", n-min(n, 100)))
			}
			run(p, req, nil)
		}}))
		x, err := r.Exec(t.Context(), execRequest(""))
		if err != nil {
			t.Fatal(err)
		}
		over := n > 100
		if len(x.Stdout) != min(n, 100) || len(x.Stderr) != min(n, 100) || x.StdoutTruncated != over || x.StderrTruncated != over {
			t.Errorf("of %d bytes: %d and %d kept, truncated %v and %v", n, len(x.Stdout), len(x.Stderr), x.StdoutTruncated, x.StderrTruncated)
		}
	}
}

// TestHostileRun has agents that break the protocol during a run. Each costs
// the run, and no more than that.
func TestHostileRun(t *testing.T) {
	result := func(s string) func(*peer) {
		return func(p *peer) { p.send(frameResult, s) }
	}
	const good = `{"reason":"exit","complete":true,"files":`
	for name, agent := range map[string]func(*peer){
		"unknown frame":       func(p *peer) { p.send(99, "") },
		"frame of ours":       func(p *peer) { p.send(frameRequest, "{}") },
		"greeting again":      func(p *peer) { p.send(frameHello, `{"version":1}`) },
		"data":                func(p *peer) { p.send(frameData, "x") },
		"end":                 func(p *peer) { p.send(frameEnd, "") },
		"file":                func(p *peer) { p.send(frameFile, `{"path":"x","size":1}`) },
		"beat with a payload": func(p *peer) { p.send(frameBeat, "x") },
		"huge stdout":         func(p *peer) { p.header(frameStdout, maxFrame+1) },
		"largest length":      func(p *peer) { p.header(frameStderr, 1<<32-1) },
		"huge result":         func(p *peer) { p.header(frameResult, maxControl+1) },
		"result no JSON":      result(`}{`),
		"result deep":         result(strings.Repeat(`[`, maxControl)),
		"result other types":  result(`{"exit_code":"0","reason":"exit"}`),
		"result fraction":     result(`{"exit_code":0.5,"reason":"exit"}`),
		"no reason":           result(`{}`),
		"reason of ours":      result(`{"reason":"lost"}`),
		"exit code":           result(`{"reason":"exit","exit_code":256}`),
		"negative exit code":  result(`{"reason":"exit","exit_code":-1}`),
		"negative skipped":    result(`{"reason":"exit","skipped":-1}`),
		"negative unreadable": result(`{"reason":"exit","unreadable":-1}`),
		"negative files":      result(`{"reason":"exit","files":-1}`),
		"too many files":      result(`{"reason":"exit","files":4}`),
		"error no JSON":       func(p *peer) { p.send(frameError, "\xff") },
		"file too large": func(p *peer) {
			p.send(frameResult, good+`1}`)
			p.send(frameFile, `{"path":"x","size":1048577}`)
		},
		"file of negative size": func(p *peer) {
			p.send(frameResult, good+`1}`)
			p.send(frameFile, `{"path":"x","size":-1}`)
		},
		"files too large together": func(p *peer) {
			p.send(frameResult, good+`3}`)
			for range 3 {
				p.send(frameFile, `{"path":"x","size":1000000}`)
			}
		},
		"fewer files than announced": func(p *peer) {
			p.send(frameResult, good+`2}`)
			p.send(frameFile, `{"path":"x","size":1}`)
			p.send(frameData, `x`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, d := fakeRunner(t, serve(map[string]func(*peer, request, []byte){"exec": func(p *peer, _ request, _ []byte) {
				p.send(frameBeat, "")
				p.send(frameStdout, "seen")
				agent(p)
				_, _ = p.read() // the service hangs up
			}}), tidy)
			x, err := r.Exec(t.Context(), execRequest("x"))
			if err != nil {
				t.Fatal(err)
			}
			if x.Reason != ReasonLost || x.ExitCode != 137 || string(x.Stdout) != "seen" || len(x.Files) != 0 {
				t.Errorf("got %s", summary(x))
			}
			echoes(t, r, "next")
			if d.dials != 2 {
				t.Errorf("dialled %d times", d.dials)
			}
		})
	}
}

func TestRefusedRun(t *testing.T) {
	r, d := fakeRunner(t, serve(map[string]func(*peer, request, []byte){"exec": func(p *peer, req request, code []byte) {
		if string(code) == "refuse" {
			p.send(frameError, `{"kind":"io","detail":"no more processes"}`)
			return
		}
		run(p, req, code)
	}}))
	_, err := r.Exec(t.Context(), execRequest("refuse"))
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.Internal || strings.Contains(f.Detail, "processes") || !strings.Contains(err.Error(), "no more processes") {
		t.Errorf("got %v", err)
	}
	echoes(t, r, "next")
	if d.dials != 1 {
		t.Errorf("dialled %d times", d.dials)
	}
}

var errGone = errors.New("client went away")

// TestCancel cancels a run when the agent has got so far.
func TestCancel(t *testing.T) {
	finish := func(p *peer) {
		p.expect(frameCancel)
		p.send(frameResult, `{"reason":"cancelled","exit_code":137}`)
	}
	for name, agent := range map[string]func(p *peer, cancel func()){
		"before anything was said": func(p *peer, cancel func()) {
			cancel()
			finish(p)
		},
		"while it runs": func(p *peer, cancel func()) {
			p.send(frameBeat, "")
			p.send(frameStdout, "x")
			cancel()
			finish(p)
		},
		"too late": func(p *peer, cancel func()) {
			p.send(frameBeat, "")
			cancel()
			p.expect(frameCancel)
			p.send(frameResult, `{"reason":"exit"}`)
		},
		"with artifacts": func(p *peer, cancel func()) {
			p.send(frameBeat, "")
			cancel()
			p.expect(frameCancel)
			p.send(frameResult, `{"reason":"exit","files":1}`)
			p.send(frameFile, `{"path":"x","size":1}`)
			p.send(frameData, "x")
			p.send(frameEnd, "")
		},
		"and it dies": func(p *peer, cancel func()) {
			p.send(frameBeat, "")
			cancel()
			panic(errHungUp)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			first := true
			r, _ := fakeRunner(t, serve(map[string]func(*peer, request, []byte){"exec": func(p *peer, req request, code []byte) {
				if !first {
					run(p, req, code)
					return
				}
				first = false
				agent(p, func() { cancel(errGone) })
			}}))
			_, err := r.Exec(ctx, execRequest("x"))
			wantErr(t, err, errGone)
			echoes(t, r, "next") // and no late cancel is in its way
		})
	}
}

// TestDisobedience: an agent that beats on after a cancel is given up.
func TestDisobedience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		r, _ := fakeRunner(t, func(p *peer) {
			p.greet()
			p.request()
			p.send(frameBeat, "")
			cancel(errGone)
			p.expect(frameCancel)
			for {
				p.send(frameBeat, "")
				time.Sleep(time.Second)
			}
		}, tidy)
		start := time.Now()
		_, err := r.Exec(ctx, execRequest("x"))
		wantErr(t, err, errGone)
		if took := time.Since(start); took > silence {
			t.Errorf("took %v", took)
		}
		echoes(t, r, "next")
	})
}

func TestCancelledBeforehand(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errGone)
	r, _ := fakeRunner(t, tidy)
	_, err := r.Exec(ctx, execRequest("x"))
	wantErr(t, err, errGone)
	echoes(t, r, "next")
}

// TestOddNumbers: figures of a run are only shown; strange ones do no harm.
func TestOddNumbers(t *testing.T) {
	r, _ := fakeRunner(t, serve(map[string]func(*peer, request, []byte){"exec": func(p *peer, _ request, _ []byte) {
		p.send(frameResult, `{"reason":"exit","wall":1e300,"cpu":-5,"collect":-1e300}`)
	}}))
	x, err := r.Exec(t.Context(), execRequest("x"))
	if err != nil {
		t.Fatal(err)
	}
	if x.Usage.Wall <= 0 || x.Usage.CPU != 0 || x.Usage.Collect != 0 {
		t.Errorf("got %+v", x.Usage)
	}
}

// Output is told as it comes, all of it that is kept and no more.
func TestOutputIsTold(t *testing.T) {
	told := make(chan string, 10)
	r, _ := fakeRunner(t, serve(map[string]func(*peer, request, []byte){"exec": func(p *peer, req request, _ []byte) {
		for _, part := range []string{"one", "", " two", " three"} {
			p.send(frameStdout, part)
			if part != "" && part != " three" {
				if got := <-told; got != "out "+part {
					t.Errorf("told %q", got)
				}
			}
		}
		p.send(frameStderr, "e")
		run(p, req, nil)
	}}))
	req := execRequest("x")
	req.MaxOutputBytes = 8
	req.Output = func(stderr bool, b []byte) {
		if stderr {
			told <- "err " + string(b)
			return
		}
		told <- "out " + string(b)
	}
	x, err := r.Exec(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if got := <-told + ", " + <-told; got != "out  , err e" || string(x.Stdout) != "one two " || !x.StdoutTruncated || len(told) > 0 {
		t.Errorf("told %q, kept %q", got, x.Stdout)
	}
}

// An interrupt asks the agent gently, once, and never disturbs the next run.
func TestInterrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		interrupted := false
		r, d := fakeRunner(t, serve(map[string]func(*peer, request, []byte){"exec": func(p *peer, req request, code []byte) {
			p.send(frameBeat, "")
			if string(code) == "wait" {
				if got := p.expect(frameCancel); len(got) != 1 {
					t.Errorf("asked to end with %q", got)
				}
				interrupted = true
				p.send(frameResult, `{"exit_code":130,"reason":"cancelled","complete":true}`)
				return
			}
			run(p, req, code)
		}}))
		defer closing(t, r, d)
		interrupt := make(chan struct{})
		time.AfterFunc(3*time.Second, func() { close(interrupt) })
		req := execRequest("wait")
		req.Interrupt = interrupt
		start := time.Now()
		x, err := r.Exec(t.Context(), req)
		if err != nil || x.Reason != ReasonCancelled || x.ExitCode != 130 || !interrupted || time.Since(start) != 3*time.Second {
			t.Errorf("%+v, %v after %v", x, err, time.Since(start))
		}
		later := make(chan struct{})
		req = execRequest("next")
		req.Interrupt = later
		if _, err := r.Exec(t.Context(), req); err != nil {
			t.Error(err)
		}
		close(later) // nobody listens any more
		synctest.Wait()
		echoes(t, r, "another")
		if d.dials != 1 {
			t.Errorf("dialled %d times", d.dials)
		}
	})
}
