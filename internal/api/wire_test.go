package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/session"
)

// eventually waits for something that another goroutine does.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not in ten seconds", what)
		}
	}
}

func TestBodyTypes(t *testing.T) {
	s := start(t)
	body := `{"session_id":"` + live + `"}`
	refused := `422 {"detail":[{"type":"model_attributes_type","loc":["body"],"msg":"Input should be a valid dictionary or object to extract fields from","input":` + asJSON(t, body) + `}]}`
	accepted := `200 {"files":[]}`
	missing := `422 {"detail":[{"type":"missing","loc":["body"],"msg":"Field required","input":null}]}`
	const unparsable = `400 {"detail":"There was an error parsing the body"}`
	for _, test := range []struct{ header, body, want string }{
		{"Content-Type: ", body, accepted},
		{"Content-Type: application/json; charset=utf-8", body, accepted},
		{"Content-Type: APPLICATION/JSON", body, accepted},
		{"Content-Type:  application/json ;charset=\"utf-8\" ", body, accepted},
		{"Content-Type: application/vnd.api+json", body, accepted},
		{"Content-Type: text/plain", body, refused},
		{"Content-Type: text/json", body, refused},
		{"Content-Type: application/x-www-form-urlencoded", body, refused},
		{"Content-Type: application/octet-stream", body, refused},
		{"Content-Type: application/json/x", body, refused},
		{"Content-Type: garbage", body, refused},
		{"Content-Type: text/plain", "", missing},
		{"Content-Type: text/plain", "\xff", `422 {"detail":[{"type":"model_attributes_type","loc":["body"],"msg":"Input should be a valid dictionary or object to extract fields from","input":"` + "\uFFFD" + `"}]}`},
		{"Content-Encoding: gzip", "\x1f\x8b\x08", unparsable},
		{"Content-Encoding: gzip", body, unparsable},
		{"Content-Encoding: identity", body, accepted},
		{"X: y", "", missing},
		{"X: y", "null", missing},
		{"X: y", "\xEF\xBB\xBF", `422 {"detail":[{"type":"json_invalid","loc":["body",0],"msg":"JSON decode error","input":{},"ctx":{"error":"Expecting value"}}]}`},
		{"X: y", body + " x", `422 {"detail":[{"type":"json_invalid","loc":["body",50],"msg":"JSON decode error","input":{},"ctx":{"error":"Extra data"}}]}`},
		{"X: y", "[]", `422 {"detail":[{"type":"model_attributes_type","loc":["body"],"msg":"Input should be a valid dictionary or object to extract fields from","input":[]}]}`},
		{"X: y", `"x"`, `422 {"detail":[{"type":"model_attributes_type","loc":["body"],"msg":"Input should be a valid dictionary or object to extract fields from","input":"x"}]}`},
		{"X: y", "12", `422 {"detail":[{"type":"model_attributes_type","loc":["body"],"msg":"Input should be a valid dictionary or object to extract fields from","input":12}]}`},
		{"X: y", "\xff", unparsable},
		{"X: y", strings.Repeat("[", 50_000), unparsable},
		{"X: y", `{"x":` + strings.Repeat("9", 5000) + `}`, unparsable},
	} {
		got := s.do(t, "POST", "/files/list", test.body, test.header)
		if got := fmt.Sprint(got.status, " ", got.body); got != test.want {
			t.Errorf("%s, %.30q: %s, want %s", test.header, test.body, got, test.want)
		}
	}
}

// An error never repeats more than a part of what was sent.
func TestErrorsAreShort(t *testing.T) {
	s := start(t)
	long := strings.Repeat("é", 20_000)
	for _, body := range []string{
		`{"session_id":"` + live + `","code":"` + long + `"}`, `{"x":"` + long + `"}`, `"` + long + `"`, `["` + long + `"]`, long, `{"session_id":["` + long + `"],"timeout_ms":"` + long + `"}`,
	} {
		for _, header := range []string{"X: y", "Content-Type: text/plain"} {
			got := s.do(t, "POST", "/exec", body, header)
			if got.status != 422 || len(got.body) > 8000 || !json.Valid([]byte(got.body)) {
				t.Errorf("%.30s: %d with %d bytes: %.100s", body, got.status, len(got.body), got.body)
			}
		}
	}
}

// chunked sends a body without a length, in small parts.
func (s *service) chunked(t testing.TB, path, body string) answer {
	t.Helper()
	r, err := http.NewRequest("POST", s.url+path, io.MultiReader(strings.NewReader(body)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+testKey)
	resp, err := noRedirect.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(got), resp.Close}
}

func TestChunkedBodies(t *testing.T) {
	s := start(t)
	body := func(n int) string {
		head, end := `{"session_id":"`+live+`","x":"`, `"}`
		return head + strings.Repeat("x", n-len(head)-len(end)) + end
	}
	if got := s.chunked(t, "/files/list", body(300_000)); got.status != 200 {
		t.Errorf("a body of the limit: %d %s", got.status, got.body)
	}
	for name, text := range map[string]string{
		"valid": body(300_001), "broken early": `{,` + body(300_000), "no JSON at all": strings.Repeat("\xff", 300_001), "much longer": body(3_000_000),
	} {
		if got := s.chunked(t, "/files/list", text); got.status != 413 || got.body != `{"error":"request body exceeds 300000 bytes"}` {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	if got := s.chunked(t, "/storage/put", body(350_000)); got.status != 422 {
		t.Errorf("an object: %d %s", got.status, got.body)
	}
}

// A connection serves the next request after an error, where that can be.
func TestConnectionAfterErrors(t *testing.T) {
	s := start(t)
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	for i, body := range []string{`{"a":1,}`, "\xff", strings.Repeat("x", 90_000), `{}`} {
		for _, path := range []string{"/exec", "/nope", "/sessions"} {
			key := testKey
			if i == 2 {
				key = "nope"
			}
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", path, key, len(body), body)
			if got := readAnswer(t, conn, "POST"); got.closes || got.status == 200 && i != 3 {
				t.Errorf("%s of %.20q: %d, closes %t", path, body, got.status, got.closes)
			}
		}
	}
}

// A body that nobody wants is cut off so that a client which is still sending it
// can read the answer: a connection that is closed at once is reset.
func TestAnswerBeforeTheBodyIsThere(t *testing.T) {
	s := start(t)
	const key = "Authorization: Bearer " + testKey
	part := strings.Repeat(" ", 200_000)
	for _, closes := range []string{"", "Connection: close\r\n"} {
		for name, test := range map[string]struct {
			path, header, body string
			status             int
		}{
			"too large":    {"/files/list", key + "\r\nContent-Length: 900000", part, 413},
			"chunked":      {"/files/list", key + "\r\nTransfer-Encoding: chunked", "80000\r\n" + part + part, 413},
			"unauthorized": {"/storage/put", "Content-Length: 290000", part, 401},
			"no such path": {"/nowhere", key + "\r\nContent-Length: 290000", part, 404},
		} {
			t.Run(name+" "+closes, func(t *testing.T) {
				conn, err := net.Dial("tcp", s.addr)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
				fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\n%s%s\r\n\r\n%s", test.path, closes, test.header, test.body)
				if got := readAnswer(t, conn, "POST"); got.status != test.status || !got.closes {
					t.Errorf("%d %s, closes %t", got.status, got.body, got.closes)
				}
				if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
					t.Errorf("after the answer: %v", err)
				}
			})
		}
	}
}

func TestSlowBody(t *testing.T) {
	s := start(t, func(c *Config) { c.StallTimeout = 100 * time.Millisecond })
	got := s.raw(t, "POST /files/list HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+testKey+"\r\nContent-Length: 100\r\n\r\n{")
	if got.status != 408 || !got.closes {
		t.Errorf("%d %s, closes %t", got.status, got.body, got.closes)
	}
	// Each part has the time anew.
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"session_id":"` + live + `"}`
	fmt.Fprintf(conn, "POST /files/list HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", testKey, len(body))
	for i := range len(body) / 7 {
		time.Sleep(20 * time.Millisecond)
		_, _ = io.WriteString(conn, body[7*i:7*i+7])
	}
	_, _ = io.WriteString(conn, body[len(body)/7*7:])
	if got := readAnswer(t, conn, "POST"); got.status != 200 {
		t.Errorf("a steady body: %d %s", got.status, got.body)
	}
}

// A run may take longer than a client may be silent in a body.
func TestLongRun(t *testing.T) {
	s := start(t, func(c *Config) { c.StallTimeout = 50 * time.Millisecond })
	s.sessions.exec = func(ctx context.Context) (*session.Execution, error) {
		select {
		case <-time.After(300 * time.Millisecond):
			return &session.Execution{Execution: &runner.Execution{Reason: runner.ReasonExit}}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if got := s.do(t, "POST", "/exec", `{"session_id":"`+live+`","code":""}`); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestClientGoesAway(t *testing.T) {
	s := start(t)
	started, ended := make(chan struct{}), make(chan error, 1)
	s.sessions.exec = func(ctx context.Context) (*session.Execution, error) {
		close(started)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, "POST", s.url+"/exec", strings.NewReader(`{"session_id":"`+live+`","code":""}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+testKey)
	go func() { <-started; cancel() }()
	if resp, err := noRedirect.Do(r); err == nil {
		resp.Body.Close()
		t.Errorf("got an answer: %d", resp.StatusCode)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the run ended with %v", err)
	}
	eventually(t, "the log line", func() bool { return len(s.log.lines("msg=request", "status=499")) == 1 })
	if found := s.log.lines("level=ERROR"); len(found) > 0 {
		t.Errorf("logged as an error: %s", found)
	}
}

// closing notes that it was closed.
type closing struct {
	io.Reader
	closed chan struct{}
}

func (c closing) Close() error { close(c.closed); return nil }

// A reader that stands still gives the session back.
func TestSlowReader(t *testing.T) {
	s := start(t, func(c *Config) { c.StallTimeout = 100 * time.Millisecond })
	closed := make(chan struct{})
	const size = 64 << 20
	s.sessions.read = func(context.Context) (io.ReadCloser, int64, error) {
		return closing{zeros{}, closed}, size, nil
	}
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"session_id":"` + live + `","path":"a"}`
	fmt.Fprintf(conn, "POST /files/get HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", testKey, len(body), body)
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Fatal("the file is still open")
	}
	got, err := io.Copy(io.Discard, conn)
	if got >= size {
		t.Errorf("all of it came: %d bytes, %v", got, err)
	}
	eventually(t, "the log line", func() bool { return len(s.log.lines("msg=request", "route=/files/get")) == 1 })
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A file that breaks off in the middle breaks the answer off.
func TestBrokenFile(t *testing.T) {
	s := start(t)
	s.sessions.read = func(context.Context) (io.ReadCloser, int64, error) {
		return io.NopCloser(bytes.NewReader(make([]byte, 1<<20))), 2 << 20, nil
	}
	body := `{"session_id":"` + live + `","path":"a"}`
	r, err := http.NewRequest("POST", s.url+"/files/get", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+testKey)
	resp, err := noRedirect.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); err == nil || resp.StatusCode != 200 {
		t.Errorf("%d and %d bytes look complete", resp.StatusCode, len(got))
	}
	eventually(t, "the log line", func() bool { return len(s.log.lines("msg=request", "route=/files/get")) == 1 })
	if found := s.log.lines("level=ERROR"); len(found) != 1 || !strings.Contains(found[0], "unexpected EOF") {
		t.Errorf("logged %q", found)
	}
	// Nothing has left yet: an ordinary error.
	s.sessions.read = func(context.Context) (io.ReadCloser, int64, error) {
		return io.NopCloser(strings.NewReader("")), 2 << 20, nil
	}
	if got := s.do(t, "POST", "/files/get", body); got.status != 500 || got.body != `{"detail":"internal error"}` {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestLogLines(t *testing.T) {
	s := start(t)
	const secret = "not-for-the-log"
	got := s.do(t, "POST", "/files/list?token="+secret, `{"session_id":"`+secret+`","storage":{"s3_secret_key":"`+secret+`"}}`)
	id := got.header.Get("X-Request-Id")
	eventually(t, "the log line", func() bool { return len(s.log.lines("msg=request ", id)) == 1 })
	if line := s.log.lines("msg=request ", id)[0]; !strings.Contains(line, "method=POST route=/files/list status=400 duration=") || !strings.Contains(line, fmt.Sprint("bytes=", len(got.body))) {
		t.Errorf("logged %s", line)
	}
	if found := s.log.lines("request failed", id, "level=DEBUG"); len(found) != 1 {
		t.Errorf("the error is logged %d times", len(found))
	}
	s.do(t, "POST", "/exec", `{"code":"`+secret+`","session_id":1}`)
	s.do(t, "POST", "/exec", "", "Authorization: Bearer "+secret)
	s.do(t, "DELETE", "/sessions/"+secret, "")

	s.sessions.err = fault.Wrap(fault.Internal, session.DetailRunnerFailure, errors.New("engine said no"))
	got = s.do(t, "POST", "/files/list", `{"session_id":"`+live+`"}`)
	id = got.header.Get("X-Request-Id")
	if found := s.log.lines("level=ERROR", "engine said no", id); len(found) != 1 || strings.Contains(got.body, "engine") {
		t.Errorf("logged %q, answered %s", found, got.body)
	}
	s.sessions.err, s.sessions.panics = nil, true
	got = s.do(t, "POST", "/files/list", `{"session_id":"`+live+`"}`)
	id = got.header.Get("X-Request-Id")
	if found := s.log.lines("level=ERROR", id); len(found) != 1 || !strings.Contains(found[0], "a bug") || got.status != 500 || got.body != `{"detail":"internal error"}` {
		t.Errorf("a panic: logged %q, answered %d %s", found, got.status, got.body)
	}
	eventually(t, "the last line", func() bool { return len(s.log.lines("msg=request ", id)) == 1 })
	if strings.Contains(s.log.String(), secret) || strings.Contains(s.log.String(), testKey) {
		t.Errorf("the log gives something away:\n%s", s.log.String())
	}
	s.sessions.panics = false
}

func TestErrorStatuses(t *testing.T) {
	s := start(t)
	for kind, status := range map[fault.Kind]int{
		fault.Internal: 500, fault.Invalid: 400, fault.NotFound: 404, fault.Conflict: 409, fault.TooLarge: 413,
		fault.Unprocessable: 422, fault.Busy: 429, fault.Upstream: 502, fault.Unavailable: 503, fault.Kind(200): 500,
	} {
		s.sessions.err = fmt.Errorf("while listing: %w", fault.Wrap(kind, "told", errors.New("untold")))
		got := s.ask(t, "POST", "/files/list", `{"session_id":"`+live+`"}`)
		if got.status != status || strings.Contains(got.body, "untold") || kind != fault.Kind(200) && got.body != `{"detail":"told"}` {
			t.Errorf("%d: %d %s", kind, got.status, got.body)
		}
	}
	s.sessions.err = errors.New("untold")
	if got := s.do(t, "POST", "/files/list", `{"session_id":"`+live+`"}`); got.status != 500 || got.body != `{"detail":"internal error"}` {
		t.Errorf("an error of no kind: %d %s", got.status, got.body)
	}
}

func noFiles(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}
