package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// fakeService answers calls as a service does, and remembers them.
type fakeService struct {
	*httptest.Server
	mu       sync.Mutex
	requests []string
	// stderr is what programs print there, provider what sessions have for storage.
	stderr, provider string
}

func newFakeService(t *testing.T) *fakeService {
	t.Helper()
	s := &fakeService{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /sessions", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"session_id":"s1"}`) })
	mux.HandleFunc("GET /sessions/s1", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"session_id":"s1","storage_provider":%q}`, s.provider)
	})
	mux.HandleFunc("DELETE /sessions/s1", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"ok":true}`) })
	mux.HandleFunc("POST /files", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"ok":true}`) })
	mux.HandleFunc("POST /files/get", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"data_base64":"%s"}`, strings.Repeat("AAAA", 1<<18))
	})
	mux.HandleFunc("POST /exec/stream", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "event: stdout\ndata: {\"text\":\"out\\n\"}\n\nevent: stderr\ndata: {\"text\":%q}\n\n", s.stderr)
		fmt.Fprint(w, "event: artifact\ndata: {\"path\":\"f\"}\n\nevent: result\ndata: {\"exit_code\":0,\"files\":[{\"name\":\"f\",\"data_base64\":\"MQ==\"}]}\n\n")
	})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r.Method+" "+r.URL.Path)
		s.mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer k" {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"unauthorized"}`)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		s.Close()
	})
	return s
}

// asked returns the requests that came since the last time.
func (s *fakeService) asked() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := strings.Join(s.requests, ", ")
	s.requests = nil
	return all
}

// call runs the program with arguments, in this process.
func (s *fakeService) call(t *testing.T, stdout io.Writer, args ...string) (code int, stderr string) {
	t.Helper()
	var text bytes.Buffer
	code = run(t.Context(), args, []string{"SANDBOX_URL=" + s.URL, "SANDBOX_API_KEY=k"}, stdout, &text)
	return code, text.String()
}

// localFile makes a file for a call.
func localFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// deaf returns a pipe that nobody reads.
func deaf(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	t.Cleanup(func() { w.Close() })
	return w
}

func TestNobodyReadsTheOutput(t *testing.T) {
	s := newFakeService(t)
	if code, stderr := s.call(t, deaf(t), "run", localFile(t, "x.py", "")); code != 141 || stderr != "" {
		t.Errorf("run: exit code %d, %q", code, stderr)
	}
	if got := s.asked(); got != "POST /sessions, POST /exec/stream, DELETE /sessions/s1" {
		t.Errorf("run asked %s", got)
	}
	for _, args := range [][]string{{"file", "get", "s1", "x", "-"}, {"session", "create"}, {"session", "show", "s1"}} {
		if code, stderr := s.call(t, deaf(t), args...); code != 141 || stderr != "" {
			t.Errorf("%v: exit code %d, %q", args, code, stderr)
		}
	}
}

// TestInputsAreCheckedFirst holds that what cannot be done is told before a session
// is made for it, or a program run whose files would be lost.
func TestInputsAreCheckedFirst(t *testing.T) {
	s := newFakeService(t)
	program, dir := localFile(t, "x.py", ""), t.TempDir()
	missing := filepath.Join(dir, "missing")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"run", program, "--file", dir}, dir + ": is a directory"},
		{[]string{"run", program, "--file", program, "--file", dir + ":name"}, dir + ": is a directory"},
		{[]string{"run", program, "--file", missing}, missing + ": no such file"},
		{[]string{"run", program, "--out", program}, program + ": not a directory"},
		{[]string{"run", program, "--out", filepath.Join(program, "x")}, ": not a directory"},
		{[]string{"run", program, "--out", "/proc/self"}, "cannot save files: "},
		{[]string{"file", "put", "s1", dir, "x"}, dir + ": is a directory"},
	} {
		code, stderr := s.call(t, io.Discard, test.args...)
		if code != 1 || !strings.Contains(stderr, test.want) {
			t.Errorf("%v: exit code %d, %q", test.args, code, stderr)
		}
		if got := s.asked(); got != "" {
			t.Errorf("%v asked %s", test.args, got)
		}
	}
	out := filepath.Join(dir, "a", "b")
	if code, stderr := s.call(t, io.Discard, "run", program, "--file", program+":in/x", "--out", out); code != 0 || stderr != "" {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	left, err := os.ReadDir(out)
	if err != nil || len(left) != 1 || left[0].Name() != "f" {
		t.Errorf("saved: %v, %v", left, err)
	}
}

func TestDurationsArePositive(t *testing.T) {
	s := newFakeService(t)
	program := localFile(t, "x.py", "")
	for _, args := range [][]string{
		{"run", program, "--timeout", "0s"}, {"run", program, "--timeout=-1s"}, {"run", program, "--timeout", "90"},
		{"session", "create", "--idle-ttl", "0"}, {"session", "create", "--idle-ttl=-1h"},
	} {
		code, stderr := s.call(t, io.Discard, args...)
		if code != 2 || !strings.Contains(stderr, "accepted is a time of more than nothing, such as 90s or 1h") || s.asked() != "" {
			t.Errorf("%v: exit code %d, %q", args, code, stderr)
		}
	}
	if code, stderr := s.call(t, io.Discard, "session", "create", "--idle-ttl", "1h"); code != 0 || stderr != "" {
		t.Errorf("an hour: exit code %d, %q", code, stderr)
	}
}

func TestMessagesBeginALine(t *testing.T) {
	s := newFakeService(t)
	for stderr, want := range map[string]string{
		"":                        "aivory-sandbox: 1 file(s)",
		"said\n":                  "said\naivory-sandbox: 1 file(s)",
		"execution was cancelled": "execution was cancelled\naivory-sandbox: 1 file(s)",
	} {
		s.stderr = stderr
		if _, got := s.call(t, io.Discard, "run", localFile(t, "x.py", "")); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q", stderr, got)
		}
	}
}

func TestNoKey(t *testing.T) {
	s := newFakeService(t)
	for _, test := range []struct {
		environ []string
		want    bool
	}{{nil, true}, {[]string{"SANDBOX_API_KEY="}, true}, {[]string{"SANDBOX_API_KEY=wrong"}, false}} {
		var stderr bytes.Buffer
		code := run(t.Context(), []string{"session", "show", "s1"}, append(test.environ, "SANDBOX_URL="+s.URL), io.Discard, &stderr)
		text := stderr.String()
		if code != 1 || !strings.Contains(text, "unauthorized") || strings.Contains(text, "SANDBOX_API_KEY is not set") != test.want {
			t.Errorf("%q: exit code %d, %q", test.environ, code, text)
		}
	}
}

func TestArchiveKeyWithoutStorage(t *testing.T) {
	s := newFakeService(t)
	for _, test := range []struct {
		provider string
		args     []string
		warned   bool
	}{
		{"", []string{"--archive-key", "k"}, true},
		{"local", []string{"--archive-key", "k"}, false},
		{"", nil, false},
	} {
		s.provider = test.provider
		var stdout bytes.Buffer
		code, stderr := s.call(t, &stdout, append([]string{"session", "create"}, test.args...)...)
		if code != 0 || stdout.String() != "s1\n" || strings.Contains(stderr, "SANDBOX_LOCAL_STORAGE_DIR") != test.warned || (stderr != "") != test.warned {
			t.Errorf("%+v: exit code %d, %q, %q", test, code, &stdout, stderr)
		}
	}
}
