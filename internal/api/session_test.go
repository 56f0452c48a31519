package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/session"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

func TestCreateSession(t *testing.T) {
	s := start(t)
	n := func(v int64) *int64 { return &v }
	for _, test := range []struct {
		body string
		want session.CreateRequest
	}{
		{``, session.CreateRequest{}},
		{`null`, session.CreateRequest{}},
		{`{}`, session.CreateRequest{}},
		{`{"idle_ttl_sec":"600","archive_key":null,"storage":null,"extra":{"x":[1]}}`, session.CreateRequest{IdleTTL: n(600)}},
		{`{"idle_ttl_sec":-5,"archive_key":"conv_1","storage":{"provider":" local ","prefix":"workspaces/"}}`,
			session.CreateRequest{IdleTTL: n(-5), ArchiveKey: "conv_1", Storage: &storage.Config{Provider: "local", Prefix: "workspaces/"}}},
	} {
		got := s.do(t, "POST", "/sessions", test.body)
		if got.status != 200 || got.body != `{"session_id":"`+live+`"}` {
			t.Errorf("%s: %d %s", test.body, got.status, got.body)
		}
		if got, want := asJSON(t, s.sessions.create), asJSON(t, test.want); got != want {
			t.Errorf("%s: asked for %s, want %s", test.body, got, want)
		}
	}
	s.sessions.err = fault.New(fault.Busy, session.DetailMaxSessions)
	if got := s.do(t, "POST", "/sessions", "{}"); got.status != 429 || got.body != `{"detail":"too many active sessions"}` {
		t.Errorf("a full service: %d %s", got.status, got.body)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestDeleteSession(t *testing.T) {
	s := start(t)
	for body, want := range map[string]session.DeleteRequest{
		``:     {},
		`null`: {},
		`{"discard":"on","archive_key":"k","storage":{}}`: {Discard: true, ArchiveKey: "k", Storage: &storage.Config{Prefix: storage.DefaultPrefix}},
		`{"discard":null}`: {},
	} {
		got := s.do(t, "DELETE", "/sessions/"+gone, body)
		if got.status != 200 || got.body != `{"ok":true}` {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
		if got, want := asJSON(t, s.sessions.delete), asJSON(t, want); got != want {
			t.Errorf("%s: asked for %s, want %s", body, got, want)
		}
	}
}

func TestResetInputs(t *testing.T) {
	s := start(t)
	for id, want := range map[string]string{live: `{"ok":true,"session_gone":false}`, gone: `{"ok":false,"session_gone":true}`} {
		if got := s.do(t, "POST", "/files/reset-inputs", `{"session_id":"`+id+`"}`); got.status != 200 || got.body != want {
			t.Errorf("%s: %d %s", id, got.status, got.body)
		}
	}
	s.sessions.err = fault.Wrap(fault.Internal, session.DetailRunnerFailure, errors.New("engine said no"))
	if got := s.do(t, "POST", "/files/reset-inputs", `{"session_id":"`+live+`"}`); got.status != 500 || got.body != `{"detail":"sandbox runner failed"}` {
		t.Errorf("a failure: %d %s", got.status, got.body)
	}
}

func TestFiles(t *testing.T) {
	s := start(t)
	id := `"session_id":"` + live + `"`
	if got := s.do(t, "POST", "/files/list", `{`+id+`}`); got.body != `{"files":[]}` {
		t.Errorf("an empty workspace: %s", got.body)
	}
	for path, data := range map[string]string{"a.txt": "hello", "数据/😀 b.csv ": "", "/workspace/uploads/<&>": "\x00\xff\n"} {
		encoded := base64.StdEncoding.EncodeToString([]byte(data))
		body := fmt.Sprintf(`{"data_base64":%q,"path":%s,%s}`, encoded, asJSON(t, path), id)
		if got := s.do(t, "POST", "/files", body); got.status != 200 || got.body != `{"ok":true}` {
			t.Errorf("writing %q: %d %s", path, got.status, got.body)
		}
		if string(s.sessions.files[path]) != data {
			t.Errorf("%q holds %q", path, s.sessions.files[path])
		}
		got := s.do(t, "POST", "/files/get", fmt.Sprintf(`{%s,"path":%s}`, id, asJSON(t, path)))
		if got.status != 200 || got.body != `{"data_base64":"`+encoded+`"}` || got.header.Get("Content-Length") != fmt.Sprint(len(got.body)) {
			t.Errorf("reading %q: %d %s", path, got.status, got.body)
		}
	}
	delete(s.sessions.files, "a.txt")
	delete(s.sessions.files, "/workspace/uploads/<&>")
	if got := s.do(t, "POST", "/files/list", `{`+id+`}`); got.body != `{"files":[{"path":"数据/😀 b.csv ","size":0}]}` {
		t.Errorf("listing: %s", got.body)
	}
	if got := s.do(t, "POST", "/files/get", `{`+id+`,"path":"nope"}`); got.status != 404 || got.body != `{"detail":"file not found"}` {
		t.Errorf("a missing file: %d %s", got.status, got.body)
	}
	for _, path := range []string{`""`, `"a\u0000b"`, `"uploads/"`, `"\ud800"`, `"` + strings.Repeat("a/", 40000) + `"`, `"` + strings.Repeat("a", maxPath+1) + `"`} {
		if got := s.do(t, "POST", "/files", `{`+id+`,"path":`+path+`,"data_base64":""}`); got.status != 400 {
			t.Errorf("writing %.30s: %d %s", path, got.status, got.body)
		}
	}
}

// Escapes are as good as characters in base64 too, and of two strings the later
// counts.
func TestUploadForms(t *testing.T) {
	s := start(t)
	for _, data := range []string{
		`"aGk/"`, `"aGk\/"`, `"\u0061\u0047k\/"`, `"!","data_base64":"aGk/"`, `"` + strings.Repeat("AAAA", 2000) + `","data_base64":"aGk/"`, `null,"data_base64":"aGk/"`,
	} {
		got := s.do(t, "POST", "/files", `{"session_id":"`+live+`","data_base64":`+data+`,"path":"f"}`)
		if got.status != 200 || string(s.sessions.files["f"]) != "hi?" {
			t.Errorf("%.40s: %d %s, file %q", data, got.status, got.body, s.sessions.files["f"])
		}
		delete(s.sessions.files, "f")
	}
	for data, status := range map[string]int{`"aGk/\n"`: 400, `"aGk/\u003d"`: 400, `"YQ\u003d\u003d"`: 200, `"aGk/","data_base64":1`: 422, `"é"`: 400, `"\ud800"`: 400} {
		got := s.do(t, "POST", "/files", `{"session_id":"`+live+`","data_base64":`+data+`,"path":"f"}`)
		if got.status != status {
			t.Errorf("%s: %d %s, want %d", data, got.status, got.body, status)
		}
	}
	// A file may be as large as allowed, and no larger.
	for size, status := range map[int]int{5000: 200, 5001: 413} {
		data := base64.StdEncoding.EncodeToString(make([]byte, size))
		if got := s.do(t, "POST", "/files", `{"session_id":"`+live+`","path":"f","data_base64":"`+data+`"}`); got.status != status {
			t.Errorf("%d bytes: %d %s", size, got.status, got.body)
		}
	}
}

func TestObjects(t *testing.T) {
	s := start(t)
	got := s.do(t, "POST", "/storage/put", `{"key":"a b","data_base64":"aGVsbG8=","content_type":"text/plain","expires_in":"60","storage":{"prefix":"p/","provider":"s3"}}`)
	if got.status != 200 || got.body != `{"provider":"s3","key":"p/a b","url":"https://store/?a=1&b=<2>","expires_in":60}` {
		t.Errorf("put: %d %s", got.status, got.body)
	}
	if string(s.storage.data) != "hello" || s.storage.contentType != "text/plain" || *s.storage.expiresIn != 60 {
		t.Errorf("put %q as %q for %v", s.storage.data, s.storage.contentType, s.storage.expiresIn)
	}
	got = s.do(t, "POST", "/storage/put", `{"key":"a","data_base64":"","expires_in":null,"content_type":null,"storage":{"provider":"s3"}}`)
	if got.status != 200 || len(s.storage.data) != 0 || s.storage.contentType != "" || s.storage.expiresIn != nil {
		t.Errorf("put with defaults: %d %s", got.status, got.body)
	}
	got = s.do(t, "POST", "/storage/delete", `{"key":"a","storage":{"provider":"s3","prefix":"p/"}}`)
	if got.status != 200 || got.body != `{"ok":true,"key":"p/a"}` {
		t.Errorf("delete: %d %s", got.status, got.body)
	}
	got = s.do(t, "POST", "/storage/gc", `{"max_age_seconds":604800.0,"storage":{"provider":"s3","prefix":"p/"}}`)
	if got.status != 200 || got.body != `{"deleted":3,"scanned":12,"freed_bytes":10485760}` || s.storage.maxAge != 604800 {
		t.Errorf("gc: %d %s", got.status, got.body)
	}
	if got := s.do(t, "POST", "/storage/gc", `{"max_age_seconds":null}`); got.status != 422 {
		t.Errorf("gc without an age: %d %s", got.status, got.body)
	}
}

func TestExecTimeout(t *testing.T) {
	a := &api{cfg: Config{ExecTimeout: 90 * time.Second, ExecTimeoutCap: 2 * time.Minute}}
	n := func(v int64) *int64 { return &v }
	for _, test := range []struct {
		ms   *int64
		want time.Duration
	}{
		{nil, 90 * time.Second}, {n(0), 90 * time.Second}, {n(1), time.Second}, {n(500), time.Second}, {n(1000), time.Second}, {n(1500), 1500 * time.Millisecond},
		{n(-1), time.Second}, {n(-1 << 63), time.Second}, {n(120_000), 2 * time.Minute}, {n(120_001), 2 * time.Minute}, {n(1<<63 - 1), 2 * time.Minute},
	} {
		if got := a.execTimeout(test.ms); got != test.want {
			t.Errorf("%v: %v, want %v", test.ms, got, test.want)
		}
	}
	a.cfg.ExecTimeoutCap = time.Second
	if got := a.execTimeout(nil); got != time.Second {
		t.Errorf("a default beyond the cap: %v", got)
	}
}

func TestExec(t *testing.T) {
	s := start(t)
	s.sessions.exec = func(context.Context) (*session.Execution, error) {
		return &session.Execution{Execution: &runner.Execution{Stdout: []byte("中\"\n\x00\xff"), Stderr: []byte("<warn>"), ExitCode: 3, Reason: runner.ReasonExit}}, nil
	}
	got := s.do(t, "POST", "/exec", `{"session_id":"`+live+`","code":"print(1)\n","timeout_ms":"5000","x":NaN}`)
	if want := `{"stdout":"中\"\n\u0000�","stderr":"<warn>","exit_code":3,"files":[],"reason":"exit","truncated":false,"skipped_files":0,"usage":{"wall_seconds":0,"cpu_seconds":0,"peak_memory_bytes":0}}`; got.status != 200 || got.body != want {
		t.Errorf("%d %s, want %s", got.status, got.body, want)
	}
	if req := s.sessions.execReq; string(req.Code) != "print(1)\n" || req.Timeout != 5*time.Second {
		t.Errorf("ran %q for %v", req.Code, req.Timeout)
	}
	for code, status := range map[string]int{`""`: 200, `"a\u0000b"`: 200, `"\ud800"`: 422, `"` + strings.Repeat("é", 501) + `"`: 413, `"` + strings.Repeat("é", 500) + `"`: 200, `"` + strings.Repeat("#", 1001) + `"`: 422} {
		if got := s.do(t, "POST", "/exec", `{"session_id":"`+live+`","code":`+code+`}`); got.status != status {
			t.Errorf("%.20s: %d %s", code, got.status, got.body)
		}
	}
}

func TestOutput(t *testing.T) {
	a := &api{cfg: testConfig("")}
	const limits = "because artifact limits are 20 files, 20971520 bytes per file, 52428800 bytes total"
	for name, test := range map[string]struct {
		x              runner.Execution
		stdout, stderr string
	}{
		"plain":                                 {runner.Execution{Stdout: []byte("a\n"), Stderr: []byte("b\n"), Reason: runner.ReasonExit}, "a\n", "b\n"},
		"truncated":                             {runner.Execution{Stdout: []byte("A"), Stderr: []byte("E"), StdoutTruncated: true, StderrTruncated: true}, "A\n... [truncated, stdout exceeded 32KB]", "E\n... [truncated, stderr exceeded 32KB]"},
		"timeout":                               {runner.Execution{Reason: runner.ReasonTimeout, ExitCode: 124}, "", "\n[sandbox] execution exceeded 1.500s and was killed"},
		"124 alone":                             {runner.Execution{Reason: runner.ReasonExit, ExitCode: 124}, "", ""},
		"truncated within a character":          {runner.Execution{Stdout: []byte("A\xe4\xb8"), StdoutTruncated: true}, "A\n... [truncated, stdout exceeded 32KB]", ""},
		"truncated after bytes of no character": {runner.Execution{Stdout: []byte("A\xff\xb8"), StdoutTruncated: true}, "A\xff\xb8\n... [truncated, stdout exceeded 32KB]", ""},
		"a child out of memory": {runner.Execution{Reason: runner.ReasonExit, Usage: runner.Usage{OOMKills: 2}, Stderr: []byte("broken pool")}, "",
			"broken pool\n[sandbox] out of memory: 2 process(es) of the run were killed"},
		"truncated, then timeout": {runner.Execution{Stderr: []byte("E"), StderrTruncated: true, Reason: runner.ReasonTimeout}, "",
			"E\n... [truncated, stderr exceeded 32KB]\n[sandbox] execution exceeded 1.500s and was killed"},
		"memory":  {runner.Execution{Reason: runner.ReasonOOM, ExitCode: 137}, "", "\n[sandbox] out of memory: the run needed more memory than the sandbox has"},
		"lost":    {runner.Execution{Reason: runner.ReasonLost}, "", "\n[sandbox] the run lost its supervisor and was ended"},
		"skipped": {runner.Execution{Skipped: 5}, "", "[sandbox] skipped 5 output file(s) " + limits},
		"skipped after a timeout": {runner.Execution{Skipped: 1, Reason: runner.ReasonTimeout}, "",
			"[sandbox] execution exceeded 1.500s and was killed\n[sandbox] skipped 1 output file(s) " + limits},
		"skipped after words": {runner.Execution{Stderr: []byte(" w\n"), Skipped: 1}, "", "w\n\n[sandbox] skipped 1 output file(s) " + limits},
		"unreadable":          {runner.Execution{Unreadable: 2}, "", "[sandbox] could not read 2 output file(s)"},
		"all of it": {runner.Execution{Skipped: 1, Unreadable: 2, Incomplete: true}, "",
			"[sandbox] skipped 1 output file(s) " + limits + "\n[sandbox] could not read 2 output file(s)\n[sandbox] there are more files under outputs than could be looked at"},
	} {
		before := string(test.x.Stdout) + string(test.x.Stderr)
		o := a.output(&session.Execution{Execution: &test.x}, 1500*time.Millisecond)
		if string(o.stdout) != test.stdout || string(o.stderr) != test.stderr {
			t.Errorf("%s: %q, %q", name, o.stdout, o.stderr)
		}
		if string(test.x.Stdout)+string(test.x.Stderr) != before {
			t.Errorf("%s: the execution was changed", name)
		}
	}
}

// artifacts gives contents one after the other, as an execution does.
func artifacts(contents ...io.Reader) func() (io.Reader, error) {
	return func() (io.Reader, error) {
		if len(contents) == 0 {
			return nil, io.EOF
		}
		r := contents[0]
		contents = contents[1:]
		return r, nil
	}
}

func sendExecution(x *runner.Execution, next func() (io.Reader, error)) (*httptest.ResponseRecorder, error) {
	rec := httptest.NewRecorder()
	w := &response{ResponseWriter: rec, ctl: http.NewResponseController(rec), req: httptest.NewRequest("POST", "/exec", nil)}
	result := newResult(&session.Execution{Execution: x}, next, output{stdout: x.Stdout})
	return rec, w.stream(result.length, result.write)
}

func TestArtifacts(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789"), 30_001)
	var x runner.Execution
	var contents []io.Reader
	want := `{"stdout":"","stderr":"","exit_code":0,"files":[`
	for i, f := range []struct{ path, name, typ, data string }{
		{"a\"\nb.txt", `a\"\nb.txt`, "text/plain", "x"},
		{"d1/same.txt", "same.txt", "text/plain", "1"},
		{"d2/same.txt", "same.txt", "text/plain", ""},
		{"报告 😀.csv", "报告 😀.csv", "text/csv", "1,2"},
		{"-rf", "-rf", "application/octet-stream", string(big)},
		{"d/p.png", "p.png", "image/png", string(big[:encodeBlock])},
	} {
		x.Files = append(x.Files, runner.Artifact{Path: f.path, Size: int64(len(f.data))})
		contents = append(contents, iotest.HalfReader(strings.NewReader(f.data)))
		if i > 0 {
			want += ","
		}
		want += `{"name":"` + f.name + `","mime_type":"` + f.typ + `","data_base64":"` + base64.StdEncoding.EncodeToString([]byte(f.data)) + `"}`
	}
	want += `],"reason":"oom","truncated":true,"skipped_files":3,"usage":{"wall_seconds":1.5,"cpu_seconds":0.25,"peak_memory_bytes":4096}}`
	x.Reason, x.StderrTruncated, x.Skipped = runner.ReasonOOM, true, 3
	x.Usage = runner.Usage{Wall: 1500 * time.Millisecond, CPU: 250 * time.Millisecond, MaxRSS: 4096}
	rec, err := sendExecution(&x, artifacts(contents...))
	if err != nil || rec.Body.String() != want || rec.Header().Get("Content-Length") != fmt.Sprint(len(want)) {
		t.Errorf("%v, %d bytes of %d, declared %s", err, rec.Body.Len(), len(want), rec.Header().Get("Content-Length"))
	}
}

// What breaks before anything was sent is an ordinary error, later it is an
// answer that breaks off.
func TestArtifactsBreak(t *testing.T) {
	broken := errors.New("broken")
	failing := func(n int) io.Reader {
		return io.MultiReader(bytes.NewReader(make([]byte, n)), iotest.ErrReader(broken))
	}
	const size = 5 * streamBuffer
	for name, test := range map[string]struct {
		next  func() (io.Reader, error)
		abort bool
		want  error
	}{
		"no artifact":        {func() (io.Reader, error) { return nil, broken }, false, broken},
		"at once":            {artifacts(failing(0)), false, broken},
		"in the first block": {artifacts(failing(100)), false, broken},
		"after one block":    {artifacts(failing(encodeBlock)), true, broken},
		"in the middle":      {artifacts(failing(size - 1)), true, broken},
		"too short":          {artifacts(strings.NewReader("")), false, io.ErrUnexpectedEOF},
		"short by a byte":    {artifacts(bytes.NewReader(make([]byte, size-1))), true, io.ErrUnexpectedEOF},
	} {
		rec, err := sendExecution(&runner.Execution{Files: []runner.Artifact{{Path: "f", Size: size}}}, test.next)
		var abort *abortError
		if !errors.Is(err, test.want) || errors.As(err, &abort) != test.abort || (rec.Body.Len() > 0) != test.abort {
			t.Errorf("%s: %v after %d bytes", name, err, rec.Body.Len())
		}
		if !test.abort && rec.Header().Get("Content-Length") != "" {
			t.Errorf("%s: a length is left for the error", name)
		}
	}
}
