package runner

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// fakeDriver dials agents that are functions. The nth dial gets the nth of
// them; the last one serves all further dials.
type fakeDriver struct {
	Driver
	t      testing.TB
	agents []func(*peer)

	mu    sync.Mutex
	dials int
	err   error // of the next dials
	wg    sync.WaitGroup
}

func (d *fakeDriver) Dial(_ context.Context, id string, command, _ []string) (Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return nil, d.err
	}
	if id != "handle" || len(command) != 3 || command[0] != "python3" || command[2] != bootstrapSource {
		d.t.Errorf("dialled %q with %q", id, command)
	}
	agent := d.agents[min(d.dials, len(d.agents)-1)]
	d.dials++
	near, far := net.Pipe()
	p := &peer{t: d.t, conn: far, r: bufio.NewReader(far)}
	d.wg.Go(func() {
		defer far.Close()
		defer func() {
			if r := recover(); r != nil && r != errHungUp {
				panic(r)
			}
		}()
		agent(p)
	})
	return &fakeStream{near}, nil
}

type fakeStream struct{ net.Conn }

func (*fakeStream) Diagnostics() string { return "some words\n" }

// errHungUp ends an agent whose service has closed the stream.
var errHungUp = errors.New("hung up")

// peer is an agent's end of a stream.
type peer struct {
	t    testing.TB
	conn net.Conn
	r    *bufio.Reader
}

// read returns the next frame from the service.
func (p *peer) read() (frameType, []byte) {
	head := make([]byte, frameHeaderSize)
	if _, err := io.ReadFull(p.r, head); err != nil {
		panic(errHungUp)
	}
	payload := make([]byte, binary.BigEndian.Uint32(head[1:]))
	if _, err := io.ReadFull(p.r, payload); err != nil {
		panic(errHungUp)
	}
	return frameType(head[0]), payload
}

func (p *peer) expect(want frameType) []byte {
	t, payload := p.read()
	if t != want {
		p.t.Errorf("agent got a frame of type %d with %.200q, want type %d", t, payload, want)
		panic(errHungUp)
	}
	return payload
}

func (p *peer) raw(b []byte) {
	if _, err := p.conn.Write(b); err != nil {
		panic(errHungUp)
	}
}

func (p *peer) send(t frameType, payload string) { p.raw(appendFrame(nil, t, []byte(payload))) }

// header sends a header alone, with any length.
func (p *peer) header(t frameType, length uint32) {
	p.raw(binary.BigEndian.AppendUint32([]byte{byte(t)}, length))
}

func (p *peer) json(t frameType, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	p.send(t, string(b))
}

// greet takes the agent's source and the set-up and says hello.
func (p *peer) greet() {
	p.expect(frameSource)
	p.expect(frameRequest)
	p.json(frameHello, hello{Version: 1})
}

// request returns the next request and, for those that have one, its body.
func (p *peer) request() (req request, body []byte) {
	if err := json.Unmarshal(p.expect(frameRequest), &req); err != nil {
		p.t.Error(err)
	}
	switch req.Op {
	case "exec", "write", "unpack":
		for {
			switch t, payload := p.read(); t {
			case frameData:
				body = append(body, payload...)
			case frameEnd:
				return req, body
			default:
				p.t.Errorf("agent got a frame of type %d within a body", t)
				panic(errHungUp)
			}
		}
	}
	return req, nil
}

// serve greets and answers requests by op until the service hangs up.
func serve(ops map[string]func(*peer, request, []byte)) func(*peer) {
	return func(p *peer) {
		p.greet()
		for {
			req, body := p.request()
			op := ops[req.Op]
			if op == nil {
				p.t.Errorf("unexpected request %+v", req)
				return
			}
			op(p, req, body)
		}
	}
}

// run is a well-behaved answer to exec: its output is the program's source.
func run(p *peer, _ request, code []byte) {
	p.send(frameBeat, "")
	p.send(frameStdout, string(code))
	p.json(frameResult, result{Reason: ReasonExit, Complete: true})
}

var tidy = serve(map[string]func(*peer, request, []byte){
	"exec":  run,
	"reset": func(p *peer, _ request, _ []byte) { p.send(frameResult, "{}") },
})

// fakeRunner returns a Runner over fake agents. All of them must have ended
// when the test ends.
func fakeRunner(t testing.TB, agents ...func(*peer)) (*Runner, *fakeDriver) {
	t.Helper()
	d := &fakeDriver{t: t, agents: agents}
	r := New(d, "handle", Options{CPUs: 1})
	closing(t, r, d)
	return r, d
}

func closing(t testing.TB, r *Runner, d *fakeDriver) {
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		d.wg.Wait()
	})
}

var testLimits = ArtifactLimits{
	MaxFiles: 3, MaxFileBytes: 1 << 20, MaxTotalBytes: 2 << 20,
	MaxDuration: 10 * time.Second, FileTimeout: 5 * time.Second,
}

func execRequest(code string) ExecRequest {
	return ExecRequest{Code: []byte(code), Timeout: 20 * time.Second, MaxOutputBytes: 100, Artifacts: testLimits}
}

// echoes runs a program, wants its source as output, and closes it.
func echoes(t testing.TB, r *Runner, code string) {
	t.Helper()
	x, err := r.Exec(t.Context(), execRequest(code))
	if err != nil {
		t.Fatal(err)
	}
	if string(x.Stdout) != code || x.Reason != ReasonExit || x.ExitCode != 0 || x.Incomplete {
		t.Fatalf("got %+v", x)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

func summary(x *Execution) string {
	return fmt.Sprintf("%d %s out=%q err=%q files=%d", x.ExitCode, x.Reason, x.Stdout, x.Stderr, len(x.Files))
}
