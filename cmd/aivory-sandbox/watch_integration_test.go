//go:build integration

package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// collector takes traces, as a collector of OpenTelemetry does.
type collector struct {
	*httptest.Server
	mu   sync.Mutex
	sent []byte
	took func([]byte) // where not nil, gets what is sent in place of sent
}

func newCollector() *collector {
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if c.took != nil {
			c.took(body)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sent = append(c.sent, body...)
	}))
	return c
}

func (c *collector) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.sent)
}

// scrape returns the service's metrics.
func (s *testService) scrape(t *testing.T, key string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, s.url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := s.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("metrics: status %d, %v", resp.StatusCode, err)
	}
	return string(text)
}

// figure returns the value of a metric, labels included in its name.
func figure(t *testing.T, metrics, name string) float64 {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(metrics)
	if found == nil {
		t.Fatalf("there is no metric %s", name)
	}
	v, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestOneRunSeenFromAllSides: metrics, traces, logs and the session itself tell
// the same of one run, and none of them tells a secret.
func TestOneRunSeenFromAllSides(t *testing.T) {
	traces := newCollector()
	defer traces.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", traces.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
	const watcher = "watcher-key"
	s := startService(t, "SANDBOX_LOCAL_STORAGE_DIR="+t.TempDir(), "SANDBOX_METRICS_KEY="+watcher, "SANDBOX_PPROF_LISTEN=127.0.0.1:0")
	made := s.post("/sessions", map[string]any{"archive_key": "seen", "storage": map[string]any{
		"provider": "local", "s3_secret_key": "SECRET-IN-BLOCK",
	}})
	id, err := sessionID(made)
	if err != nil {
		t.Fatal(err)
	}
	session := testSession{s, id}
	r := session.run(t, "import time\nprint('PROGRAM-TEXT')\ntime.sleep(0.5)\nraise SystemExit(3)", 0)
	if r.Exit != 3 {
		t.Fatal(r)
	}

	var info struct {
		State    string `json:"state"`
		Provider string `json:"storage_provider"`
		Usage    struct {
			Runs int     `json:"runs"`
			Wall float64 `json:"wall_seconds"`
			Peak int64   `json:"peak_memory_bytes"`
		} `json:"usage"`
	}
	shown := s.do(t.Context(), http.MethodGet, "/sessions/"+id, nil)
	if err := json.Unmarshal(shown.body, &info); err != nil || shown.err != nil {
		t.Fatal(err, shown)
	}
	if info.State != "ready" || info.Provider != "local" || info.Usage.Runs != 1 || info.Usage.Wall < 0.5 || info.Usage.Wall > 20 || info.Usage.Peak < 1<<20 {
		t.Errorf("the session is %s", shown.body)
	}

	metrics := s.scrape(t, watcher)
	if n := figure(t, metrics, `aivory_sandbox_runs_total{reason="exit"}`); n != 1 {
		t.Errorf("%v runs are counted", n)
	}
	if wall := figure(t, metrics, `aivory_sandbox_run_stage_seconds_sum{stage="program"}`); wall < info.Usage.Wall-.001 || wall > info.Usage.Wall+.001 {
		t.Errorf("the run took %v by the metrics and %v by its session", wall, info.Usage.Wall)
	}
	if n := figure(t, metrics, `aivory_sandbox_requests_total{method="POST",route="/exec",status="200"}`); n != 1 {
		t.Errorf("%v requests are counted", n)
	}
	if n := figure(t, metrics, "aivory_sandbox_sessions"); n != 1 {
		t.Errorf("%v sessions are counted", n)
	}
	if a := s.release(id); a.status != 200 {
		t.Fatal(a)
	}
	metrics = s.scrape(t, s.key)
	if n := figure(t, metrics, `aivory_sandbox_storage_operation_seconds_count{operation="put",outcome="ok",provider="local"}`); n != 1 {
		t.Errorf("%v archives are counted", n)
	}

	// The line of the request has its id, and so has the span.
	logged := regexp.MustCompile(`msg=request .*route=/exec .*request_id=([0-9a-f]{16})`).FindStringSubmatch(s.log.text())
	if logged == nil {
		t.Fatal("the request is not logged")
	}
	waitUntil(t, "the spans", func() bool {
		sent := traces.text()
		return strings.Contains(sent, logged[1]) && strings.Contains(sent, "POST /exec") && strings.Contains(sent, id) && strings.Contains(sent, "storage put")
	})
	profiles := regexp.MustCompile(`msg="serving profiles" address=(\S+)`).FindStringSubmatch(s.log.text())
	if profiles == nil {
		t.Fatal("profiles are not served")
	}
	resp, err := s.http.Get("http://" + profiles[1] + "/debug/pprof/goroutine?debug=1")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if resp.Body.Close(); err != nil || !bytes.Contains(body, []byte("goroutine profile")) {
		t.Errorf("profiles: %d %.100q, %v", resp.StatusCode, body, err)
	}
	if a := s.do(t.Context(), http.MethodGet, "/debug/pprof/", nil); a.status != http.StatusNotFound {
		t.Errorf("the service's own listener has profiles: %v", a)
	}

	for _, secret := range []string{s.key, watcher, "SECRET-IN-BLOCK", "PROGRAM-TEXT"} {
		for where, text := range map[string]string{"the log": s.log.text(), "the metrics": metrics, "the traces": traces.text(), "the session": string(shown.body)} {
			if strings.Contains(text, secret) || strings.Contains(text, hex.EncodeToString([]byte(secret))) {
				t.Errorf("%s gives %q away", where, secret)
			}
		}
	}
}

// text is all that is kept of a log.
func (w *tailWriter) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.kept)
}

// waitUntil waits for what comes by itself, for some seconds.
func waitUntil(t *testing.T, what string, there func() bool) {
	t.Helper()
	waitFor(t, 15*time.Second, what, there)
}

// waitLong is waitUntil for what has health checks and the like to wait for.
func waitLong(t *testing.T, what string, there func() bool) {
	t.Helper()
	waitFor(t, time.Minute, what, there)
}

func waitFor(t *testing.T, most time.Duration, what string, there func() bool) {
	t.Helper()
	for deadline := time.Now().Add(most); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if there() {
			return
		}
	}
	t.Fatalf("%s did not come", what)
}
