package docker_test

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/docker"
)

// fakeEngine is an engine for faults that a real one does not show on demand.
// Each test gives it handlers, by method and path without the version; what is
// not given is answered as a healthy engine would.
type fakeEngine struct {
	socket  string
	version string

	mu       sync.Mutex
	handlers map[string]http.HandlerFunc
	requests []request
}

type request struct {
	what string // "POST /containers/create"
	api  string // "v1.41", empty for a ping
	body []byte
	head http.Header
}

// What the engine calls the one container that it makes.
const (
	fakeID   = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	fakeName = "aivory-sbx-" + testSession
)

func newFakeEngine(t *testing.T) *fakeEngine {
	t.Helper()
	f := &fakeEngine{
		socket:   filepath.Join(t.TempDir(), "engine.sock"),
		version:  "1.41",
		handlers: map[string]http.HandlerFunc{},
	}
	f.handle("HEAD /_ping", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		w.Header().Set("Api-Version", f.version)
		w.Header().Set("Server", "Docker/20.10.24+dfsg1 (linux)")
	})
	f.handle("GET /images/img:v1/json", reply(200, `{"Id":"sha256:1","Config":{}}`))
	f.handle("POST /containers/create", reply(201, `{"Id":"`+fakeID+`","Warnings":[]}`))
	f.handle("POST /containers/NAME/start", reply(204, ""))
	f.handle("PUT /containers/NAME/archive", reply(200, ""))
	f.handle("DELETE /containers/NAME", reply(204, ""))
	f.handle("POST /containers/NAME/exec", reply(201, `{"Id":"e1"}`))
	return f
}

// start listens. An engine that is down is one that was not started.
func (f *fakeEngine) start(t *testing.T) *fakeEngine {
	t.Helper()
	l, err := net.Listen("unix", f.socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: f}}
	s.Start()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return f
}

func (f *fakeEngine) handle(what string, h http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handlers[what] = h
}

func (f *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	path, api := r.URL.Path, ""
	if strings.HasPrefix(path, "/v") {
		api, path, _ = strings.Cut(path[1:], "/")
		path = "/" + path
	}
	path = strings.ReplaceAll(path, fakeID, "ID")
	path = strings.ReplaceAll(path, fakeName, "NAME")
	what := r.Method + " " + path
	f.mu.Lock()
	f.requests = append(f.requests, request{what, api, body, r.Header.Clone()})
	h := f.handlers[what]
	f.mu.Unlock()
	if h == nil {
		h = reply(403, "forbidden by the proxy: "+what)
	}
	h(w, r)
}

// calls returns what was asked so far, pings left out.
func (f *fakeEngine) calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []string
	for _, r := range f.requests {
		if r.what != "HEAD /_ping" {
			list = append(list, r.what)
		}
	}
	return list
}

func (f *fakeEngine) count(what string) int {
	n := 0
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		if r.what == what {
			n++
		}
	}
	return n
}

// last returns the latest request of a kind.
func (f *fakeEngine) last(t *testing.T, what string) request {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := len(f.requests) - 1; i >= 0; i-- {
		if f.requests[i].what == what {
			return f.requests[i]
		}
	}
	t.Fatalf("no %s among %d requests", what, len(f.requests))
	return request{}
}

func reply(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if json.Valid([]byte(body)) {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// inTurn answers with one handler after the other, and stays with the last.
func inTurn(handlers ...http.HandlerFunc) http.HandlerFunc {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		h := handlers[0]
		if len(handlers) > 1 {
			handlers = handlers[1:]
		}
		mu.Unlock()
		h(w, r)
	}
}

// hang answers nothing until the client goes away.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

const testSession = "00112233445566778899aabbccddeeff"

var testSpec = runner.Spec{
	SessionID: testSession,
	CreatedAt: time.Unix(1_700_000_000, 999),
	Limits: runner.Limits{
		MemoryBytes: 512 << 20, NanoCPUs: 1e9, PidsLimit: 64, NofileSoft: 100, NofileHard: 200,
		ReadOnlyRootfs: true, TmpfsBytes: 1000, WorkspaceBytes: 2000,
	},
}

func (f *fakeEngine) driver(t *testing.T, change func(*docker.Config)) *docker.Driver {
	t.Helper()
	cfg := docker.Config{Host: "unix://" + f.socket, Image: "img:v1", CallTimeout: 10 * time.Second}
	if change != nil {
		change(&cfg)
	}
	d, err := docker.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// logTo is a logger that a test can read.
func logTo(b *bytes.Buffer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }
