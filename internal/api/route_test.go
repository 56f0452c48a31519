package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/hjxwz123/aivory-sandbox/internal/session"
)

func TestRoutes(t *testing.T) {
	s := start(t)
	const notFound, notAllowed = `{"detail":"Not Found"}`, `{"detail":"Method Not Allowed"}`
	tests := []struct {
		method, path string
		status       int
		body         string
		allow        string
		location     string
	}{
		{"GET", "/healthz", 200, `{"ok":true,"docker":"27.5.1","image":"img","image_ready":true,"driver":"docker","runtime":"runc"}`, "", ""},
		{"GET", "/healthz?x=1", 200, `{"ok":true,"docker":"27.5.1","image":"img","image_ready":true,"driver":"docker","runtime":"runc"}`, "", ""},
		{"HEAD", "/healthz", 405, "", "GET", ""},
		{"OPTIONS", "/healthz", 405, notAllowed, "GET", ""},
		{"POST", "/healthz", 405, notAllowed, "GET", ""},
		{"GET", "/", 404, notFound, "", ""},
		{"POST", "/nope", 404, notFound, "", ""},
		{"POST", "/files/unknown", 404, notFound, "", ""},
		{"POST", "//exec", 404, notFound, "", ""},
		{"POST", "/files/../exec", 404, notFound, "", ""},
		{"GET", "/exec", 405, notAllowed, "POST", ""},
		{"HEAD", "/exec", 405, "", "POST", ""},
		{"GET", "/sessions", 200, `{"sessions":[]}`, "", ""},
		{"PUT", "/sessions", 405, notAllowed, "GET, POST", ""},
		{"DELETE", "/sessions", 405, notAllowed, "GET, POST", ""},
		{"GET", "/sessions/" + gone, 404, `{"detail":"session not found or not running"}`, "", ""},
		{"GET", "/sessions/x", 400, `{"detail":"invalid session_id"}`, "", ""},
		{"POST", "/sessions/" + live, 405, notAllowed, "DELETE, GET", ""},
		{"POST", "/metrics", 405, notAllowed, "GET", ""},
		{"GET", "/storage/put", 405, notAllowed, "POST", ""},
		{"DELETE", "/sessions/a%2Fb", 404, notFound, "", ""},
		{"DELETE", "/sessions/a/b", 404, notFound, "", ""},
		{"DELETE", "/sessions/%0A", 400, `{"detail":"invalid session_id"}`, "", ""},
		{"POST", "/sessions/", 307, "", "", s.url + "/sessions"},
		{"GET", "/healthz/", 307, "", "", s.url + "/healthz"},
		{"GET", "/exec///?a=%20b&c", 307, "", "", s.url + "/exec?a=%20b&c"},
		{"DELETE", "/sessions/" + live + "/", 307, "", "", s.url + "/sessions/" + live},
		{"DELETE", "/sessions/a%20b%0A/", 307, "", "", s.url + "/sessions/a%20b%0A"},
	}
	for _, test := range tests {
		got := s.do(t, test.method, test.path, "")
		if got.status != test.status || got.body != test.body || got.header.Get("Allow") != test.allow || got.header.Get("Location") != test.location {
			t.Errorf("%s %s: %d %s allow %q location %q", test.method, test.path, got.status, got.body, got.header.Get("Allow"), got.header.Get("Location"))
		}
		if ct := got.header.Get("Content-Type"); test.body != "" && ct != "application/json" {
			t.Errorf("%s %s: content type %q", test.method, test.path, ct)
		}
		if id := got.header.Get("X-Request-Id"); len(id) != 16 || strings.Trim(id, hexDigits) != "" {
			t.Errorf("%s %s: request id %q", test.method, test.path, id)
		}
	}
}

func TestRoutesOnTheWire(t *testing.T) {
	s := start(t)
	const auth = "Authorization: Bearer " + testKey + "\r\n"
	tests := []struct{ request, want string }{
		{"GET /healthz HTTP/1.0\r\n\r\n", "200"},
		{"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "200"},
		{"GET /healthz/ HTTP/1.0\r\n" + auth + "\r\n", "307 http://" + s.addr + "/healthz"},
		{"GET /exec/ HTTP/1.1\r\nHost: sandbox.example:81\r\n" + auth + "\r\n", "307 http://sandbox.example:81/exec"},
		{"GET /healthz/ HTTP/1.1\r\nHost: x\r\n\r\n", "401"},
		{"OPTIONS * HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n", "404"},
		{"POST /files/list HTTP/1.1\r\nHost: x\r\n" + auth + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}", "100"},
	}
	for _, test := range tests {
		got := s.raw(t, test.request)
		if text := strings.TrimSpace(fmt.Sprint(got.status, " ", got.header.Get("Location"))); text != test.want {
			t.Errorf("%q: %s, want %s", test.request, text, test.want)
		}
	}
}

func TestStorageRoutesNeedStorage(t *testing.T) {
	h, err := New(testConfig(t.TempDir()), &fakeSessions{}, nil, discardLog)
	if err != nil {
		t.Fatal(err)
	}
	if rt, _ := h.(*api).match("/storage/put"); rt.methods != nil {
		t.Error("there is a route without a storage behind it")
	}
}

func TestAuthorization(t *testing.T) {
	s := start(t)
	const good = "Bearer " + testKey
	tests := []struct {
		headers []string
		status  int
	}{
		{[]string{good}, 200},
		{[]string{"Bearer other"}, 200},
		{[]string{"  " + good + "\t "}, 200},
		{[]string{good, "Bearer nope"}, 200},
		{[]string{"Bearer nope", good}, 401},
		{nil, 401},
		{[]string{""}, 401},
		{[]string{"Bearer"}, 401},
		{[]string{"Bearer "}, 401},
		{[]string{"Bearer nope"}, 401},
		{[]string{"bearer " + testKey}, 401},
		{[]string{"BEARER " + testKey}, 401},
		{[]string{"Bearer  " + testKey}, 401},
		{[]string{"Bearer\t" + testKey}, 401},
		{[]string{testKey}, 401},
		{[]string{"Basic azo="}, 401},
		{[]string{good + "x"}, 401},
		{[]string{good[:len(good)-1]}, 401},
		{[]string{"Bearer k\xe9"}, 401},
		{[]string{"Bearer kéé"}, 401},
	}
	for _, test := range tests {
		request := "POST /files/list HTTP/1.1\r\nHost: x\r\n"
		for _, h := range test.headers {
			request += "aUTHORIZATION: " + h + "\r\n"
		}
		body := `{"session_id":"` + live + `"}`
		got := s.raw(t, request+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body))
		if got.status != test.status || test.status == 401 && got.body != `{"error":"unauthorized"}` {
			t.Errorf("%q: %d %s", test.headers, got.status, got.body)
		}
	}
}

func TestNoAuth(t *testing.T) {
	s := start(t, func(c *Config) { c.NoAuth, c.Keys = true, nil })
	if got := s.do(t, "POST", "/sessions", "", "Authorization: "); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestNewRefuses(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no key":                     func(c *Config) { c.Keys = nil },
		"an empty key":               func(c *Config) { c.Keys = []string{"a", ""} },
		"a directory that cannot be": func(c *Config) { c.TempDir = "/dev/null/x" },
	} {
		cfg := testConfig(t.TempDir())
		change(&cfg)
		if _, err := New(cfg, &fakeSessions{}, nil, discardLog); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// Size, then key, then route, then body, then session id, and so on.
func TestOrderOfChecks(t *testing.T) {
	s := start(t)
	const (
		tooLarge      = `413 {"error":"request body exceeds 300000 bytes"}`
		unauthorized  = `401 {"error":"unauthorized"}`
		invalidID     = `400 {"detail":"invalid session_id"}`
		invalidBase64 = `400 {"detail":"invalid base64"}`
		fileTooLarge  = `413 {"detail":"file too large"}`
		outside       = `400 {"detail":"path must be under /workspace"}`
		noSession     = `404 {"detail":"session not found or not running"}`
		notConfigured = `400 {"detail":"storage backend not configured"}`
		invalidKey    = `400 {"detail":"invalid storage key"}`
	)
	declare := func(path string, n int, key bool) answer {
		auth := ""
		if key {
			auth = "Authorization: Bearer " + testKey + "\r\n"
		}
		return s.raw(t, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n", path, auth, n))
	}
	file := func(id, path, data string) answer {
		return s.do(t, "POST", "/files", fmt.Sprintf(`{"session_id":%q,"path":%q,"data_base64":%q}`, id, path, data))
	}
	put := func(block, key, data string) answer {
		return s.do(t, "POST", "/storage/put", fmt.Sprintf(`{"key":%q,"data_base64":%q,"storage":%s}`, key, data, block))
	}
	long := strings.Repeat("A", 8000)
	tests := []struct {
		what string
		got  answer
		want string
	}{
		{"size before key", declare("/exec", 300_001, false), tooLarge},
		{"size on an open route", declare("/healthz", 300_001, false), tooLarge},
		{"size on no route", declare("/nope", 300_001, true), tooLarge},
		{"a body that may be larger", declare("/storage/put", 300_001, false), unauthorized},
		{"only there", declare("/storage/put/", 300_001, false), tooLarge},
		{"and not for ever", declare("/storage/put", 400_001, true), strings.Replace(tooLarge, "300000", "400000", 1)},
		{"key before route", s.do(t, "GET", "/nope", "", "Authorization: "), unauthorized},
		{"key before method", s.do(t, "PUT", "/exec", "", "Authorization: "), unauthorized},
		{"key before body", s.do(t, "POST", "/exec", "{", "Authorization: "), unauthorized},
		{"body before id in it", s.do(t, "POST", "/exec", `{"session_id":"nope"}`), `422 {"detail":[{"type":"missing","loc":["body","code"],"msg":"Field required","input":{"session_id":"nope"}}]}`},
		{"body before id in path", s.do(t, "DELETE", "/sessions/nope", `{"discard":"maybe"}`), `422 {"detail":[{"type":"bool_parsing","loc":["body","discard"],"msg":"Input should be a valid boolean, unable to interpret input","input":"maybe"}]}`},
		{"id before base64", file("nope", "/etc/x", "!"), invalidID},
		{"base64 before size", file(gone, "/etc/x", long+"!"), invalidBase64},
		{"size before path", file(gone, "/etc/x", long), fileTooLarge},
		{"path before session", file(gone, "/etc/x", ""), outside},
		{"session", file(gone, "x", ""), noSession},
		{"storage before key", put(`null`, "", "!"), notConfigured},
		{"key before base64", put(`{"provider":" s3 "}`, "", "!"), invalidKey},
		{"base64 of an object", put(`{"provider":"s3"}`, "a", "!"), invalidBase64},
		{"a key that is not Unicode", s.do(t, "POST", "/storage/delete", `{"key":"\ud800","storage":{"provider":"s3"}}`), invalidKey},
	}
	for _, test := range tests {
		if got := fmt.Sprint(test.got.status, " ", test.got.body); got != test.want {
			t.Errorf("%s: %s, want %s", test.what, got, test.want)
		}
	}
}

func TestSessionIDs(t *testing.T) {
	s := start(t)
	for _, id := range []string{"", "abc", strings.Repeat("g", 32), strings.Repeat("A", 32), strings.Repeat("a", 31), strings.Repeat("a", 33), live + "\n", " " + live[1:], strings.Repeat("٣", 32), strings.Repeat("٣", 16), strings.Repeat("a", 1<<16), "\x00"} {
		text, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/exec", "/files/get", "/files/list", "/files/reset-inputs"} {
			got := s.do(t, "POST", path, fmt.Sprintf(`{"session_id":%s,"code":"","path":"a"}`, text))
			if got.status != 400 || got.body != `{"detail":"invalid session_id"}` {
				t.Errorf("%s of %.40q: %d %s", path, id, got.status, got.body)
			}
		}
	}
	if got := s.do(t, "POST", "/files/list", `{"session_id":"\ud800"}`); got.status != 400 {
		t.Errorf("a lone surrogate: %d %s", got.status, got.body)
	}
	if len(s.sessions.calls) > 0 {
		t.Errorf("the sessions were asked: %v", s.sessions.calls)
	}
}

func TestHealthDown(t *testing.T) {
	s := start(t)
	s.sessions.health = session.Health{Image: "img", Driver: "docker"}
	got := s.do(t, "GET", "/healthz", "", "Authorization: ")
	if got.status != 503 || got.body != `{"ok":false,"docker":"","image":"img","image_ready":false,"driver":"docker","runtime":""}` {
		t.Errorf("%d %s", got.status, got.body)
	}
}
