package metrics

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/observe"
)

func scrape(m *Metrics) string {
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := Snapshot{Sessions: 2, Runners: 3, Pooled: 1, Limit: 16, PoolSize: 1, SpoolEntries: 4, SpoolBytes: 5, LostArchives: 6}
		m := New("v1.2.3", func() Snapshot { return state })
		ctx := observe.With(t.Context(), m)
		work := func(name string, took time.Duration, err error, attrs ...slog.Attr) {
			_, span := observe.Start(ctx, name, attrs...)
			time.Sleep(took)
			span.End(err)
		}
		work(observe.Request, time.Second, nil, slog.String("route", "/exec"), slog.String("method", "POST"), slog.Int("status", 200))
		work(observe.Request, time.Second, nil, slog.String("route", ""), slog.String("method", "GET"), slog.Int("status", 404))
		work(observe.Wait, 2*time.Second, nil, slog.String("queue", observe.QueueExec))
		work(observe.Wait, time.Second, errors.New("x"), slog.String("queue", observe.QueueSession))
		work(observe.Wait, time.Second, context.Canceled, slog.String("queue", observe.QueueSession))
		work(observe.Run, 4*time.Second, nil, slog.String("reason", "oom"), slog.Duration("wall", 3*time.Second),
			slog.Duration("collect", 500*time.Millisecond), slog.Duration("cpu", 2*time.Second), slog.Int("output", 10), slog.Int64("artifacts", 90))
		work(observe.Run, time.Second, errors.New("x"))
		work(observe.Create, time.Second, nil, slog.Bool("pooled", true))
		work(observe.End, time.Second, nil, slog.String("cause", "expired"))
		work(observe.File, time.Second, nil, slog.String("operation", "read"))
		work(observe.Storage, time.Second, nil, slog.String("provider", "s3"), slog.String("operation", "get"), slog.Bool("missing", true))
		_, open := observe.Start(ctx, observe.Run)
		got := scrape(m)
		open.End(nil)
		for _, want := range []string{
			`aivory_sandbox_requests_total{method="POST",route="/exec",status="200"} 1`,
			`aivory_sandbox_requests_total{method="GET",route="none",status="404"} 1`,
			`aivory_sandbox_request_seconds_sum{route="/exec"} 1`,
			`aivory_sandbox_queue_wait_seconds_sum{outcome="ok",queue="exec"} 2`,
			`aivory_sandbox_queue_wait_seconds_count{outcome="failed",queue="session"} 1`,
			`aivory_sandbox_queue_wait_seconds_count{outcome="cancelled",queue="session"} 1`,
			`aivory_sandbox_runs_total{reason="oom"} 1`, `aivory_sandbox_runs_total{reason="failed"} 1`, `aivory_sandbox_runs_total{reason="exit"} 0`,
			`aivory_sandbox_run_stage_seconds_sum{stage="program"} 3`, `aivory_sandbox_run_stage_seconds_sum{stage="collect"} 0.5`,
			`aivory_sandbox_run_stage_seconds_sum{stage="transfer"} 0.5`,
			`aivory_sandbox_run_cpu_seconds_total 2`, `aivory_sandbox_run_output_bytes_total 100`,
			`aivory_sandbox_session_create_seconds_count{outcome="ok",source="pool"} 1`, `aivory_sandbox_sessions_ended_total{cause="expired"} 1`,
			`aivory_sandbox_file_operation_seconds_count{operation="read",outcome="ok"} 1`,
			`aivory_sandbox_storage_operation_seconds_count{operation="get",outcome="missing",provider="s3"} 1`,
			`aivory_sandbox_in_flight{work="run"} 1`, `aivory_sandbox_in_flight{work="request"} 0`,
			`aivory_sandbox_sessions 2`, `aivory_sandbox_runners 3`, `aivory_sandbox_runners_limit 16`, `aivory_sandbox_pool_ready 1`,
			`aivory_sandbox_spool_entries 4`, `aivory_sandbox_spool_bytes 5`, `aivory_sandbox_archives_lost_total 6`,
			`aivory_sandbox_build_info{version="v1.2.3"} 1`, `go_goroutines `,
		} {
			if !strings.Contains(got, "\n"+want) {
				t.Errorf("lacks %s", want)
			}
		}
		if t.Failed() {
			t.Log(got)
		}
	})
}
