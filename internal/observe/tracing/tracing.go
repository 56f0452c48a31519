// Package tracing makes OpenTelemetry traces of what the service does, and sends
// them where the standard OTEL_ variables say.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	api "go.opentelemetry.io/otel/trace"

	"github.com/hjxwz123/aivory-sandbox/internal/observe"
)

// scope names the spans' origin.
const scope = "github.com/hjxwz123/aivory-sandbox"

// serviceName is the name of the service where OTEL_SERVICE_NAME is not set.
const serviceName = "aivory-sandbox"

// Tracer is an observe.Observer that makes a span of each piece of work.
type Tracer struct {
	provider *trace.TracerProvider
	tracer   api.Tracer
}

// Wanted tells whether the environment of this process asks for traces: by
// OTEL_TRACES_EXPORTER=otlp or by naming an endpoint. It fails where it asks for
// something that there is not.
func Wanted() (wanted bool, err error) {
	if strings.EqualFold(get("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch exporter := get("OTEL_TRACES_EXPORTER"); exporter {
	case "none":
		return false, nil
	case "otlp":
	case "":
		if get("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
			return false, nil
		}
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER: %.200q is not accepted; accepted is otlp or none", exporter)
	}
	if _, err := protocol(); err != nil {
		return false, err
	}
	return true, nil
}

// newExporter returns how OTLP is sent by a protocol. It makes no connection.
var newExporter = map[string]func(context.Context) (*otlptrace.Exporter, error){
	"":              func(ctx context.Context) (*otlptrace.Exporter, error) { return otlptracehttp.New(ctx) },
	"http/protobuf": func(ctx context.Context) (*otlptrace.Exporter, error) { return otlptracehttp.New(ctx) },
	"grpc":          func(ctx context.Context) (*otlptrace.Exporter, error) { return otlptracegrpc.New(ctx) },
}

// protocol is the one that the environment asks for, a key of newExporter.
func protocol() (string, error) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if p := get(name); p != "" {
			if newExporter[p] == nil {
				return "", fmt.Errorf("%s: %.200q is not accepted; accepted is http/protobuf or grpc", name, p)
			}
			return p, nil
		}
	}
	return "", nil
}

func get(name string) string { return strings.TrimSpace(os.Getenv(name)) }

// Start returns a tracer that exports as the environment says. It waits for no
// collector. Failed is told where spans cannot be sent; the last tracer's counts
// for the whole process. The caller calls Shutdown.
func Start(ctx context.Context, version string, failed func(error)) (*Tracer, error) {
	p, err := protocol()
	if err != nil {
		return nil, err
	}
	exporter, err := newExporter[p](ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot export traces: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(failed))
	return newTracer(version, trace.WithBatcher(exporter)), nil
}

// newTracer returns a tracer. What the environment says of the resource, the
// sampler and the limits counts.
func newTracer(version string, options ...trace.TracerProviderOption) *Tracer {
	r := resource.NewSchemaless(attribute.String("service.name", serviceName), attribute.String("service.version", version))
	// A part that cannot be found out is left out.
	if env, err := resource.Merge(r, resource.Environment()); err == nil {
		r = env
	}
	provider := trace.NewTracerProvider(append(options, trace.WithResource(r))...)
	return &Tracer{provider: provider, tracer: provider.Tracer(scope, api.WithInstrumentationVersion(version))}
}

// Shutdown sends what is not sent yet, for as long as ctx lasts.
func (t *Tracer) Shutdown(ctx context.Context) error { return t.provider.Shutdown(ctx) }

// Continue returns h with each request's trace made part of the one that its
// traceparent header names.
func (t *Tracer) Continue(h http.Handler) http.Handler {
	headers := propagation.TraceContext{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(headers.Extract(r.Context(), propagation.HeaderCarrier(r.Header))))
	})
}

// Begin starts a span.
func (t *Tracer) Begin(ctx context.Context, name string) (context.Context, func(observe.Work)) {
	kind := api.SpanKindInternal
	switch name {
	case observe.Request:
		kind = api.SpanKindServer
	case observe.Storage:
		kind = api.SpanKindClient
	}
	ctx, span := t.tracer.Start(ctx, name, api.WithSpanKind(kind))
	return ctx, func(w observe.Work) {
		if !span.IsRecording() {
			return
		}
		span.SetName(title(w))
		span.SetAttributes(attributes(w)...)
		if w.Err != nil {
			// Its text may hold what an engine or a store said: that is for the log.
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}

// title names a span for people.
func title(w observe.Work) string {
	switch w.Name {
	case observe.Request:
		if route := w.Attr("route").String(); route != "" {
			return w.Attr("method").String() + " " + route
		}
		return w.Attr("method").String()
	case observe.Wait:
		return "wait for " + w.Attr("queue").String()
	case observe.Storage, observe.File:
		return w.Name + " " + w.Attr("operation").String()
	}
	return w.Name
}

// conventional are attributes that have a name among OpenTelemetry's own.
var conventional = map[string]string{
	"method": "http.request.method", "route": "http.route", "status": "http.response.status_code",
}

// attributes are a piece of work's, the last of each name.
func attributes(w observe.Work) []attribute.KeyValue {
	var out []attribute.KeyValue
	for _, a := range w.Attrs {
		name := "aivory." + a.Key
		if known := conventional[a.Key]; known != "" && w.Name == observe.Request {
			name = known
		}
		kv := convert(name, a.Value)
		if i := slices.IndexFunc(out, func(o attribute.KeyValue) bool { return o.Key == kv.Key }); i >= 0 {
			out[i] = kv
		} else {
			out = append(out, kv)
		}
	}
	return out
}

// convert gives durations in seconds.
func convert(name string, v slog.Value) attribute.KeyValue {
	switch v.Kind() {
	case slog.KindBool:
		return attribute.Bool(name, v.Bool())
	case slog.KindInt64:
		return attribute.Int64(name, v.Int64())
	case slog.KindFloat64:
		return attribute.Float64(name, v.Float64())
	case slog.KindDuration:
		return attribute.Float64(name+"_seconds", v.Duration().Seconds())
	}
	return attribute.String(name, v.String())
}
