package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"
)

const id1, id2 = "11111111111111111111111111111111", "22222222222222222222222222222222"

// server answers as a test says and notes what it was asked.
type server struct {
	*httptest.Server
	mu    sync.Mutex
	calls []string // "METHOD path"
}

func newServer(t *testing.T, handle func(w http.ResponseWriter, r *http.Request, body map[string]any)) (*server, *Client) {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.calls = append(s.calls, r.Method+" "+r.URL.Path)
		s.mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer key" {
			t.Errorf("%s without the key", r.URL)
		}
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client's doing
		}
		var body map[string]any
		if len(text) > 0 && json.Unmarshal(text, &body) != nil {
			t.Errorf("%s with %.200q", r.URL, text)
		}
		handle(w, r, body)
	}))
	t.Cleanup(s.Close)
	c, err := New(s.URL+"/", "key", WithHTTPClient(s.Client()))
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

func (s *server) asked() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := strings.Join(s.calls, ", ")
	s.calls = nil
	return calls
}

func answer(w http.ResponseWriter, status int, body string) {
	w.Header().Set("X-Request-Id", "0123456789abcdef")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

func TestNew(t *testing.T) {
	for _, bad := range []string{"", "127.0.0.1:1", "ftp://x", "http://", "http://a b"} {
		if _, err := New(bad, ""); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	t.Setenv("SANDBOX_URL", "")
	t.Setenv("SANDBOX_API_KEY", "k")
	if c, err := FromEnv(); err != nil || c.base.String() != "http://127.0.0.1:48217" || c.key != "k" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestErrors(t *testing.T) {
	var status int
	var text string
	_, c := newServer(t, func(w http.ResponseWriter, _ *http.Request, _ map[string]any) { answer(w, status, text) })
	for _, test := range []struct {
		status int
		body   string
		kind   error
		detail string
	}{
		{400, `{"detail":"invalid session_id"}`, ErrInvalid, "invalid session_id"},
		{401, `{"error":"unauthorized"}`, ErrUnauthorized, "unauthorized"},
		{404, `{"detail":"session not found or not running"}`, ErrSessionLost, "session not found or not running"},
		{408, `{"detail":"x"}`, ErrTimeout, "x"},
		{413, `{"error":"request body exceeds 1 bytes"}`, ErrTooLarge, "request body exceeds 1 bytes"},
		{422, `{"detail":[{"type":"missing","loc":["body","code"],"msg":"Field required"},{"type":"x","loc":["body",7],"msg":"m"}]}`, ErrUnprocessable, "body.code: Field required; body.7: m"},
		{429, `{"detail":"session is busy"}`, ErrBusy, "session is busy"},
		{500, `{"detail":"sandbox runner failed"}`, ErrInternal, "sandbox runner failed"},
		{502, `<html>bad gateway</html>`, ErrStorage, ""},
		{503, ``, ErrUnavailable, ""},
		{503, `{"detail":{"a":1}}`, ErrUnavailable, ""},
	} {
		status, text = test.status, test.body
		_, err := c.Session(id1).Exec(t.Context(), Run{})
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, test.kind) || e.Status != test.status || e.Detail != test.detail || e.RequestID != "0123456789abcdef" {
			t.Errorf("%d %s: %v", test.status, test.body, err)
		}
		for _, other := range []error{ErrInvalid, ErrBusy, ErrInternal} {
			if other != test.kind && errors.Is(err, other) {
				t.Errorf("%d is also %v", test.status, other)
			}
		}
	}
	status, text = 422, `{"detail":[{"type":"missing","loc":["body","code"],"msg":"Field required"}]}`
	var e *Error
	if _, err := c.Session(id1).Exec(t.Context(), Run{}); !errors.As(err, &e) || len(e.Issues) != 1 || e.Issues[0].Type != "missing" || fmt.Sprint(e.Issues[0].Loc) != "[body code]" {
		t.Errorf("issues: %+v", e)
	}
	status, text = 200, `{"stdout":`
	if _, err := c.Session(id1).Exec(t.Context(), Run{}); err == nil {
		t.Error("half an answer is taken")
	}
	_, err := New("http://127.0.0.1:1", "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Session(id1).Exec(ctx, Run{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestCalls(t *testing.T) {
	var got map[string]any
	s, c := newServer(t, func(w http.ResponseWriter, r *http.Request, body map[string]any) {
		got = body
		switch r.URL.Path {
		case "/healthz":
			answer(w, 503, `{"ok":false,"docker":"","image":"i","image_ready":true,"driver":"oci","runtime":"runc"}`)
		case "/exec":
			answer(w, 200, `{"stdout":"4\n","stderr":"e","exit_code":3,"files":[{"name":"a","mime_type":"text/plain","data_base64":"aGk="}],"reason":"exit","truncated":true,"skipped_files":2,"usage":{"wall_seconds":1.5,"cpu_seconds":1,"peak_memory_bytes":7},"new":1}`)
		case "/exec/cancel":
			answer(w, 200, `{"ok":true,"cancelled":true}`)
		case "/files/list":
			answer(w, 200, `{"files":[{"path":"a/b","size":3}]}`)
		case "/storage/put":
			answer(w, 200, `{"provider":"s3","key":"p/k","url":"https://u","expires_in":60}`)
		case "/storage/delete":
			answer(w, 200, `{"ok":true,"key":"p/k"}`)
		case "/storage/gc":
			answer(w, 200, `{"deleted":1,"scanned":2,"freed_bytes":3}`)
		case "/sessions":
			if r.Method == "GET" {
				answer(w, 200, `{"sessions":[{"session_id":"`+id2+`","state":"busy","created_at":"2026-01-02T03:04:05.678Z","usage":{"runs":4}}]}`)
				return
			}
			answer(w, 200, `{"session_id":"`+id1+`"}`)
		default:
			answer(w, 200, `{"ok":true,"session_gone":false}`)
		}
	})
	ctx := t.Context()
	if h, err := c.Health(ctx); err != nil || h.OK || h.Driver != "oci" || !h.ImageReady {
		t.Errorf("health: %+v, %v", h, err)
	}
	storage := &Storage{Provider: "s3", S3SecretKey: "SECRET"}
	if text := fmt.Sprintf("%v %+v %#v", storage, *storage, *storage); strings.Contains(text, "SECRET") {
		t.Errorf("a storage block is printed as %s", text)
	}
	session, err := c.CreateSession(ctx, CreateOptions{IdleTTL: 90 * time.Second, ArchiveKey: "k", Storage: storage})
	if err != nil || session.ID() != id1 || fmt.Sprintf("%v %v", got["idle_ttl_sec"], got["archive_key"]) != "90 k" {
		t.Errorf("create: %v, %v", got, err)
	}
	r, err := session.Exec(ctx, Run{Code: "x", Timeout: 2 * time.Second})
	if err != nil || r.Stdout != "4\n" || r.Stderr != "e" || r.ExitCode != 3 || len(r.Files) != 1 || string(r.Files[0].Data) != "hi" || r.Reason != "exit" ||
		!r.Truncated || r.SkippedFiles != 2 || r.Usage != (Usage{1.5, 1, 7}) || fmt.Sprintf("%v %v %v", got["code"], got["timeout_ms"], got["session_id"]) != "x 2000 "+id1 {
		t.Errorf("exec: %v: %+v, %v", got, r, err)
	}
	if was, err := session.Cancel(ctx); !was || err != nil {
		t.Errorf("cancel: %t, %v", was, err)
	}
	if files, err := session.ListFiles(ctx); err != nil || len(files) != 1 || files[0] != (FileInfo{"a/b", 3}) {
		t.Errorf("list: %v, %v", files, err)
	}
	if err := session.ResetInputs(ctx); err != nil {
		t.Error(err)
	}
	if list, err := c.Sessions(ctx); err != nil || len(list) != 1 || list[0].ID != id2 || list[0].Usage.Runs != 4 || list[0].Created.Year() != 2026 {
		t.Errorf("sessions: %+v, %v", list, err)
	}
	if o, err := c.PutObject(ctx, *storage, "k", "a/b", time.Minute, strings.NewReader("hi")); err != nil || o.URL != "https://u" ||
		fmt.Sprintf("%v %v %v", got["data_base64"], got["content_type"], got["expires_in"]) != "aGk= a/b 60" {
		t.Errorf("put: %v: %+v, %v", got, o, err)
	}
	if key, err := c.DeleteObject(ctx, *storage, "k"); err != nil || got["key"] != "k" || key != "p/k" {
		t.Errorf("delete: %v, %v", got, err)
	}
	if done, err := c.CollectObjects(ctx, *storage, time.Hour); err != nil || done != (Collected{1, 2, 3}) || fmt.Sprint(got["max_age_seconds"]) != "3600" {
		t.Errorf("collect: %v: %v, %v", got, done, err)
	}
	s.asked()
	if err := session.Delete(ctx, DeleteOptions{Discard: true, ArchiveKey: "k"}); err != nil || got["discard"] != true || got["archive_key"] != "k" || s.asked() != "DELETE /sessions/"+id1 {
		t.Errorf("release: %v, %v", got, err)
	}
}

// A session that is lost is made anew once, its inputs are brought back, and the
// call is tried once more.
func TestLostSession(t *testing.T) {
	alive := map[string]bool{id1: true}
	var mu sync.Mutex
	next := id1
	s, c := newServer(t, func(w http.ResponseWriter, r *http.Request, body map[string]any) {
		mu.Lock()
		defer mu.Unlock()
		id, _ := body["session_id"].(string)
		switch {
		case r.URL.Path == "/sessions":
			answer(w, 200, `{"session_id":"`+next+`"}`)
		case r.Method == "DELETE":
			answer(w, 200, `{"ok":true}`)
		case r.URL.Path == "/files/reset-inputs":
			answer(w, 200, fmt.Sprintf(`{"ok":%t,"session_gone":%t}`, alive[id], !alive[id]))
		case !alive[id]:
			answer(w, 404, `{"detail":"session not found or not running"}`)
		case r.URL.Path == "/files/get" && body["path"] == "missing":
			answer(w, 404, `{"detail":"file not found"}`)
		case r.URL.Path == "/files/get":
			answer(w, 200, `{"data_base64":"aGk="}`)
		case r.URL.Path == "/files/list":
			answer(w, 200, `{"files":[]}`)
		case r.URL.Path == "/exec":
			answer(w, 200, `{"stdout":"`+id[:1]+`","stderr":"","exit_code":0,"files":[]}`)
		default:
			answer(w, 200, `{"ok":true}`)
		}
	})
	ctx := t.Context()
	lose := func() {
		mu.Lock()
		defer mu.Unlock()
		alive = map[string]bool{id2: true}
		next = id2
	}
	restaged := 0
	options := CreateOptions{Restage: func(ctx context.Context, s *Session) error {
		restaged++
		return s.WriteFile(ctx, "uploads/in", strings.NewReader("in"))
	}}
	calls := map[string]func(s *Session) error{
		"exec": func(s *Session) error {
			r, err := s.Exec(ctx, Run{Code: "x"})
			if err == nil && r.Stdout != "2" {
				t.Errorf("ran in session %s", r.Stdout)
			}
			return err
		},
		"write": func(s *Session) error { return s.WriteFile(ctx, "a", strings.NewReader("abc")) },
		"read": func(s *Session) error {
			f, err := s.ReadFile(ctx, "a")
			if err == nil {
				err = f.Close()
			}
			return err
		},
		"list":  func(s *Session) error { _, err := s.ListFiles(ctx); return err },
		"reset": func(s *Session) error { return s.ResetInputs(ctx) },
	}
	for name, call := range calls {
		alive, next, restaged = map[string]bool{id1: true}, id1, 0
		session, err := c.CreateSession(ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		lose()
		if err := call(session); err != nil || session.ID() != id2 || restaged != 1 {
			t.Errorf("%s: %v, session %s, restaged %d times", name, err, session.ID(), restaged)
		}
		// Without Restage it is the caller's to do.
		if err := call(c.Session(id1)); !errors.Is(err, ErrSessionLost) {
			t.Errorf("%s without a way to restage: %v", name, err)
		}
	}
	// A session that is lost again at once is not tried for ever.
	session, err := c.CreateSession(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	alive = map[string]bool{}
	mu.Unlock()
	s.asked()
	if _, err := session.Exec(ctx, Run{}); err == nil {
		t.Error("no session at all")
	} else if got := s.asked(); got != "POST /exec, POST /sessions, POST /files, DELETE /sessions/"+id2 {
		t.Errorf("asked %s", got)
	}
	// A file that is missing is no lost session.
	mu.Lock()
	alive = map[string]bool{id2: true}
	mu.Unlock()
	if _, err := session.ReadFile(ctx, "missing"); !errors.Is(err, ErrNotFound) || errors.Is(err, ErrSessionLost) {
		t.Errorf("a missing file: %v", err)
	}
	// Nor is a body that cannot be read twice sent half.
	mu.Lock()
	alive, next = map[string]bool{id1: true}, id1
	mu.Unlock()
	if err := session.WriteFile(ctx, "a", io.MultiReader(strings.NewReader("abc"))); !errors.Is(err, ErrSessionLost) {
		t.Errorf("a body that cannot be read twice: %v", err)
	}
}

func TestADirectoryIsNoBody(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		answer(w, http.StatusRequestEntityTooLarge, `{"detail":"request body too large"}`)
	}))
	defer server.Close()
	c, err := New(server.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	err = c.Session(id1).WriteFile(t.Context(), "x", endless{dir})
	if err == nil || !strings.Contains(err.Error(), dir.Name()+": is a directory") {
		t.Errorf("written: %v", err)
	}
	_, err = c.PutObject(t.Context(), Storage{}, "x", "", 0, endless{dir})
	if err == nil || !strings.Contains(err.Error(), dir.Name()+": is a directory") {
		t.Errorf("stored: %v", err)
	}
	if asked > 0 {
		t.Errorf("%d requests were made", asked)
	}
}

// endless is a directory as some file systems have it: with its end where no file has.
type endless struct{ *os.File }

func (e endless) Seek(offset int64, whence int) (int64, error) {
	if whence == io.SeekEnd {
		return math.MaxInt64, nil
	}
	return e.File.Seek(offset, whence)
}

func TestFiles(t *testing.T) {
	stored := map[string]string{}
	var length int64
	_, c := newServer(t, func(w http.ResponseWriter, r *http.Request, body map[string]any) {
		length = r.ContentLength
		path := body["path"].(string)
		if r.URL.Path == "/files" {
			stored[path] = body["data_base64"].(string)
			answer(w, 200, `{"ok":true}`)
			return
		}
		answer(w, 200, " {\n\"data_base64\" : \""+stored[path]+"\"}")
	})
	session := c.Session(id1)
	for _, n := range []int{0, 1, 2, 3, encodeBlock - 1, encodeBlock, encodeBlock + 1, 3*encodeBlock + 2} {
		want := bytes.Repeat([]byte("0123456789"), n/10+1)[:n]
		for name, body := range map[string]io.Reader{"é \"1\"": bytes.NewReader(want), "b": iotest.OneByteReader(bytes.NewReader(want))} {
			if err := session.WriteFile(t.Context(), name, body); err != nil {
				t.Fatal(err)
			}
			if known := length >= 0; known != (name != "b") {
				t.Errorf("%s: length %d", name, length)
			}
			f, err := session.ReadFile(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(iotest.HalfReader(f))
			if err != nil || !bytes.Equal(got, want) || f.Close() != nil {
				t.Errorf("%d bytes came back as %d, %v", n, len(got), err)
			}
		}
	}
	// From where it stands.
	r := strings.NewReader("skipped, sent")
	_, _ = r.Seek(9, io.SeekStart)
	if err := session.WriteFile(t.Context(), "x", r); err != nil || stored["x"] != base64.StdEncoding.EncodeToString([]byte("sent")) {
		t.Errorf("stored %q, %v", stored["x"], err)
	}
	failing := io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(errors.New("disk on fire")))
	if err := session.WriteFile(t.Context(), "y", failing); err == nil || !strings.Contains(err.Error(), "disk on fire") || stored["y"] != "" {
		t.Errorf("a body that fails: %v", err)
	}
}

func TestBrokenDownloads(t *testing.T) {
	for _, text := range []string{``, `{`, `{"data_base64"`, `{"data_base64":"`, `{"data_base64":"aGk=`, `{"data_base64":"aGk`, `{"data":""}`, `[]`, `{"data_base64":"a!!="}`} {
		f, err := openData(io.NopCloser(strings.NewReader(text)))
		if err == nil {
			_, err = io.ReadAll(f)
		}
		if err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

// Memory does not grow with a file.
func TestMemoryOfLargeFiles(t *testing.T) {
	const size = 64 << 20
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/files" {
			n, _ := io.Copy(io.Discard, r.Body)
			if n < size/3*4 {
				t.Errorf("%d bytes came", n)
			}
			answer(w, 200, `{"ok":true}`)
			return
		}
		out := bufio.NewWriter(w)
		_, _ = out.WriteString(`{"data_base64":"`)
		block := bytes.Repeat([]byte("QUFB"), 1<<10)
		for range size / 3 / (1 << 10) {
			_, _ = out.Write(block)
		}
		_, _ = out.WriteString(`"}`)
		_ = out.Flush()
	}))
	defer s.Close()
	c, err := New(s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := c.Session(id1).WriteFile(t.Context(), "x", io.LimitReader(zeros{}, size)); err != nil {
		t.Fatal(err)
	}
	f, err := c.Session(id1).ReadFile(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, f)
	if err != nil || n != size/3/(1<<10)*3<<10 || f.Close() != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 8<<20 {
		t.Errorf("%d bytes were allocated for %d", used, 2*size)
	}
	s.Client().CloseIdleConnections()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// An id is one part of a path, whatever is in it.
func TestOddIDs(t *testing.T) {
	var path string
	_, c := newServer(t, func(w http.ResponseWriter, r *http.Request, _ map[string]any) {
		path = r.URL.EscapedPath()
		answer(w, 400, `{"detail":"invalid session_id"}`)
	})
	for id, want := range map[string]string{"a/../b": "/sessions/a%2F..%2Fb", "a?b#c": "/sessions/a%3Fb%23c", "中 ": "/sessions/%E4%B8%AD%20"} {
		if err := c.Session(id).Delete(t.Context(), DeleteOptions{}); !errors.Is(err, ErrInvalid) || path != want {
			t.Errorf("release of %q: asked %s: %v", id, path, err)
		}
		if _, err := c.Session(id).Info(t.Context()); !errors.Is(err, ErrInvalid) || path != want {
			t.Errorf("info of %q: asked %s: %v", id, path, err)
		}
	}
}

// JSON has no strings but Unicode: what is not is refused rather than sent with
// other characters in it.
func TestStringsThatAreNotUnicode(t *testing.T) {
	s, c := newServer(t, func(w http.ResponseWriter, r *http.Request, _ map[string]any) { answer(w, 200, `{}`) })
	session, ctx, bad := c.Session(id1), t.Context(), "caf\xe9"
	for name, call := range map[string]func() error{
		"code":        func() error { _, err := session.Exec(ctx, Run{Code: bad}); return err },
		"followed":    func() error { _, err := session.Exec(ctx, Run{Code: bad, Stdout: io.Discard}); return err },
		"written":     func() error { return session.WriteFile(ctx, bad, strings.NewReader("x")) },
		"read":        func() error { _, err := session.ReadFile(ctx, bad); return err },
		"archive key": func() error { _, err := c.CreateSession(ctx, CreateOptions{ArchiveKey: bad}); return err },
		"prefix": func() error {
			_, err := c.PutObject(ctx, Storage{Prefix: bad}, "k", "", 0, strings.NewReader("x"))
			return err
		},
		"key": func() error { _, err := c.DeleteObject(ctx, Storage{}, bad); return err },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "not valid UTF-8") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := s.asked(); got != "" {
		t.Errorf("asked %s", got)
	}
}

// The length of what is sent is told where it is known, so that what is too large
// is refused before it is sent.
func TestLengthOfObjects(t *testing.T) {
	var length int64
	var stored string
	_, c := newServer(t, func(w http.ResponseWriter, r *http.Request, body map[string]any) {
		length, stored = r.ContentLength, body["data_base64"].(string)
		answer(w, 200, `{"provider":"s3"}`)
	})
	r := strings.NewReader("skipped, sent")
	_, _ = r.Seek(9, io.SeekStart)
	if _, err := c.PutObject(t.Context(), Storage{Provider: "s3"}, "k", "", 0, r); err != nil || length <= 0 || stored != base64.StdEncoding.EncodeToString([]byte("sent")) {
		t.Errorf("length %d, stored %q: %v", length, stored, err)
	}
	if _, err := c.PutObject(t.Context(), Storage{Provider: "s3"}, "k", "", 0, io.MultiReader(strings.NewReader("sent"))); err != nil || length != -1 || stored != base64.StdEncoding.EncodeToString([]byte("sent")) {
		t.Errorf("length %d, stored %q: %v", length, stored, err)
	}
}

// What is large is sent when the service wants it, so that a refusal reaches the
// caller: a service that refuses closes the connection.
func TestLargeBodiesAreAskedFor(t *testing.T) {
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 413 x\r\nConnection: close\r\nContent-Length: 38\r\n\r\n{\"error\":\"request body exceeds 1 byte\"}")
		_ = conn.(interface{ SetLinger(int) error }).SetLinger(0) // nothing is waited for
		_ = conn.Close()
	}))
	defer refusing.Close()
	c, err := New(refusing.URL, "key")
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := c.Session(id1).WriteFile(t.Context(), "x", strings.NewReader(strings.Repeat("x", 16<<20))); !errors.Is(err, ErrTooLarge) {
			t.Fatalf("a file of known length: %v", err)
		}
		if err := c.Session(id1).WriteFile(t.Context(), "x", io.LimitReader(zeros{}, 16<<20)); !errors.Is(err, ErrTooLarge) {
			t.Fatalf("a file of unknown length: %v", err)
		}
	}
}

// TestRedirects: one would make another request of a call, and could carry a
// store's keys to another host.
func TestRedirects(t *testing.T) {
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		elsewhere, _ := newServer(t, func(w http.ResponseWriter, r *http.Request, body map[string]any) {
			fmt.Fprint(w, "{}")
		})
		s, c := newServer(t, func(w http.ResponseWriter, r *http.Request, body map[string]any) {
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, status)
		})
		var e *Error
		if err := c.Session(id1).Delete(t.Context(), DeleteOptions{Storage: &Storage{S3SecretKey: "secret"}}); !errors.As(err, &e) || e.Status != status {
			t.Errorf("%d: got %v", status, err)
		}
		if asked := s.asked() + elsewhere.asked(); asked != "DELETE /sessions/"+id1 {
			t.Errorf("%d: asked %s", status, asked)
		}
	}
	// Whoever wants them says so.
	s, _ := newServer(t, func(w http.ResponseWriter, r *http.Request, body map[string]any) {
		if r.URL.Path == "/healthz" {
			http.Redirect(w, r, "/there", http.StatusFound)
			return
		}
		fmt.Fprint(w, `{"ok":true}`)
	})
	h := *s.Client()
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return nil }
	c, err := New(s.URL, "key", WithHTTPClient(&h))
	if err != nil {
		t.Fatal(err)
	}
	if health, err := c.Health(t.Context()); err != nil || !health.OK {
		t.Errorf("got %v, %v", health, err)
	}
}

// TestDirectoryAsBody: it can seek, and says that it has no end.
func TestDirectoryAsBody(t *testing.T) {
	_, c := newServer(t, func(w http.ResponseWriter, r *http.Request, body map[string]any) {})
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := c.Session(id1).WriteFile(t.Context(), "x", dir); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("got %v", err)
	}
	endless := struct {
		io.Reader
		io.Seeker
	}{strings.NewReader("x"), seeker(math.MaxInt64)}
	if err := c.Session(id1).WriteFile(t.Context(), "x", endless); err != nil {
		t.Errorf("got %v", err)
	}
}

// seeker says that it stands at its start, or that its end is there.
type seeker int64

func (s seeker) Seek(_ int64, whence int) (int64, error) {
	if whence == io.SeekEnd {
		return int64(s), nil
	}
	return 0, nil
}
