// Package metrics makes Prometheus metrics of what the service does.
package metrics

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hjxwz123/aivory-sandbox/internal/observe"
)

const namespace = "aivory_sandbox"

// seconds are the buckets of what takes from a millisecond to minutes.
var seconds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}

// Metrics counts work, as an observe.Observer, and serves the figures.
type Metrics struct {
	registry *prometheus.Registry

	inFlight *prometheus.GaugeVec
	requests *prometheus.CounterVec
	request  *prometheus.HistogramVec
	wait     *prometheus.HistogramVec
	runs     *prometheus.CounterVec
	stage    *prometheus.HistogramVec
	runCPU   prometheus.Counter
	output   prometheus.Counter
	files    *prometheus.HistogramVec
	created  *prometheus.HistogramVec
	ended    *prometheus.CounterVec
	storage  *prometheus.HistogramVec
}

// New returns metrics of a service of that version. Snapshot tells the figures
// of now; it is asked at each scrape.
func New(version string, snapshot func() Snapshot) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: seconds}, labels)
		m.registry.MustRegister(h)
		return h
	}
	m.inFlight = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace, Name: "in_flight", Help: "Pieces of work that have begun and not ended, by their kind.",
	}, []string{"work"})
	m.registry.MustRegister(m.inFlight)
	m.requests = counter("requests_total", "HTTP requests by route, method and status; 499 is a client that went away.", "route", "method", "status")
	m.request = histogram("request_seconds", "Time from a request's header to the end of its answer.", "route")
	m.wait = histogram("queue_wait_seconds", "Waits in queues, however short, by queue and outcome.", "queue", "outcome")
	m.runs = counter("runs_total", "Runs by the reason of their end; failed is one that the runner did not answer.", "reason")
	m.stage = histogram("run_stage_seconds", "Where the time of a run goes.", "stage")
	m.runCPU = counter("run_cpu_seconds_total", "CPU time that programs have used.").WithLabelValues()
	m.output = counter("run_output_bytes_total", "Bytes of stdout, stderr and files that runs gave back.").WithLabelValues()
	m.files = histogram("file_operation_seconds", "Operations on single files of sessions.", "operation", "outcome")
	m.created = histogram("session_create_seconds", "Creations of sessions, by where the runner came from and outcome.", "source", "outcome")
	m.ended = counter("sessions_ended_total", "Sessions that ended, by cause.", "cause")
	m.storage = histogram("storage_operation_seconds", "Operations on object stores.", "provider", "operation", "outcome")
	for _, reason := range []string{"exit", "signal", "timeout", "oom", "lost", "cancelled", "failed"} {
		m.runs.WithLabelValues(reason)
	}
	for _, cause := range []string{"deleted", "discarded", "expired", "lost"} {
		m.ended.WithLabelValues(cause)
	}

	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "build_info", Help: "Always 1; the label tells the version."}, []string{"version"})
	build.WithLabelValues(version).Set(1)
	m.registry.MustRegister(build, figures{snapshot}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler serves the metrics in the formats of Prometheus.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// Begin counts a piece of work in hand, and in the end what it was.
func (m *Metrics) Begin(ctx context.Context, name string) (context.Context, func(observe.Work)) {
	gauge := m.inFlight.WithLabelValues(name)
	gauge.Inc()
	return ctx, func(w observe.Work) {
		gauge.Dec()
		m.count(w)
	}
}

func (m *Metrics) count(w observe.Work) {
	took := w.Duration().Seconds()
	switch w.Name {
	case observe.Request:
		route := text(w, "route")
		m.requests.WithLabelValues(route, text(w, "method"), strconv.FormatInt(number(w, "status"), 10)).Inc()
		m.request.WithLabelValues(route).Observe(took)
	case observe.Wait:
		m.wait.WithLabelValues(text(w, "queue"), outcome(w)).Observe(took)
	case observe.Run:
		m.countRun(w, took)
	case observe.Send:
		m.stage.WithLabelValues("send").Observe(took)
	case observe.File:
		m.files.WithLabelValues(text(w, "operation"), outcome(w)).Observe(took)
	case observe.Create:
		source := "new"
		if v := w.Attr("pooled"); v.Kind() == slog.KindBool && v.Bool() {
			source = "pool"
		}
		m.created.WithLabelValues(source, outcome(w)).Observe(took)
	case observe.End:
		m.ended.WithLabelValues(text(w, "cause")).Inc()
	case observe.Storage:
		result := outcome(w)
		if v := w.Attr("missing"); v.Kind() == slog.KindBool && v.Bool() {
			result = "missing"
		}
		m.storage.WithLabelValues(text(w, "provider"), text(w, "operation"), result).Observe(took)
	}
}

func (m *Metrics) countRun(w observe.Work, took float64) {
	if w.Err != nil {
		m.runs.WithLabelValues("failed").Inc()
		return
	}
	m.runs.WithLabelValues(text(w, "reason")).Inc()
	wall, collect := duration(w, "wall").Seconds(), duration(w, "collect").Seconds()
	m.stage.WithLabelValues("program").Observe(wall)
	m.stage.WithLabelValues("collect").Observe(collect)
	m.stage.WithLabelValues("transfer").Observe(max(took-wall-collect, 0))
	m.runCPU.Add(max(duration(w, "cpu").Seconds(), 0))
	m.output.Add(float64(max(number(w, "output"), 0) + max(number(w, "artifacts"), 0)))
}

// outcome is how a piece of work ended.
func outcome(w observe.Work) string {
	switch {
	case w.Err == nil:
		return "ok"
	case errors.Is(w.Err, context.Canceled):
		return "cancelled"
	}
	return "failed"
}

// text is an attribute that is text, or "none", so that no label is empty.
func text(w observe.Work, key string) string {
	if v := w.Attr(key); v.Kind() == slog.KindString && v.String() != "" {
		return v.String()
	}
	return "none"
}

func number(w observe.Work, key string) int64 {
	if v := w.Attr(key); v.Kind() == slog.KindInt64 {
		return v.Int64()
	}
	return 0
}

func duration(w observe.Work, key string) time.Duration {
	if v := w.Attr(key); v.Kind() == slog.KindDuration {
		return v.Duration()
	}
	return 0
}
