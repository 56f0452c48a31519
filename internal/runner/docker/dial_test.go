package docker_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/container"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/docker"
)

const upgraded = "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"

// hijack gives the connection to a function after the engine's answer, and
// closes it at the end.
func hijack(f func(net.Conn)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, upgraded); err != nil {
			return
		}
		f(c)
	}
}

// chunk frames a payload as the engine does.
func chunk(kind byte, payload string) []byte {
	b := make([]byte, 8, 8+len(payload))
	b[0] = kind
	binary.BigEndian.PutUint32(b[4:], uint32(len(payload)))
	return append(b, payload...)
}

func TestDial(t *testing.T) {
	f := newFakeEngine(t).start(t)
	got := make(chan string, 1)
	f.handle("POST /exec/e1/start", hijack(func(c net.Conn) {
		_, _ = c.Write(bytes.Join([][]byte{chunk(2, "warn"), chunk(1, "out"), chunk(3, "engine")}, nil))
		b := make([]byte, 5)
		_, _ = io.ReadFull(c, b)
		got <- string(b)
	}))
	s, err := f.driver(t, nil).Dial(t.Context(), fakeName, []string{"python3", "-"}, []string{"A=b"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if n, err := s.Write([]byte("input")); n != 5 || err != nil {
		t.Errorf("wrote %d, %v", n, err)
	}
	if in := <-got; in != "input" {
		t.Errorf("the command got %q", in)
	}
	if b, err := io.ReadAll(s); err != nil || string(b) != "out" {
		t.Errorf("read %q, %v", b, err)
	}
	if d := s.Diagnostics(); d != "warnengine" {
		t.Errorf("diagnostics %q", d)
	}

	var exec container.ExecCreateRequest
	if err := json.Unmarshal(f.last(t, "POST /containers/NAME/exec").body, &exec); err != nil {
		t.Fatal(err)
	}
	want := container.ExecCreateRequest{
		User: "1000:1000", AttachStdin: true, AttachStdout: true, AttachStderr: true,
		Env: []string{"A=b"}, WorkingDir: "/", Cmd: []string{"python3", "-"},
	}
	if diff := cmp.Diff(want, exec); diff != "" {
		t.Errorf("exec (-want +got):\n%s", diff)
	}
	start := f.last(t, "POST /exec/e1/start")
	if start.api != "v1.41" || start.head.Get("Upgrade") != "tcp" || string(start.body) != `{"Detach":false,"Tty":false}` {
		t.Errorf("start: %s %v %s", start.api, start.head, start.body)
	}
}

// TestDialRefused: only the engine's own word that the container is gone or
// stopped makes a runner lost.
func TestDialRefused(t *testing.T) {
	const create, start = "POST /containers/NAME/exec", "POST /exec/e1/start"
	for _, x := range []struct {
		name, on string
		do       http.HandlerFunc
		lost     bool
		want     string
	}{
		{"gone", create, reply(404, `{"message":"No such container: x"}`), true, "No such container"},
		{"gone, another engine", create, reply(404, `{"message":"no container with name or ID \"x\" found: no such container"}`), true, "no such container"},
		{"stopped", create, reply(409, `{"message":"Container x is not running"}`), true, "is not running"},
		{"paused", create, reply(409, `{"message":"Container x is paused, unpause the container before exec"}`), false, "paused"},
		{"failing", create, reply(500, `{"message":"driver failed"}`), false, "driver failed"},
		{"proxy forbids", create, reply(403, "forbidden"), false, "forbidden"},
		{"proxy knows no such path", create, reply(404, "404 page not found"), false, "page not found"},
		{"cut off", create, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false, "cannot prepare"},
		{"stopped before the start", start, reply(409, `{"message":"Container x is not running"}`), true, "is not running"},
		{"gone before the start", start, reply(404, `{"message":"No such container: x"}`), true, "No such container"},
		{"exec forgotten", start, reply(404, `{"message":"No such exec instance: e1"}`), false, "No such exec"},
		{"start fails", start, reply(500, `{"message":"out of memory"}`), false, "out of memory"},
		{"start without a word", start, reply(500, ""), false, "500"},
		{"no upgrade", start, reply(200, ""), false, "200"},
		{"start cut off", start, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false, "cannot start"},
	} {
		t.Run(x.name, func(t *testing.T) {
			f := newFakeEngine(t).start(t)
			f.handle(start, hijack(func(net.Conn) {}))
			f.handle(x.on, x.do)
			s, err := f.driver(t, nil).Dial(t.Context(), fakeName, []string{"x"}, nil)
			if err == nil {
				s.Close()
				t.Fatal("dialled")
			}
			if errors.Is(err, runner.ErrNotFound) != x.lost || !strings.Contains(err.Error(), x.want) || fault.KindOf(err) != fault.Internal {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestDialMalformedHandle(t *testing.T) {
	f := newFakeEngine(t).start(t)
	d := f.driver(t, nil)
	for _, id := range []string{"", "../images/x", "a/b", "a?b", "-x", "a\nb"} {
		if _, err := d.Dial(t.Context(), id, []string{"x"}, nil); !errors.Is(err, runner.ErrNotFound) {
			t.Errorf("dial %q: %v", id, err)
		}
		if err := d.Destroy(t.Context(), id); err != nil {
			t.Errorf("destroy %q: %v", id, err)
		}
	}
	if c := f.calls(); len(c) != 0 {
		t.Errorf("calls %q", c)
	}
}

func TestDialContext(t *testing.T) {
	f := newFakeEngine(t).start(t)
	d := f.driver(t, func(c *docker.Config) { c.CallTimeout = time.Second })

	t.Run("ends after the start", func(t *testing.T) {
		f.handle("POST /exec/e1/start", hijack(func(c net.Conn) { _, _ = io.Copy(c, c) }))
		ctx, cancel := context.WithCancel(t.Context())
		s, err := d.Dial(ctx, fakeName, []string{"x"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		cancel()
		time.Sleep(1100 * time.Millisecond) // the call timeout passes as well
		if _, err := s.Write(chunk(1, "still here")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 10)
		if _, err := io.ReadFull(s, b); err != nil || string(b) != "still here" {
			t.Errorf("read %q, %v", b, err)
		}
	})

	t.Run("ends during the start", func(t *testing.T) {
		reason := errors.New("client hung up")
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := make(chan struct{})
		f.handle("POST /exec/e1/start", func(_ http.ResponseWriter, r *http.Request) {
			cancel(reason)
			<-r.Context().Done()
			close(gone)
		})
		if _, err := d.Dial(ctx, fakeName, []string{"x"}, nil); !errors.Is(err, reason) {
			t.Errorf("got %v", err)
		}
		<-gone // the connection was closed
	})
}

func TestCloseUnblocks(t *testing.T) {
	f := newFakeEngine(t).start(t)
	f.handle("POST /exec/e1/start", hijack(func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }))
	s, err := f.driver(t, nil).Dial(t.Context(), fakeName, []string{"x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { _, err := s.Read(make([]byte, 1)); done <- err }()
	time.Sleep(10 * time.Millisecond)
	_ = s.Close()
	if err := <-done; err == nil {
		t.Error("Read returned no error")
	}
}
