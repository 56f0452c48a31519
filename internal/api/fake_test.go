package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/session"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

const (
	testKey = "s3cret key"
	live    = "0123456789abcdef0123456789abcdef" // the one session that there is
	gone    = "ffffffffffffffffffffffffffffffff"
)

// fakeSessions has one session and notes what it was asked for.
type fakeSessions struct {
	mu      sync.Mutex
	calls   []string
	create  session.CreateRequest
	delete  session.DeleteRequest
	execReq session.ExecRequest
	files   map[string][]byte
	err     error // of every call, where set
	health  session.Health
	infos   []session.Info
	panics  bool
	running bool
	exec    func(ctx context.Context) (*session.Execution, error)
	read    func(ctx context.Context) (io.ReadCloser, int64, error)
	write   func(body io.Reader, size int64) error
}

func (f *fakeSessions) call(name, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, name)
	switch {
	case f.panics:
		panic("a bug")
	case f.err != nil:
		return f.err
	case id != live:
		return fault.New(fault.NotFound, session.DetailNotFound)
	}
	return nil
}

func (f *fakeSessions) Create(_ context.Context, req session.CreateRequest) (string, error) {
	f.create = req
	return live, f.call("create", live)
}

func (f *fakeSessions) Delete(_ context.Context, id string, req session.DeleteRequest) error {
	f.delete = req
	if err := f.call("delete", id); !fault.Is(err, fault.NotFound) {
		return err
	}
	return nil
}

func (f *fakeSessions) Exec(ctx context.Context, id string, req session.ExecRequest) (*session.Execution, error) {
	f.execReq = req
	if err := f.call("exec", id); err != nil {
		return nil, err
	}
	return f.exec(ctx)
}

func (f *fakeSessions) Interrupt(id string) (bool, error) {
	return f.running, f.call("interrupt", id)
}

func (f *fakeSessions) WriteFile(_ context.Context, id, path string, body io.Reader, size int64) error {
	if err := f.call("write", id); err != nil {
		return err
	}
	if f.write != nil {
		return f.write(body, size)
	}
	data, err := io.ReadAll(body)
	if err != nil || int64(len(data)) != size {
		return errors.New("body and size differ")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files[path] = data
	return nil
}

func (f *fakeSessions) ReadFile(ctx context.Context, id, path string) (io.ReadCloser, int64, error) {
	if err := f.call("read", id); err != nil {
		return nil, 0, err
	}
	if f.read != nil {
		return f.read(ctx)
	}
	data, ok := f.files[path]
	if !ok {
		return nil, 0, fault.New(fault.NotFound, session.DetailFileNotFound)
	}
	return io.NopCloser(bytes.NewReader(data)), int64(len(data)), nil
}

func (f *fakeSessions) ListFiles(_ context.Context, id string) ([]session.FileInfo, error) {
	if err := f.call("list", id); err != nil {
		return nil, err
	}
	var out []session.FileInfo
	for path, data := range f.files {
		out = append(out, session.FileInfo{Path: path, Size: int64(len(data))})
	}
	return out, nil
}

func (f *fakeSessions) ResetInputs(_ context.Context, id string) error { return f.call("reset", id) }

func (f *fakeSessions) Sessions() []session.Info { return f.infos }

func (f *fakeSessions) Session(id string) (session.Info, error) {
	if i := slices.IndexFunc(f.infos, func(i session.Info) bool { return i.ID == id }); i >= 0 {
		return f.infos[i], nil
	}
	return session.Info{}, fault.New(fault.NotFound, session.DetailNotFound)
}

func (f *fakeSessions) Health(context.Context) session.Health { return f.health }

// fakeStorage has one effective provider.
type fakeStorage struct {
	cfg         storage.Config
	contentType string
	expiresIn   *int64
	data        []byte
	maxAge      int64
}

func (f *fakeStorage) Check(_ context.Context, cfg storage.Config, key string) error {
	f.cfg = cfg
	if cfg.Provider != "s3" {
		return fault.New(fault.Invalid, storage.DetailNotConfigured)
	}
	if key == "" {
		return fault.New(fault.Invalid, storage.DetailInvalidKey)
	}
	return nil
}

func (f *fakeStorage) Put(ctx context.Context, cfg storage.Config, key, contentType string, body io.Reader, expiresIn *int64) (storage.PutResult, error) {
	if err := f.Check(ctx, cfg, key); err != nil {
		return storage.PutResult{}, err
	}
	data, err := io.ReadAll(body)
	f.data, f.contentType, f.expiresIn = data, contentType, expiresIn
	return storage.PutResult{Provider: cfg.Provider, Key: cfg.Prefix + key, URL: "https://store/?a=1&b=<2>", ExpiresIn: 60}, err
}

func (f *fakeStorage) Delete(ctx context.Context, cfg storage.Config, key string) (string, error) {
	return cfg.Prefix + key, f.Check(ctx, cfg, key)
}

func (f *fakeStorage) GC(_ context.Context, _ storage.Config, maxAge int64) (storage.GCResult, error) {
	f.maxAge = maxAge
	return storage.GCResult{Deleted: 3, Scanned: 12, FreedBytes: 10485760}, nil
}

// logBuffer is a log that tests read while others write it.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// lines returns the lines that hold all of the words.
func (l *logBuffer) lines(words ...string) (found []string) {
next:
	for line := range strings.Lines(l.String()) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue next
			}
		}
		found = append(found, line)
	}
	return found
}

// service is a handler behind a real server on loopback.
type service struct {
	sessions *fakeSessions
	storage  *fakeStorage
	log      *logBuffer
	dir      string
	url      string
	addr     string
	handler  *api
}

func testConfig(dir string) Config {
	return Config{
		Keys: []string{"other", testKey}, MaxBody: 300_000, MaxStorageBody: 400_000, MaxCode: 1000, MaxUpload: 5000, MaxOutput: 32768,
		ExecTimeout: 90 * time.Second, ExecTimeoutCap: 2 * time.Minute,
		MaxArtifacts: 20, MaxArtifactBytes: 20971520, MaxArtifactTotal: 52428800,
		Metrics: http.NotFoundHandler(), MetricsKey: "watcher", TempDir: dir, MaxTemp: 1 << 30, StallTimeout: 5 * time.Second, Docs: true,
	}
}

func start(t testing.TB, change ...func(*Config)) *service {
	t.Helper()
	s := &service{
		sessions: &fakeSessions{files: map[string][]byte{}, health: session.Health{OK: true, Version: "27.5.1", Image: "img", ImageReady: true, Driver: "docker", Runtime: "runc"}},
		storage:  &fakeStorage{},
		log:      &logBuffer{},
		dir:      t.TempDir(),
	}
	cfg := testConfig(s.dir)
	for _, f := range change {
		f(&cfg)
	}
	log := slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	h, err := New(cfg, s.sessions, s.storage, log)
	if err != nil {
		t.Fatal(err)
	}
	s.handler = h.(*api)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := NewServer(listener.Addr().String(), h, log)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		_ = srv.Close()
		<-served
	})
	s.addr = listener.Addr().String()
	s.url = "http://" + s.addr
	return s
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
	closes bool // the connection
}

// do sends a request with the key, and with a JSON content type unless the
// headers, "Name: value", say otherwise; an empty value removes one. The answer
// has to be as it is described.
func (s *service) do(t testing.TB, method, path, body string, headers ...string) answer {
	t.Helper()
	a := s.ask(t, method, path, body, headers...)
	checkDescribed(t, method, path, a)
	return a
}

// ask is do for answers that no real part of the service gives.
func (s *service) ask(t testing.TB, method, path, body string, headers ...string) answer {
	t.Helper()
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+testKey)
	r.Header.Set("Content-Type", "application/json")
	for _, h := range headers {
		name, v, _ := strings.Cut(h, ": ")
		if v == "" {
			r.Header.Del(name)
		} else {
			r.Header.Set(name, v)
		}
	}
	resp, err := noRedirect.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer{resp.StatusCode, resp.Header, string(got), resp.Close}
}

var discardLog = slog.New(slog.DiscardHandler)

var noRedirect = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// raw sends bytes as they are and returns the answer to the first request.
func (s *service) raw(t testing.TB, request string) answer {
	t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	return readAnswer(t, conn, strings.Fields(request)[0])
}

func readAnswer(t testing.TB, conn net.Conn, method string) answer {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body), resp.Close}
}

// printed is a run that printed something and did nothing else.
func printed(stdout string) func(context.Context) (*session.Execution, error) {
	return func(context.Context) (*session.Execution, error) {
		return &session.Execution{Execution: &runner.Execution{Stdout: []byte(stdout), Reason: runner.ReasonExit}}, nil
	}
}
