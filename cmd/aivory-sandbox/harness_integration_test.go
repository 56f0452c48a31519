//go:build integration

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/moby/moby/client"

	"github.com/hjxwz123/aivory-sandbox/internal/api/apitest"
	"github.com/hjxwz123/aivory-sandbox/internal/config"
)

// soak tells whether the long counts are wanted.
var soak = os.Getenv("AIVORY_SOAK") != ""

// times returns the short count of a test, or the long one.
func times(short, long int) int {
	if soak {
		return long
	}
	return short
}

// testService is a service in this process, on a free port, with the real
// engine and with runners that bear an instance name of its own.
type testService struct {
	*service
	url, key, instance, stateDir string
	log                          *tailWriter
	http                         *http.Client
	// description is the service's own; answers have to be as it says.
	description apitest.Description
}

// newHTTPClient returns a client whose connections do not outlive a call.
func newHTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Minute}
}

// launch starts a service with settings NAME=value over the tests' own.
func launch(state string, settings ...string) (*testService, error) {
	s := &testService{
		key: randomHex(), instance: "test-" + randomHex()[:12], stateDir: state, log: &tailWriter{}, http: newHTTPClient(),
	}
	environ := append([]string{
		"SANDBOX_API_KEY=" + s.key, "SANDBOX_INSTANCE=" + s.instance, "SANDBOX_STATE_DIR=" + state,
		"SANDBOX_LISTEN=127.0.0.1:0", "SANDBOX_LOG_LEVEL=debug", "SANDBOX_LOG_FORMAT=text",
		"SANDBOX_POOL_SIZE=0",
	}, append(runnerSettings(), settings...)...)
	cfg, _, err := config.Load(environ)
	if err != nil {
		return nil, err
	}
	s.key, s.instance = cfg.APIKey, cfg.Instance
	shown.add("an API key", s.key)
	adopted, err := adopting()
	if err != nil {
		return nil, err
	}
	s.service, err = start(context.Background(), cfg, newLogger(cfg, s.log))
	adopted()
	if err != nil {
		return nil, err
	}
	s.url = "http://" + s.address()
	if s.description, err = s.describe(); err != nil {
		return nil, errors.Join(err, s.halt())
	}
	return s, nil
}

// describe asks the service for the description of its interface.
func (s *testService) describe() (apitest.Description, error) {
	resp, err := s.http.Get(s.url + "/openapi.yaml")
	if err != nil {
		return apitest.Description{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return apitest.Description{}, err
	}
	return apitest.Load(text)
}

// startService is launch for one test; its end stops the service and removes
// the runners that it leaves for a successor.
func startService(t *testing.T, settings ...string) *testService {
	t.Helper()
	s, err := launch(t.TempDir(), settings...)
	if err != nil {
		t.Fatal(err)
	}
	s.showLogOf(t)
	t.Cleanup(func() {
		if err := s.halt(); err != nil {
			t.Error(err)
		}
		if _, err := s.removeContainers(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// halt stops the service as SIGTERM does.
func (s *testService) halt() error {
	s.lookAtMetrics()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.stop(ctx)
}

func (s *testService) showLogOf(t *testing.T) {
	from := s.log.written()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the service's log:\n%s", s.log.since(from))
		}
	})
}

var shared struct {
	sync.Mutex
	*testService
	dir string
}

func init() {
	afterTests = func() {
		if shared.testService == nil {
			return
		}
		err := shared.halt()
		n, removeErr := shared.removeContainers()
		if err := errors.Join(err, removeErr); err != nil {
			fmt.Fprintf(os.Stderr, "the shared service ended badly: %v; %d runners were left\n", err, n)
		}
		os.RemoveAll(shared.dir)
	}
}

// sharedService returns the service that tests without settings of their own use.
func sharedService(t *testing.T) *testService {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.testService == nil {
		dir, err := os.MkdirTemp("", "aivory-shared-")
		if err != nil {
			t.Fatal(err)
		}
		s, err := launch(dir, "SANDBOX_MAX_SESSIONS=8", "SANDBOX_QUEUE_TIMEOUT_SECONDS=30")
		if err != nil {
			os.RemoveAll(dir)
			t.Fatal(err)
		}
		shared.testService, shared.dir = s, dir
	}
	shared.showLogOf(t)
	return shared.testService
}

// engine returns a client for the engine.
func engine() (*client.Client, error) { return client.New(client.FromEnv) }

// answer is a response, read whole.
type answer struct {
	status int
	body   []byte
	took   time.Duration
	err    error
}

func (a answer) String() string {
	return fmt.Sprintf("status %d after %v: %.600s (%v)", a.status, a.took.Round(time.Millisecond), a.body, a.err)
}

// do sends one request. A body is sent as it is where it is a string, as JSON
// otherwise.
func (s *testService) do(ctx context.Context, method, path string, body any) answer {
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return answer{err: err}
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, reader)
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	req.Header.Set("Content-Type", "application/json")
	began := time.Now()
	resp, err := s.http.Do(req)
	if err != nil {
		return answer{err: err, took: time.Since(began)}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	took := time.Since(began)
	if resp.StatusCode >= 400 {
		shown.look(inErrors, text, len(text))
	}
	// Large ones take long to look at, and are no different.
	if err == nil && len(text) < 1<<20 && s.description.T != nil {
		_, err = s.description.Check(method, path, resp.StatusCode, resp.Header, text)
	}
	return answer{status: resp.StatusCode, body: text, took: took, err: err}
}

func (s *testService) post(path string, body any) answer {
	return s.do(context.Background(), http.MethodPost, path, body)
}

// testSession is a session that its test's end releases.
type testSession struct {
	*testService
	id string
}

func (s *testService) session(t *testing.T) testSession {
	t.Helper()
	id, err := s.create()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if a := s.release(id); a.status != 200 {
			t.Errorf("delete: %v", a)
		}
	})
	return testSession{s, id}
}

// create makes a session that nobody releases by itself.
func (s *testService) create() (id string, err error) {
	return sessionID(s.post("/sessions", nil))
}

// sessionID returns the id of a session that was made.
func sessionID(a answer) (string, error) {
	var made struct {
		ID string `json:"session_id"`
	}
	if err := json.Unmarshal(a.body, &made); a.status != 200 || err != nil {
		return "", fmt.Errorf("cannot create a session: %v", a)
	}
	return made.ID, nil
}

func (s *testService) release(id string) answer {
	return s.do(context.Background(), http.MethodDelete, "/sessions/"+id, "{}")
}

// artifact is a file that a run gave back.
type artifact struct {
	Name string `json:"name"`
	Type string `json:"mime_type"`
	Data []byte `json:"data_base64"`
}

// result is the answer to a run.
type result struct {
	Stdout string     `json:"stdout"`
	Stderr string     `json:"stderr"`
	Exit   int        `json:"exit_code"`
	Files  []artifact `json:"files"`
	took   time.Duration
	raw    []byte
}

func (r result) String() string {
	names := make([]string, len(r.Files))
	for i, f := range r.Files {
		names[i] = fmt.Sprintf("%s (%d)", f.Name, len(f.Data))
	}
	return fmt.Sprintf("exit %d after %v, files %q\nstdout: %.1500q\nstderr: %.1500q", r.Exit, r.took.Round(time.Millisecond), names, r.Stdout, r.Stderr)
}

func (s testSession) exec(ctx context.Context, code string, timeout time.Duration) answer {
	return s.do(ctx, http.MethodPost, "/exec", map[string]any{"session_id": s.id, "code": code, "timeout_ms": timeout.Milliseconds()})
}

// run is exec that must be answered with 200 and valid JSON.
func (s testSession) run(t *testing.T, code string, timeout time.Duration) result {
	t.Helper()
	if timeout == 0 {
		timeout = 30 * time.Second
	}
	a := s.exec(context.Background(), code, timeout)
	r, err := parseResult(a)
	if err != nil {
		t.Fatalf("exec: %v: %v", err, a)
	}
	return r
}

func parseResult(a answer) (result, error) {
	var r result
	switch err := json.Unmarshal(a.body, &r); {
	case a.err != nil:
		return r, a.err
	case a.status != 200:
		return r, errors.New("not answered with 200")
	case err != nil:
		return r, err
	case !utf8.Valid(a.body):
		return r, errors.New("not valid UTF-8")
	}
	r.took, r.raw = a.took, a.body
	return r, nil
}

// alive fails the test unless the session still runs programs, undisturbed.
func (s testSession) alive(t *testing.T) {
	t.Helper()
	r := s.run(t, "print(1)", 0)
	if r.Stdout != "1\n" || r.Stderr != "" || r.Exit != 0 || len(r.Files) != 0 {
		t.Errorf("print(1) afterwards: %v", r)
	}
}

func (s testSession) put(path string, data []byte) answer {
	return s.post("/files", map[string]any{"session_id": s.id, "path": path, "data_base64": data})
}

func (s testSession) get(path string) answer {
	return s.post("/files/get", map[string]any{"session_id": s.id, "path": path})
}

// read is get that must succeed.
func (s testSession) read(t *testing.T, path string) []byte {
	t.Helper()
	a := s.get(path)
	var file struct {
		Data []byte `json:"data_base64"`
	}
	if err := json.Unmarshal(a.body, &file); a.status != 200 || err != nil {
		t.Fatalf("get %q: %v", path, a)
	}
	return file.Data
}

// list returns path → size.
func (s testSession) list(t *testing.T) map[string]int64 {
	t.Helper()
	a := s.post("/files/list", map[string]any{"session_id": s.id})
	var listing struct {
		Files []struct {
			Path string `json:"path"`
			Size int64  `json:"size"`
		} `json:"files"`
	}
	if err := json.Unmarshal(a.body, &listing); a.status != 200 || err != nil {
		t.Fatalf("list: %v", a)
	}
	sizes := make(map[string]int64, len(listing.Files))
	for _, f := range listing.Files {
		sizes[f.Path] = f.Size
	}
	return sizes
}

func randomHex() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// python returns v as a Python literal.
func python(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return "__import__('json').loads(" + string(must(json.Marshal(string(text)))) + ")"
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
