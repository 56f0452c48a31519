//go:build integration

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/hjxwz123/aivory-sandbox/internal/api/apitest"
	"github.com/hjxwz123/aivory-sandbox/internal/clientfront"
)

// throughClient returns the same service as one who calls it with the Go client
// sees it.
func (s *testService) throughClient(t *testing.T) (*testService, *clientfront.Front) {
	t.Helper()
	front, err := clientfront.New(s.url)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- front.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	through := *s
	through.url = "http://" + l.Addr().String()
	through.description = apitest.Description{} // request ids are told with errors alone
	return &through, front
}

// comparable returns an answer's body without what differs from run to run, or
// is not the client's to tell.
func comparable(t *testing.T, a answer) any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(a.body, &v); a.err != nil || err != nil {
		t.Fatalf("%v", a)
	}
	delete(v, "usage")
	if issues, ok := v["detail"].([]any); ok {
		for _, i := range issues {
			delete(i.(map[string]any), "input")
			delete(i.(map[string]any), "ctx")
		}
	}
	for _, name := range []string{"session_id", "created_at", "age_seconds", "idle_left_seconds"} {
		if _, ok := v[name]; ok {
			v[name] = "some"
		}
	}
	return v
}

// TestClientGivesWhatTheServiceSays sends requests to the service twice, as they
// are and through the Go client; the answers have to be equal.
func TestClientGivesWhatTheServiceSays(t *testing.T) {
	direct := startService(t, "SANDBOX_LOCAL_STORAGE_DIR="+t.TempDir(), "SANDBOX_MAX_OUTPUT_BYTES=2k", "SANDBOX_MAX_CODE_BYTES=3000", "SANDBOX_MAX_UPLOAD_BYTES=300k",
		"SANDBOX_MAX_BODY_BYTES=600k", "SANDBOX_MAX_STORAGE_BODY_BYTES=600k", "SANDBOX_MAX_FILES_PER_EXEC=3")
	through, front := direct.throughClient(t)
	local := map[string]any{"provider": "local", "prefix": "p/"}
	type fields = map[string]any
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	table := []struct {
		where string
		body  any
		// asIs tells that the client cannot make the request.
		asIs bool
	}{
		{where: "GET /healthz"},
		{where: "POST /sessions", body: fields{"idle_ttl_sec": 60, "archive_key": "{CASE}", "storage": local}},
		{where: "POST /sessions", body: fields{"storage": fields{"provider": "nothing"}}},
		{where: "POST /sessions", body: fields{"storage": fields{"provider": "s3", "s3_bucket": "b", "s3_endpoint": "::"}}},
		{where: "POST /sessions", body: fields{"idle_ttl_sec": "x"}, asIs: true},
		{where: "POST /exec", body: fields{"session_id": "{SID}", "code": "print('中', '<&>', '\\x00', '\\U0001f600')"}},
		{where: "POST /exec", body: fields{"session_id": "{SID}", "code": "import sys; print('é', file=sys.stderr); sys.exit(3)", "timeout_ms": 5000}},
		{where: "POST /exec", body: fields{"session_id": "{SID}", "code": "print('x' * 10000)"}},
		{where: "POST /exec", body: fields{"session_id": "{SID}", "code": "import sys; sys.stdout.buffer.write(b'\\xff\\xfe')"}},
		{where: "POST /exec", body: fields{"session_id": "{SID}", "code": "import time; time.sleep(9)", "timeout_ms": 1}},
		{where: "POST /exec", body: fields{"session_id": "{SID}", "code": "import os; os.kill(os.getpid(), 9)"}},
		{where: "POST /exec", body: fields{"session_id": "{SID}", "code": `
import os
os.makedirs("outputs/d")
for name, n in (("a.txt", 5), ("d/b.bin", 100000), ("empty", 0), ("z.csv", 3)): open("outputs/" + name, "wb").write(bytes(range(256)) * (n // 256) + b"x" * (n % 256))`}},
		{where: "POST /exec", body: fields{"session_id": "{SID}", "code": ""}},
		{where: "POST /exec", body: fields{"session_id": "{SID}", "code": strings.Repeat("#", 3001)}},
		{where: "POST /exec", body: fields{"session_id": "{SID}", "code": strings.Repeat("#中", 900)}},
		{where: "POST /exec", body: fields{"session_id": "{SID}"}, asIs: true},
		{where: "POST /exec", body: fields{"session_id": "{GONE}", "code": "1"}},
		{where: "POST /exec", body: fields{"session_id": "", "code": "1"}},
		{where: "POST /exec", body: `{"session_id":`, asIs: true},
		{where: "POST /exec/cancel", body: fields{"session_id": "{SID}"}},
		{where: "POST /exec/cancel", body: fields{"session_id": "{GONE}"}},
		{where: "POST /files", body: fields{"session_id": "{SID}", "path": "uploads/数据 😀.csv", "data_base64": b64("a,b\n")}},
		{where: "POST /files", body: fields{"session_id": "{SID}", "path": "empty", "data_base64": ""}},
		{where: "POST /files", body: fields{"session_id": "{SID}", "path": "large", "data_base64": b64(strings.Repeat("x", 300<<10))}},
		{where: "POST /files", body: fields{"session_id": "{SID}", "path": "larger", "data_base64": b64(strings.Repeat("x", 300<<10+1))}},
		{where: "POST /files", body: fields{"session_id": "{SID}", "path": "largest", "data_base64": b64(strings.Repeat("x", 600<<10))}},
		{where: "POST /files", body: fields{"session_id": "{SID}", "path": "../x", "data_base64": ""}},
		{where: "POST /files", body: fields{"session_id": "{SID}", "path": "", "data_base64": ""}},
		{where: "POST /files", body: fields{"session_id": "{SID}", "path": "outputs", "data_base64": ""}},
		{where: "POST /files", body: fields{"session_id": "{SID}", "path": "x", "data_base64": "a"}, asIs: true},
		{where: "POST /files", body: fields{"session_id": "{GONE}", "path": "x", "data_base64": ""}},
		{where: "POST /files", body: fields{"session_id": "x", "path": "x", "data_base64": ""}},
		{where: "POST /files/get", body: fields{"session_id": "{SID}", "path": "/workspace/uploads/数据 😀.csv"}},
		{where: "POST /files/get", body: fields{"session_id": "{SID}", "path": "empty"}},
		{where: "POST /files/get", body: fields{"session_id": "{SID}", "path": "large"}},
		{where: "POST /files/get", body: fields{"session_id": "{SID}", "path": "missing"}},
		{where: "POST /files/get", body: fields{"session_id": "{SID}", "path": "uploads"}},
		{where: "POST /files/get", body: fields{"session_id": "{SID}", "path": "/etc/passwd"}},
		{where: "POST /files/get", body: fields{"session_id": "{GONE}", "path": "x"}},
		{where: "POST /files/list", body: fields{"session_id": "{SID}"}},
		{where: "POST /files/list", body: fields{"session_id": "{GONE}"}},
		{where: "POST /files/list", body: fields{"session_id": "{SID}", "more": 1}, asIs: true},
		{where: "POST /files/reset-inputs", body: fields{"session_id": "{SID}"}},
		{where: "POST /files/reset-inputs", body: fields{"session_id": "{GONE}"}},
		{where: "POST /files/reset-inputs", body: fields{"session_id": "../x"}},
		{where: "POST /files/list", body: fields{"session_id": "{SID}"}},
		{where: "GET /sessions/{SID}"},
		{where: "GET /sessions/{GONE}"},
		{where: "GET /sessions/x%2Fy"},
		{where: "POST /storage/put", body: fields{"key": "k", "data_base64": b64("x"), "storage": local}},
		{where: "POST /storage/put", body: fields{"key": "k", "data_base64": b64("x"), "expires_in": 60, "content_type": "text/plain"}},
		{where: "POST /storage/put", body: fields{"key": "k", "data_base64": b64(strings.Repeat("x", 600<<10)), "storage": local}},
		{where: "POST /storage/put", body: fields{"key": "../k", "data_base64": "", "storage": fields{"provider": "s3", "s3_bucket": "b", "s3_access_key": "a", "s3_secret_key": "s"}}},
		{where: "POST /storage/delete", body: fields{"key": "k", "storage": local}},
		{where: "POST /storage/delete", body: fields{"key": "p/k", "storage": local}},
		{where: "POST /storage/delete", body: fields{"key": "/k", "storage": local}},
		{where: "POST /storage/delete", body: fields{"key": "k"}},
		{where: "POST /storage/gc", body: fields{"max_age_seconds": 0, "storage": local}},
		{where: "POST /storage/gc", body: fields{"max_age_seconds": -5, "storage": local}},
		{where: "POST /storage/gc", body: fields{"max_age_seconds": 100000, "storage": local}},
		{where: "POST /storage/gc", body: fields{"max_age_seconds": 1.5}, asIs: true},
		{where: "DELETE /sessions/{SID}", body: fields{"storage": local}},
		{where: "DELETE /sessions/{SID}"},
		{where: "DELETE /sessions/x"},
		{where: "DELETE /sessions/%E4%B8%AD", body: fields{"discard": true, "archive_key": "k"}},
		{where: "GET /nowhere", asIs: true},
		{where: "PATCH /exec", asIs: true},
	}
	made := map[*testService]string{}
	ask := func(s *testService, where string, body any) answer {
		t.Helper()
		text := ""
		if given, ok := body.(string); ok {
			text = given
		} else if body != nil {
			text = string(must(json.Marshal(body)))
		}
		fill := strings.NewReplacer("{SID}", made[s], "{GONE}", strings.Repeat("0", 32), "{CASE}", made[s])
		method, path, _ := strings.Cut(fill.Replace(where), " ")
		if text == "" {
			return s.do(t.Context(), method, path, nil)
		}
		return s.do(t.Context(), method, path, fill.Replace(text))
	}
	for _, s := range []*testService{direct, through} {
		made[s] = must(sessionID(ask(s, "POST /sessions", "{}")))
	}
	for i, row := range table {
		before := front.Counts()
		want, got := ask(direct, row.where, row.body), ask(through, row.where, row.body)
		after := front.Counts()
		if want.status != got.status || !reflect.DeepEqual(comparable(t, want), comparable(t, got)) {
			t.Errorf("row %d, %s %.100v: the service says\n%v\nthe client\n%v", i, row.where, row.body, want, got)
		}
		if asIs := after.Typed == before.Typed; asIs != row.asIs {
			t.Errorf("row %d, %s %.100v: passed on as it is: %t, after %v", i, row.where, row.body, asIs, after.Passed)
		}
	}
	t.Run("without the key", func(t *testing.T) {
		for _, key := range []string{"wrong", "wröng"} {
			d, th := *direct, *through
			d.key, th.key = key, key
			want, got := d.post("/sessions", "{}"), th.post("/sessions", "{}")
			if want.status != http.StatusUnauthorized || got.status != want.status || string(got.body) != string(want.body) {
				t.Errorf("key %q: the service says\n%v\nthe client\n%v", key, want, got)
			}
		}
	})
}
