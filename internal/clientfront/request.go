package clientfront

import (
	"bytes"
	"context"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hjxwz123/aivory-sandbox/client"
)

// untyped is why a request cannot be made with the client.
type untyped struct{ reason string }

// call makes a request with the client, and returns what is to be answered.
type call func(ctx context.Context, c *client.Client) (status int, answer any, err error)

// about are the headers that say nothing about what is asked.
var about = map[string]bool{
	"User-Agent": true, "Accept": true, "Accept-Encoding": true, "Connection": true, "Content-Length": true,
	"Content-Type": true, "Authorization": true,
}

// head looks at what comes before the body, and returns the key.
func head(r *http.Request) (key string, bad *untyped) {
	switch {
	case !r.ProtoAtLeast(1, 1):
		return "", &untyped{"HTTP/1.0"}
	case r.RequestURI != r.URL.EscapedPath():
		return "", &untyped{"query or absolute URL"}
	case len(r.Trailer) > 0:
		return "", &untyped{"trailer"}
	case r.ContentLength != 0 && (len(r.Header["Content-Type"]) != 1 || r.Header.Get("Content-Type") != "application/json"):
		return "", &untyped{"content type"}
	}
	for name := range r.Header {
		if !about[name] {
			return "", &untyped{"header"}
		}
	}
	switch keys := r.Header["Authorization"]; len(keys) {
	case 0:
		return "", nil
	case 1:
		// A key is what can stand in a header unchanged.
		key, ok := strings.CutPrefix(keys[0], "Bearer ")
		if !ok || key == "" || strings.TrimSpace(key) != key || strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c == 0x7f }) {
			return "", &untyped{"authorization"}
		}
		return key, nil
	default:
		return "", &untyped{"authorization"}
	}
}

// endpoints are the calls that have a body, by method and path.
var endpoints = map[string]func(o *fields) call{
	"POST /sessions":           create,
	"POST /exec":               exec,
	"POST /exec/cancel":        cancel,
	"POST /files":              writeFile,
	"POST /files/get":          readFile,
	"POST /files/list":         listFiles,
	"POST /files/reset-inputs": resetInputs,
	"POST /storage/put":        putObject,
	"POST /storage/delete":     deleteObject,
	"POST /storage/gc":         collectObjects,
}

// translate makes a call of a request. The call has to say all that the request
// says: what has a field that the client does not send, or a value that the
// client's type does not hold, is not translated. A field that is null, or has
// the value that stands for its absence, may be left out.
func translate(r *http.Request, body []byte) (call, *untyped) {
	id, ofSession := strings.CutPrefix(r.URL.Path, "/sessions/")
	ofSession = ofSession && id != "" && r.URL.EscapedPath() == "/sessions/"+url.PathEscape(id)
	switch where := r.Method + " " + r.URL.Path; {
	case r.Method == http.MethodGet && len(body) > 0:
		return nil, &untyped{"body of a GET"}
	case where == "GET /healthz":
		return health, nil
	case where == "GET /sessions":
		return sessions, nil
	case r.Method == http.MethodGet && ofSession:
		return show(id), nil
	case r.Method == http.MethodDelete && ofSession:
		return withFields(body, true, func(o *fields) call { return release(id, o) })
	case endpoints[where] != nil:
		return withFields(body, r.URL.Path == "/sessions", endpoints[where])
	}
	return nil, &untyped{"method or path"}
}

// withFields reads a body, which may be missing for some.
func withFields(body []byte, optional bool, make func(o *fields) call) (call, *untyped) {
	if len(body) == 0 && optional {
		body = []byte("{}")
	}
	o, bad := object(body)
	if bad != nil {
		return nil, bad
	}
	c := make(o)
	if bad := o.done(); bad != nil {
		return nil, bad
	}
	return c, nil
}

type ok struct {
	OK bool `json:"ok"`
}

func health(ctx context.Context, c *client.Client) (int, any, error) {
	h, err := c.Health(ctx)
	if !h.OK {
		return http.StatusServiceUnavailable, h, err
	}
	return http.StatusOK, h, err
}

func create(o *fields) call {
	options := client.CreateOptions{
		IdleTTL:    o.duration("idle_ttl_sec", time.Second, 0),
		ArchiveKey: o.text("archive_key"),
		Storage:    o.storage("storage"),
	}
	return func(ctx context.Context, c *client.Client) (int, any, error) {
		s, err := c.CreateSession(ctx, options)
		if err != nil {
			return 0, nil, err
		}
		return http.StatusOK, struct {
			ID string `json:"session_id"`
		}{s.ID()}, nil
	}
}

func release(id string, o *fields) call {
	options := client.DeleteOptions{Discard: o.flag("discard"), ArchiveKey: o.text("archive_key"), Storage: o.storage("storage")}
	if options.ArchiveKey != "" && !options.Discard {
		o.fail("field that the client does not send")
	}
	return func(ctx context.Context, c *client.Client) (int, any, error) {
		return http.StatusOK, ok{true}, c.Session(id).Delete(ctx, options)
	}
}

func sessions(ctx context.Context, c *client.Client) (int, any, error) {
	list, err := c.Sessions(ctx)
	return http.StatusOK, struct {
		Sessions []client.SessionInfo `json:"sessions"`
	}{append([]client.SessionInfo{}, list...)}, err
}

func show(id string) call {
	return func(ctx context.Context, c *client.Client) (int, any, error) {
		info, err := c.Session(id).Info(ctx)
		return http.StatusOK, info, err
	}
}

func exec(o *fields) call {
	id := o.must("session_id")
	run := client.Run{Code: o.must("code"), Timeout: o.duration("timeout_ms", time.Millisecond, 0)}
	return func(ctx context.Context, c *client.Client) (int, any, error) {
		result, err := c.Session(id).Exec(ctx, run)
		if err == nil && result.Files == nil {
			result.Files = []client.File{} // [], not null
		}
		return http.StatusOK, result, err
	}
}

func cancel(o *fields) call {
	id := o.must("session_id")
	return func(ctx context.Context, c *client.Client) (int, any, error) {
		was, err := c.Session(id).Cancel(ctx)
		return http.StatusOK, struct {
			OK        bool `json:"ok"`
			Cancelled bool `json:"cancelled"`
		}{true, was}, err
	}
}

func writeFile(o *fields) call {
	id, path, data := o.must("session_id"), o.must("path"), o.bytes("data_base64")
	return func(ctx context.Context, c *client.Client) (int, any, error) {
		return http.StatusOK, ok{true}, c.Session(id).WriteFile(ctx, path, bytes.NewReader(data))
	}
}

func readFile(o *fields) call {
	id, path := o.must("session_id"), o.must("path")
	return func(ctx context.Context, c *client.Client) (int, any, error) {
		file, err := c.Session(id).ReadFile(ctx, path)
		if err != nil {
			return 0, nil, err
		}
		defer file.Close()
		data, err := io.ReadAll(file)
		return http.StatusOK, struct {
			Data []byte `json:"data_base64"`
		}{data}, err
	}
}

func listFiles(o *fields) call {
	id := o.must("session_id")
	return func(ctx context.Context, c *client.Client) (int, any, error) {
		files, err := c.Session(id).ListFiles(ctx)
		return http.StatusOK, struct {
			Files []client.FileInfo `json:"files"`
		}{append([]client.FileInfo{}, files...)}, err
	}
}

func resetInputs(o *fields) call {
	id := o.must("session_id")
	return func(ctx context.Context, c *client.Client) (int, any, error) {
		err := c.Session(id).ResetInputs(ctx)
		gone := isLost(err)
		if gone {
			err = nil // the service says so in a 200
		}
		return http.StatusOK, struct {
			OK   bool `json:"ok"`
			Gone bool `json:"session_gone"`
		}{!gone, gone}, err
	}
}

func putObject(o *fields) call {
	key, data, storage := o.must("key"), o.bytes("data_base64"), o.mustStorage("storage")
	contentType, expires := o.text("content_type"), o.duration("expires_in", time.Second, 0)
	return func(ctx context.Context, c *client.Client) (int, any, error) {
		put, err := c.PutObject(ctx, storage, key, contentType, expires, bytes.NewReader(data))
		return http.StatusOK, put, err
	}
}

func deleteObject(o *fields) call {
	key, storage := o.must("key"), o.mustStorage("storage")
	return func(ctx context.Context, c *client.Client) (int, any, error) {
		full, err := c.DeleteObject(ctx, storage, key)
		return http.StatusOK, struct {
			OK  bool   `json:"ok"`
			Key string `json:"key"`
		}{true, full}, err
	}
}

func collectObjects(o *fields) call {
	o.need("max_age_seconds")
	older, storage := o.duration("max_age_seconds", time.Second, math.MinInt64), o.mustStorage("storage")
	return func(ctx context.Context, c *client.Client) (int, any, error) {
		done, err := c.CollectObjects(ctx, storage, older)
		return http.StatusOK, done, err
	}
}
