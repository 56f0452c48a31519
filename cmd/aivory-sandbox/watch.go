package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/config"
	"github.com/hjxwz123/aivory-sandbox/internal/observe"
	"github.com/hjxwz123/aivory-sandbox/internal/observe/metrics"
	"github.com/hjxwz123/aivory-sandbox/internal/observe/tracing"
	"github.com/hjxwz123/aivory-sandbox/internal/session"
)

// watch is what tells others how the service does.
type watch struct {
	metrics  *metrics.Metrics
	tracer   *tracing.Tracer // nil where nobody asked for traces
	profiles *http.Server    // nil likewise
	ended    chan struct{}   // closed when profiles has ended
}

// openWatch starts watching. Stats tells the figures of now; it is not asked
// before the service serves.
func openWatch(ctx context.Context, cfg config.Config, stats func() session.Stats, log *slog.Logger) (*watch, error) {
	version := versionNumber()
	w := &watch{metrics: metrics.New(version, func() metrics.Snapshot { return figures(cfg, stats()) })}
	wanted, err := tracing.Wanted()
	if err != nil {
		return nil, err
	}
	if wanted {
		if w.tracer, err = tracing.Start(ctx, version, func(err error) { log.Warn("cannot send traces", "err", err) }); err != nil {
			return nil, err
		}
		log.Info("sending traces")
	}
	if cfg.PprofListen != "" {
		if err := w.serveProfiles(cfg.PprofListen, log); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	return w, nil
}

func figures(cfg config.Config, s session.Stats) metrics.Snapshot {
	return metrics.Snapshot{
		Sessions: s.Sessions, Runners: s.Runners, Pooled: s.Pooled, Limit: cfg.MaxSessions, PoolSize: cfg.PoolSize,
		SpoolEntries: s.SpoolEntries, SpoolBytes: s.SpoolBytes, LostArchives: s.LostArchives,
	}
}

// observer is all that watches.
func (w *watch) observer() observe.Observer {
	if w.tracer == nil {
		return w.metrics
	}
	return observe.All(w.metrics, w.tracer)
}

// handler puts in front of h what has to see requests first.
func (w *watch) handler(h http.Handler) http.Handler {
	if w.tracer == nil {
		return h
	}
	return w.tracer.Continue(h)
}

// serveProfiles serves Go's profiles on a listener of their own: they show what
// is in memory, and taking one costs.
func (w *watch) serveProfiles(address string, log *slog.Logger) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("cannot listen on SANDBOX_PPROF_LISTEN: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	w.profiles = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	w.ended = make(chan struct{})
	go func() {
		defer close(w.ended)
		if err := w.profiles.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("cannot serve profiles any more", "err", err)
		}
	}()
	log.Info("serving profiles", "address", l.Addr().String())
	return nil
}

// traceGrace is how long a stopping service tries to send its last spans.
const traceGrace = 3 * time.Second

// Close sends what is left and ends.
func (w *watch) Close() error {
	var err error
	if w.profiles != nil {
		err = w.profiles.Close()
		<-w.ended
	}
	if w.tracer != nil {
		ctx, cancel := context.WithTimeout(context.Background(), traceGrace)
		defer cancel()
		if e := w.tracer.Shutdown(ctx); e != nil {
			err = errors.Join(err, fmt.Errorf("cannot send the last traces: %w", e))
		}
	}
	return err
}
