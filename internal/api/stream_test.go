package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/session"
)

// event is a server-sent event; one without a name is a comment.
type event struct{ name, data string }

// following is an answer of /exec/stream that is being read.
type following struct {
	t    *testing.T
	resp *http.Response
	in   *bufio.Reader
}

func (s *service) follow(t *testing.T, ctx context.Context) following {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "POST", s.url+"/exec/stream", strings.NewReader(`{"session_id":"`+live+`","code":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+testKey)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return following{t, resp, bufio.NewReader(resp.Body)}
}

// next returns the next event; none is the end.
func (f following) next() (e event, ok bool) {
	f.t.Helper()
	for {
		line, err := f.in.ReadString('\n')
		line = strings.TrimSuffix(line, "\n")
		switch name, rest, _ := strings.Cut(line, ": "); {
		case err == io.EOF && line == "":
			return e, false
		case err != nil:
			f.t.Fatalf("after %q: %v", line, err)
		case line == "":
			return e, true
		case name == "event":
			e.name = rest
		case name == "data":
			e.data = rest
		}
	}
}

// text is what an event of output says.
func (e event) text(t *testing.T) string {
	t.Helper()
	var v struct{ Text string }
	if err := json.Unmarshal([]byte(e.data), &v); err != nil {
		t.Fatal(err)
	}
	return v.Text
}

// scripted runs a program that does what a test sends.
func scripted(s *service, steps <-chan func(session.ExecRequest), x *session.Execution) {
	s.sessions.exec = func(ctx context.Context) (*session.Execution, error) {
		for {
			select {
			case step, ok := <-steps:
				if !ok {
					return x, nil
				}
				step(s.sessions.execReq)
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
	}
}

func TestStream(t *testing.T) {
	s := start(t, func(c *Config) { c.Heartbeat = time.Hour })
	steps := make(chan func(session.ExecRequest))
	write := func(stderr bool, text string) {
		steps <- func(r session.ExecRequest) { r.Output(stderr, []byte(text)) }
	}
	x := &session.Execution{Execution: &runner.Execution{
		Stdout: []byte("a中\xff…"), Stderr: []byte("é"), StdoutTruncated: true, ExitCode: 124, Reason: runner.ReasonTimeout,
		Files: []runner.Artifact{{Path: "d/r \"1\".csv", Size: 0}},
	}}
	scripted(s, steps, x)
	go func() {
		write(false, "a\xe4")
	}()
	f := s.follow(t, t.Context())
	if f.resp.StatusCode != 200 || f.resp.Header.Get("Content-Type") != "text/event-stream" || f.resp.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("answered with %d %v", f.resp.StatusCode, f.resp.Header)
	}
	if _, err := description(t).Check("POST", "/exec/stream", 200, f.resp.Header, nil); err != nil {
		t.Error(err)
	}
	expect := func(name, text string) {
		t.Helper()
		e, ok := f.next()
		if !ok || e.name != name || e.text(t) != text {
			t.Fatalf("got %+v, want %s %q", e, name, text)
		}
	}
	expect("stdout", "a") // as soon as it is written, and no half character
	write(true, "é")
	expect("stderr", "é")
	write(false, "\xb8\xad\xff\xe4\xb8")
	expect("stdout", "中\ufffd")
	close(steps)
	expect("stdout", "\n... [truncated, stdout exceeded 32KB]") // the half character is cut
	expect("stderr", "\n[sandbox] execution exceeded 90.000s and was killed")
	if e, _ := f.next(); e.name != "artifact" || e.data != `{"path":"d/r \"1\".csv","name":"r \"1\".csv","mime_type":"text/csv","size":0}` {
		t.Errorf("an artifact: %+v", e)
	}
	// Artifacts come with the result, which breaks off here: the fake has none.
	if _, err := f.in.ReadString(0); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a result without its artifacts: %v", err)
	}
}

func TestStreamEndsWithTheBodyOfExec(t *testing.T) {
	s := start(t)
	s.sessions.exec = printed("4\n\x00<é")
	want := s.do(t, "POST", "/exec", `{"session_id":"`+live+`","code":"x"}`).body
	f := s.follow(t, t.Context())
	e, _ := f.next()
	if _, more := f.next(); e.name != "result" || e.data != want || more {
		t.Errorf("%+v, want %s", e, want)
	}
	// A run that says nothing while it goes on: the fake does not call Output.
	for i, test := range []struct {
		err    error
		status int
		body   string
	}{
		{fault.New(fault.Busy, session.DetailExecQueue), 429, `{"detail":"exec queue is full"}`},
		{fault.New(fault.NotFound, session.DetailNotFound), 404, `{"detail":"session not found or not running"}`},
	} {
		s.sessions.exec = func(context.Context) (*session.Execution, error) { return nil, test.err }
		if got := s.do(t, "POST", "/exec/stream", `{"session_id":"`+live+`","code":"x"}`); got.status != test.status || got.body != test.body {
			t.Errorf("%d: %d %s", i, got.status, got.body)
		}
	}
	if got := s.do(t, "POST", "/exec/stream", `{"session_id":1}`); got.status != 422 {
		t.Errorf("a bad request: %d %s", got.status, got.body)
	}
}

func TestStreamBeats(t *testing.T) {
	s := start(t, func(c *Config) { c.Heartbeat = 10 * time.Millisecond })
	steps := make(chan func(session.ExecRequest))
	scripted(s, steps, nil)
	f := s.follow(t, t.Context())
	for range 3 {
		if e, ok := f.next(); !ok || e != (event{}) {
			t.Fatalf("a beat is %+v", e)
		}
	}
}

func TestStreamFailsLate(t *testing.T) {
	s := start(t, func(c *Config) { c.Heartbeat = 10 * time.Millisecond })
	fail := make(chan struct{})
	s.sessions.exec = func(context.Context) (*session.Execution, error) {
		<-fail
		return nil, fault.Wrap(fault.Internal, session.DetailRunnerFailure, errors.New("engine words"))
	}
	f := s.follow(t, t.Context()) // the first beat sends the header
	close(fail)
	for {
		e, ok := f.next()
		if !ok {
			t.Fatal("no error came")
		}
		if e.name != "" {
			if e != (event{"error", `{"status":500,"detail":"sandbox runner failed"}`}) {
				t.Errorf("an error: %+v", e)
			}
			break
		}
	}
	if len(s.log.lines("level=ERROR", "request failed", "engine words")) != 1 {
		t.Errorf("the cause is not logged once:\n%s", s.log)
	}
}

func TestStreamEndsItsRun(t *testing.T) {
	for _, beat := range []time.Duration{time.Hour, time.Millisecond} {
		s := start(t, func(c *Config) { c.Heartbeat = beat })
		running, over := make(chan struct{}), make(chan error, 1)
		s.sessions.exec = func(ctx context.Context) (*session.Execution, error) {
			s.sessions.execReq.Output(false, []byte("begun"))
			close(running)
			<-ctx.Done()
			over <- context.Cause(ctx)
			return nil, context.Cause(ctx)
		}
		ctx, leave := context.WithCancel(t.Context())
		f := s.follow(t, ctx)
		<-running
		if e, _ := f.next(); e.name != "stdout" {
			t.Errorf("got %+v", e)
		}
		leave()
		select {
		case <-over:
		case <-time.After(10 * time.Second):
			t.Fatal("the run goes on without its client")
		}
	}
}

// A client that does not read holds up neither the run nor the service.
func TestStreamToSlowClient(t *testing.T) {
	s := start(t, func(c *Config) { c.StallTimeout = 300 * time.Millisecond; c.Heartbeat = time.Hour })
	over := make(chan error, 1)
	s.sessions.exec = func(ctx context.Context) (*session.Execution, error) {
		began := time.Now()
		for range 64 {
			s.sessions.execReq.Output(false, make([]byte, 1<<20)) // six times as long in JSON
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("writing took %v", took)
		}
		<-ctx.Done()
		over <- context.Cause(ctx)
		return nil, context.Cause(ctx)
	}
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"session_id":"` + live + `","code":"x"}`
	if _, err := io.WriteString(conn, "POST /exec/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+testKey+"\r\nContent-Length: 60\r\n\r\n"+body); err != nil || len(body) != 60 {
		t.Fatal(err, len(body))
	}
	select {
	case <-over:
	case <-time.After(20 * time.Second):
		t.Fatal("the run waits for a client that does not read")
	}
}

func TestStreamSurvivesABug(t *testing.T) {
	s := start(t)
	s.sessions.panics = true
	if got := s.do(t, "POST", "/exec/stream", `{"session_id":"`+live+`","code":"x"}`); got.status != 500 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestCancelRun(t *testing.T) {
	s := start(t)
	for _, running := range []bool{true, false} {
		s.sessions.running = running
		want := map[bool]string{true: `{"ok":true,"cancelled":true}`, false: `{"ok":true,"cancelled":false}`}[running]
		if got := s.do(t, "POST", "/exec/cancel", `{"session_id":"`+live+`"}`); got.status != 200 || got.body != want {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if got := s.do(t, "POST", "/exec/cancel", `{"session_id":"`+gone+`"}`); got.status != 404 {
		t.Errorf("a session that is gone: %d", got.status)
	}
	if got := s.do(t, "POST", "/exec/cancel", `{}`); got.status != 422 {
		t.Errorf("no session: %d", got.status)
	}
}
