package clientfront

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const id = "11111111111111111111111111111111"

// stand is a front before a service that a test makes up.
type stand struct {
	*Front
	address string
	mu      sync.Mutex
	got     []string // requests as they came to the service
}

func newStand(t *testing.T, handle http.HandlerFunc) *stand {
	t.Helper()
	s := &stand{}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the caller has left
		}
		s.mu.Lock()
		s.got = append(s.got, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", r.Method, r.URL.EscapedPath(), r.Header.Get("Authorization"), body)))
		s.mu.Unlock()
		handle(w, r)
	}))
	t.Cleanup(service.Close)
	front, err := New(service.URL)
	if err != nil {
		t.Fatal(err)
	}
	s.Front = front
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = l.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- front.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// asked returns what came to the service since the last time.
func (s *stand) asked() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := strings.Join(s.got, "; ")
	s.got = nil
	return got
}

// send sends a request as it is, and returns the answer.
func (s *stand) send(t *testing.T, wire string) string {
	t.Helper()
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, wire); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: wire[:strings.Index(wire, " ")]})
	if err != nil {
		t.Fatalf("%.100q: %v", wire, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%.100q: %v", wire, err)
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, body)
}

// request writes a request down. A header "-NAME" leaves one out.
func request(where, body string, headers ...string) string {
	all := []string{"Host: x", "Authorization: Bearer key"}
	if body != "" {
		all = append(all, "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body)))
	}
	for _, h := range headers {
		if name, out := strings.CutPrefix(h, "-"); out {
			for i, have := range all {
				if strings.HasPrefix(have, name) {
					all = append(all[:i:i], all[i+1:]...)
					break
				}
			}
			continue
		}
		all = append(all, h)
	}
	return where + " HTTP/1.1\r\n" + strings.Join(all, "\r\n") + "\r\n\r\n" + body
}

func TestRequestsOfTheClient(t *testing.T) {
	s := newStand(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/sessions":
			_, _ = io.WriteString(w, `{"session_id":"`+id+`"}`)
		case "/exec":
			_, _ = io.WriteString(w, `{"stdout":"<4>\n","stderr":"","exit_code":3,"files":[],"reason":"exit"}`)
		case "/files/get":
			_, _ = io.WriteString(w, `{"data_base64":"aGk="}`)
		case "/files/list":
			_, _ = io.WriteString(w, `{"files":[]}`)
		case "/files/reset-inputs":
			_, _ = io.WriteString(w, `{"ok":false,"session_gone":true}`)
		case "/storage/delete":
			_, _ = io.WriteString(w, `{"ok":true,"key":"p/k"}`)
		case "/storage/gc":
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, `{"detail":[{"type":"t","loc":["body",1],"msg":"m","input":1}]}`)
		case "/storage/put":
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			_, _ = io.WriteString(w, `{"error":"request body exceeds 1 bytes"}`)
		case "/healthz":
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"ok":false,"docker":"","image":"i","image_ready":true,"driver":"d","runtime":""}`)
		case "/files":
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			_, _ = io.WriteString(w, `{"detail":"file too large"}`)
		default:
			_, _ = io.WriteString(w, `{"ok":true,"cancelled":true}`)
		}
	})
	for _, test := range []struct{ where, body, asked, answer string }{
		{"GET /healthz", "", "GET /healthz Bearer key", `503 {"ok":false,"docker":"","image":"i","image_ready":true,"driver":"d","runtime":""}`},
		{"POST /sessions", "", "POST /sessions Bearer key {}", `200 {"session_id":"` + id + `"}`},
		{
			"POST /sessions", `{"idle_ttl_sec": 5, "archive_key": "k", "storage": {"provider": "s3", "s3_bucket": "b"}}`,
			`POST /sessions Bearer key {"archive_key":"k","idle_ttl_sec":5,"storage":{"provider":"s3","s3_bucket":"b"}}`, `200 {"session_id":"` + id + `"}`,
		},
		{"POST /sessions", `{"idle_ttl_sec": 0, "archive_key": null, "storage": null}`, "POST /sessions Bearer key {}", `200 {"session_id":"` + id + `"}`},
		{"DELETE /sessions/a%20b", `{"discard": true}`, `DELETE /sessions/a%20b Bearer key {"discard":true}`, `200 {"ok":true}`},
		{
			"POST /exec", `{"session_id": "` + id + `", "code": "\ud83d\ude00\\ud800", "timeout_ms": 1500}`,
			`POST /exec Bearer key {"code":"😀\\ud800","session_id":"` + id + `","timeout_ms":1500}`,
			`200 {"stdout":"<4>\n","stderr":"","exit_code":3,"files":[],"reason":"exit","truncated":false,"skipped_files":0,"usage":{"wall_seconds":0,"cpu_seconds":0,"peak_memory_bytes":0}}`,
		},
		{"POST /exec/cancel", `{"session_id": "x"}`, `POST /exec/cancel Bearer key {"session_id":"x"}`, `200 {"ok":true,"cancelled":true}`},
		{"POST /files", `{"session_id": "x", "path": "p", "data_base64": "aGk="}`, `POST /files Bearer key {"path":"p","session_id":"x","data_base64":"aGk="}`, `413 {"detail":"file too large"}`},
		{"POST /files/get", `{"session_id": "x", "path": "p"}`, `POST /files/get Bearer key {"path":"p","session_id":"x"}`, `200 {"data_base64":"aGk="}`},
		{"POST /files/list", `{"session_id": "x"}`, `POST /files/list Bearer key {"session_id":"x"}`, `200 {"files":[]}`},
		{"POST /files/reset-inputs", `{"session_id": "x"}`, `POST /files/reset-inputs Bearer key {"session_id":"x"}`, `200 {"ok":false,"session_gone":true}`},
		{
			"POST /storage/put", `{"key": "k", "data_base64": "", "content_type": "a/b", "expires_in": 7, "storage": {}}`,
			`POST /storage/put Bearer key {"content_type":"a/b","expires_in":7,"key":"k","storage":{"provider":""},"data_base64":""}`, `413 {"error":"request body exceeds 1 bytes"}`,
		},
		{"POST /storage/delete", `{"key": "k"}`, `POST /storage/delete Bearer key {"key":"k","storage":{"provider":""}}`, `200 {"ok":true,"key":"p/k"}`},
		{
			"POST /storage/gc", `{"max_age_seconds": -1, "storage": {"provider": "local"}}`,
			`POST /storage/gc Bearer key {"max_age_seconds":-1,"storage":{"provider":"local"}}`, `422 {"detail":[{"type":"t","loc":["body",1],"msg":"m"}]}`,
		},
	} {
		if answer := s.send(t, request(test.where, test.body)); answer != test.answer {
			t.Errorf("%s: answered\n%s, not\n%s", test.where, answer, test.answer)
		}
		if asked := s.asked(); asked != test.asked {
			t.Errorf("%s: asked\n%s, not\n%s", test.where, asked, test.asked)
		}
	}
	if c := s.Counts(); c.Typed != 14 || len(c.Passed) != 0 {
		t.Errorf("counted %+v", c)
	}
}

// What the client cannot say comes to the service as it was.
func TestRequestsThatArePassedOn(t *testing.T) {
	s := newStand(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "as it is")
	})
	session := func(fields string) string { return `{"session_id":"x"` + fields + `}` }
	for _, test := range []struct{ reason, wire string }{
		{"method or path", request("GET /nowhere", "")},
		{"method or path", request("PUT /exec", session(`,"code":""`))},
		{"method or path", request("DELETE /sessions/a%2fb", "")},
		{"method or path", request("DELETE /sessions/%61", "")},
		{"method or path", request("POST /exec/", session(`,"code":""`))},
		{"method or path", request("POST /exec/stream", session(`,"code":""`))},
		{"query or absolute URL", request("GET /healthz?x", "")},
		{"body of a GET", request("GET /healthz", "{}")},
		{"HTTP/1.0", strings.Replace(request("GET /healthz", ""), "/1.1", "/1.0", 1)},
		{"header", request("GET /healthz", "", "X-Other: 1")},
		{"content type", request("POST /files/list", session(""), "-Content-Type")},
		{"content type", request("POST /files/list", session(""), "-Content-Type", "Content-Type: application/JSON")},
		{"authorization", request("POST /files/list", session(""), "-Authorization", "Authorization: bearer key")},
		{"authorization", request("POST /files/list", session(""), "Authorization: Bearer key")},
		{"authorization", request("POST /files/list", session(""), "-Authorization", "Authorization: Bearer  key")},
		{"malformed JSON", request("POST /files/list", "{")},
		{"malformed JSON", request("POST /files/list", session(",\"a\":\"\xff\""))},
		{"malformed JSON", request("POST /exec", "")},
		{"no object", request("POST /sessions", "[]")},
		{"name that is there twice", request("POST /files/list", session(`,"session_id":"y"`))},
		{"field that the client does not send", request("POST /files/list", session(`,"x":1`))},
		{"field that the client does not send", request("DELETE /sessions/x", `{"archive_key":"k"}`)},
		{"missing field", request("POST /files/list", "{}")},
		{"type of a field", request("POST /files/list", `{"session_id":1}`)},
		{"type of a field", request("POST /files/list", `{"session_id":null}`)},
		{"type of a field", request("POST /exec", session(`,"code":"","timeout_ms":"5"`))},
		{"type of a field", request("POST /exec", session(`,"code":"","timeout_ms":5.0`))},
		{"type of a field", request("DELETE /sessions/x", `{"discard":1}`)},
		{"type of a field", request("POST /storage/gc", `{"max_age_seconds":null}`)},
		{"number that is no duration", request("POST /exec", session(`,"code":"","timeout_ms":-1`))},
		{"number that is no duration", request("POST /storage/gc", `{"max_age_seconds":99999999999999999999}`)},
		{"string that is no Unicode", request("POST /exec", session(`,"code":"\ud800"`))},
		{"string that is no Unicode", request("POST /exec", session(`,"code":"a\\\n\ude00\ud83d"`))},
		{"Base64 that no encoder gives", request("POST /files", session(`,"path":"p","data_base64":"aGk"`))},
		{"Base64 that no encoder gives", request("POST /files", session(`,"path":"p","data_base64":"aG\nk="`))},
		{"storage block: field that the client does not send", request("POST /sessions", `{"storage":{"provider":"s3","x":"y"}}`)},
		{"storage block: type of a field", request("POST /sessions", `{"storage":{"provider":1}}`)},
	} {
		before := s.Counts()
		if answer := s.send(t, test.wire); answer != "418 as it is" {
			t.Errorf("%s: answered %s", test.reason, answer)
		}
		line, rest, _ := strings.Cut(test.wire, " HTTP/")
		_, body, _ := strings.Cut(rest, "\r\n\r\n")
		line, _, _ = strings.Cut(line, "?")
		if asked := s.asked(); !strings.HasPrefix(asked, line) || !strings.HasSuffix(asked, strings.TrimSpace(body)) {
			t.Errorf("%q came as %q", test.wire, asked)
		}
		if after := s.Counts(); after.Passed[test.reason] != before.Passed[test.reason]+1 || after.Total() != before.Total()+1 {
			t.Errorf("%.80q is not counted under %s: %v, then %v", test.wire, test.reason, before, after)
		}
	}
}

// A connection has several requests, the first that is passed on takes the rest
// with it.
func TestConnectionOfManyRequests(t *testing.T) {
	s := newStand(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, `{"files":[]}`) })
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	list := request("POST /files/list", `{"session_id":"x"}`)
	if _, err := io.WriteString(conn, list+list+request("GET /nowhere", "")+list); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	for i := range 4 {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
			t.Errorf("answer %d: %d, %v", i, resp.StatusCode, err)
		}
	}
	if c := s.Counts(); c.Typed != 2 || c.Total() != 3 {
		t.Errorf("counted %+v", c)
	}
}

// A body that is announced and does not come keeps nobody from answering.
func TestBodyThatDoesNotCome(t *testing.T) {
	s := newStand(t, nil)
	early := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	}))
	defer early.Close()
	u, err := url.Parse(early.URL)
	if err != nil {
		t.Fatal(err)
	}
	s.host = u.Host
	if answer := s.send(t, request("POST /exec", "", "Content-Type: application/json", "Content-Length: 99999999")); answer != "413 " {
		t.Errorf("answered %s", answer)
	}
	if c := s.Counts(); c.Passed["body that does not come"] != 1 {
		t.Errorf("counted %+v", c)
	}
}

// Who leaves ends the call that was made for it.
func TestCallerThatLeaves(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	s := newStand(t, func(w http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		close(ended)
	})
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request("POST /exec", `{"session_id":"x","code":""}`)); err != nil {
		t.Fatal(err)
	}
	<-began
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
}
