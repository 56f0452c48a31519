package api

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/observe"
	"github.com/hjxwz123/aivory-sandbox/internal/session"
)

func TestSessionInfo(t *testing.T) {
	s := start(t)
	s.sessions.infos = []session.Info{
		{
			ID: gone, State: "busy", Created: time.Now().Add(-90 * time.Second), IdleTTL: 30 * time.Minute, IdleLeft: 30 * time.Minute,
			ArchiveKey: "conv_1", Provider: "s3", Usage: session.Usage{Runs: 3, Wall: 1500 * time.Millisecond, CPU: 250 * time.Millisecond, MaxRSS: 1 << 20},
		},
		{ID: live, State: "ready", Created: time.Now().Add(time.Hour), IdleTTL: time.Second},
	}
	got := s.do(t, "GET", "/sessions/"+gone, "")
	for _, part := range []string{
		`{"session_id":"` + gone + `","state":"busy","created_at":"`, `"age_seconds":90`, `"idle_ttl_seconds":1800,"idle_left_seconds":1800,"archive_key":"conv_1","storage_provider":"s3",` +
			`"usage":{"runs":3,"wall_seconds":1.5,"cpu_seconds":0.25,"peak_memory_bytes":1048576}}`,
	} {
		if got.status != 200 || !strings.Contains(got.body, part) {
			t.Errorf("%d %s lacks %s", got.status, got.body, part)
		}
	}
	got = s.do(t, "GET", "/sessions", "")
	if got.status != 200 || !strings.HasPrefix(got.body, `{"sessions":[{"session_id":"`+gone) || !strings.Contains(got.body, `{"session_id":"`+live) {
		t.Errorf("%d %s", got.status, got.body)
	}
	// A clock that was set back makes no session younger than new.
	if !strings.Contains(got.body, `"age_seconds":0,`) {
		t.Errorf("the age of one from the future: %s", got.body)
	}
}

func TestMetricsKey(t *testing.T) {
	s := start(t, func(c *Config) {
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			_, _ = io.WriteString(w, "up 1\n")
		})
	})
	for _, test := range []struct {
		path, key string
		status    int
	}{
		{"/metrics", "watcher", 200}, {"/metrics", testKey, 200}, {"/metrics", "watcher2", 401}, {"/metrics", "", 401},
		{"/sessions", "watcher", 401}, {"/nowhere", "watcher", 401},
	} {
		got := s.do(t, "GET", test.path, "", "Authorization: Bearer "+test.key)
		if got.status != test.status || test.status == 200 && got.body != "up 1\n" {
			t.Errorf("%s with %q: %d %s", test.path, test.key, got.status, got.body)
		}
	}
	none := start(t, func(c *Config) { c.Metrics = nil })
	if got := none.ask(t, "GET", "/metrics", ""); got.status != 404 {
		t.Errorf("without metrics: %d", got.status)
	}
	// An empty key is none.
	empty := start(t, func(c *Config) { c.MetricsKey = "" })
	if got := empty.do(t, "GET", "/metrics", "", "Authorization: Bearer "); got.status != 401 {
		t.Errorf("an empty key: %d", got.status)
	}
}

// observer notes requests.
type observer struct {
	mu   sync.Mutex
	work []observe.Work
}

func (o *observer) Begin(ctx context.Context, _ string) (context.Context, func(observe.Work)) {
	return ctx, func(w observe.Work) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.work = append(o.work, w)
	}
}

func (o *observer) take() (work []observe.Work) {
	o.mu.Lock()
	defer o.mu.Unlock()
	work, o.work = o.work, nil
	return work
}

func TestRequestsAreObserved(t *testing.T) {
	o := &observer{}
	s := start(t, func(c *Config) { c.Observer = o })
	for _, test := range []struct {
		method, path, route, name string
		status                    int64
	}{
		{"GET", "/healthz", "/healthz", "GET", 200},
		{"GET", "/sessions/" + gone + "?key=secret", "/sessions/{session_id}", "GET", 404},
		{"BREW", "/coffee/secret", "", "other", 404},
	} {
		got := s.do(t, test.method, test.path, "")
		eventually(t, "the request", func() bool { o.mu.Lock(); defer o.mu.Unlock(); return len(o.work) > 0 })
		w := o.take()[0]
		if w.Name != observe.Request || w.Attr("method").String() != test.name || w.Attr("route").String() != test.route ||
			w.Attr("status").Int64() != test.status || w.Attr("request_id").String() != got.header.Get("X-Request-Id") || w.Err != nil {
			t.Errorf("%s %s: told of %+v", test.method, test.path, w)
		}
	}
	s.sessions.panics = true
	s.do(t, "POST", "/files/list", `{"session_id":"`+live+`"}`)
	eventually(t, "the request", func() bool { o.mu.Lock(); defer o.mu.Unlock(); return len(o.work) > 0 })
	if w := o.take()[0]; w.Err == nil || w.Attr("status").Int64() != 500 {
		t.Errorf("a bug: told of %+v", w)
	}
}
