//go:build integration

package docker_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/client"

	"github.com/hjxwz123/aivory-sandbox/internal/runner/docker"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

// TestBehindSocketProxy puts a proxy before the real engine that allows only
// what docs/docker.md lists, and leads a runner's life through it, over tcp://.
func TestBehindSocketProxy(t *testing.T) {
	var allowed []*regexp.Regexp
	for _, c := range documentedCalls(t) {
		method, path, _ := strings.Cut(c, " ")
		path = strings.NewReplacer("{runner}", "aivory-sbx-[0-9a-f]{32}", "{id}", "[^/]+", "{name}", ".+").Replace(path)
		allowed = append(allowed, regexp.MustCompile("^"+method+` (/v[0-9.]+)?`+path+"$"))
	}
	engine := engineClient(t, "").Dialer()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return engine(ctx) }}
	t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite:   func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", client.DummyHost },
	}
	var mu sync.Mutex
	var denied []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := r.Method + " " + r.URL.Path
		for _, a := range allowed {
			if a.MatchString(call) {
				proxy.ServeHTTP(w, r)
				return
			}
		}
		mu.Lock()
		denied = append(denied, call)
		mu.Unlock()
		http.Error(w, "forbidden", http.StatusForbidden)
	}))
	t.Cleanup(s.Close)

	d := newDriver(t, func(c *docker.Config) { c.Host = "tcp://" + s.Listener.Addr().String() })
	if info, err := d.Info(t.Context()); err != nil || info.Version == "" {
		t.Errorf("info %+v, %v", info, err)
	}
	for _, readOnly := range []bool{true, false} {
		limits := runnertest.SmallLimits
		limits.ReadOnlyRootfs = readOnly
		id, _ := runnertest.Create(t, d, limits)
		if _, ok := runnertest.Find(t, d, id); !ok {
			t.Error("not listed")
		}
		stream, err := d.Dial(t.Context(), id, []string{"cat"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 5)
		if _, err := stream.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(stream, b); err != nil || string(b) != "hello" {
			t.Errorf("read %q, %v", b, err)
		}
		_ = stream.Close()
		if err := d.Destroy(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(denied) > 0 {
		t.Errorf("the proxy denied %q", denied)
	}
}
