package tracing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/hjxwz123/aivory-sandbox/internal/observe"
)

func TestWanted(t *testing.T) {
	for _, test := range []struct {
		environ string
		want    bool
		err     string
	}{
		{"", false, ""},
		{"OTEL_TRACES_EXPORTER=otlp", true, ""},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_SDK_DISABLED=true", false, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", true, ""},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://c:4318/v1/traces OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", true, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318 OTEL_TRACES_EXPORTER=none", false, ""},
		{"OTEL_TRACES_EXPORTER=zipkin", false, "OTEL_TRACES_EXPORTER: "},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317 OTEL_EXPORTER_OTLP_PROTOCOL=http/json", false, "OTEL_EXPORTER_OTLP_PROTOCOL: "},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318 OTEL_EXPORTER_OTLP_PROTOCOL=x OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc", true, ""},
	} {
		t.Run(test.environ, func(t *testing.T) {
			for entry := range strings.FieldsSeq(test.environ) {
				name, value, _ := strings.Cut(entry, "=")
				t.Setenv(name, value)
			}
			got, err := Wanted()
			if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.HasPrefix(err.Error(), test.err) {
				t.Errorf("%t, %v", got, err)
			}
		})
	}
}

func TestSpans(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	kept := tracetest.NewSpanRecorder()
	tracer := newTracer("v1", trace.WithSpanProcessor(kept))
	handler := tracer.Continue(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, request := observe.Start(observe.With(r.Context(), tracer), observe.Request)
		_, run := observe.Start(ctx, observe.Run, slog.String("reason", "exit"), slog.Duration("wall", 1500*time.Millisecond), slog.Int("exit_code", 3))
		run.Set(slog.String("reason", "oom"))
		run.End(nil)
		_, storage := observe.Start(ctx, observe.Storage, slog.String("operation", "get"))
		storage.End(errors.New("https://bucket/?X-Amz-Signature=secret"))
		request.Set(slog.String("method", "POST"), slog.String("route", "/exec"), slog.Int("status", 200))
		request.End(nil)
	}))
	r := httptest.NewRequest("POST", "/exec", nil)
	r.Header.Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	handler.ServeHTTP(httptest.NewRecorder(), r)
	if err := tracer.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	spans := kept.Ended()
	var names []string
	for _, s := range spans {
		names = append(names, s.Name())
		if s.SpanContext().TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("%s is in trace %s", s.Name(), s.SpanContext().TraceID())
		}
		if text := fmt.Sprint(s.Attributes(), s.Status(), s.Events()); strings.Contains(text, "secret") {
			t.Errorf("%s gives a signature away: %s", s.Name(), text)
		}
	}
	if got := strings.Join(names, ", "); got != "run, storage get, POST /exec" {
		t.Fatalf("spans: %s", got)
	}
	root := spans[2]
	if root.Parent().SpanID().String() != "b7ad6b7169203331" || spans[0].Parent().SpanID() != root.SpanContext().SpanID() {
		t.Error("the spans are not each other's")
	}
	if spans[1].Status().Code != codes.Error || root.Status().Code == codes.Error {
		t.Error("the wrong span failed")
	}
	for i, want := range map[int][]string{
		0: {"aivory.reason=oom", "aivory.wall_seconds=1.5", "aivory.exit_code=3"},
		2: {"http.request.method=POST", "http.route=/exec", "http.response.status_code=200"},
	} {
		var got []string
		for _, a := range spans[i].Attributes() {
			got = append(got, fmt.Sprintf("%s=%s", a.Key, a.Value.String()))
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("attributes of %s: %q", spans[i].Name(), got)
		}
	}
	text := root.Resource().String()
	for _, want := range []string{"service.name=aivory-sandbox", "service.version=v1", "deployment.environment.name=test"} {
		if !strings.Contains(text, want) {
			t.Errorf("the resource is %s", text)
		}
	}
}

// What is exported arrives, by the standard variables alone.
func TestExport(t *testing.T) {
	got := make(chan string, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		select {
		case got <- r.URL.Path + " " + r.Header.Get("X-Token") + " " + string(body):
		default:
		}
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=t")
	if wanted, err := Wanted(); !wanted || err != nil {
		t.Fatalf("%t, %v", wanted, err)
	}
	tracer, err := Start(t.Context(), "v1", func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	_, span := observe.Start(observe.With(t.Context(), tracer), observe.Run)
	span.End(nil)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := tracer.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if text := <-got; !strings.HasPrefix(text, "/v1/traces t ") || !strings.Contains(text, "aivory-sandbox") {
		t.Errorf("the collector got %.200q", text)
	}
}
