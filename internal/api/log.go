package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/observe"
)

type requestIDKey struct{}

// requestID returns the id of the request that ctx belongs to, which its answer
// bears as X-Request-Id; empty outside of a request.
func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

func newRequestID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// logHandler adds the request id to every line that is logged with a request's
// context.
type logHandler struct{ slog.Handler }

// NewLogHandler returns h with the request id added to all that is logged with
// the context of a request. The service's one logger is to be built on it, so
// that the lines of the packages below bear the id as well.
func NewLogHandler(h slog.Handler) slog.Handler {
	if _, ok := h.(logHandler); ok {
		return h
	}
	return logHandler{h}
}

// Handle adds the id.
func (h logHandler) Handle(ctx context.Context, r slog.Record) error {
	if id := requestID(ctx); id != "" {
		r = r.Clone()
		r.AddAttrs(slog.String("request_id", id))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs keeps the id.
func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup keeps the id, inside the group.
func (h logHandler) WithGroup(name string) slog.Handler {
	return logHandler{h.Handler.WithGroup(name)}
}

// ServeHTTP answers one request, and logs one line about it that holds neither
// query, nor body, nor key.
func (a *api) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	start := time.Now()
	id := newRequestID()
	ctx := observe.With(context.WithValue(r.Context(), requestIDKey{}, id), a.cfg.Observer)
	ctx, span := observe.Start(ctx, observe.Request)
	r = r.WithContext(ctx)
	w := &response{ResponseWriter: rw, ctl: http.NewResponseController(rw), req: r, stall: a.cfg.StallTimeout}
	w.Header().Set("X-Request-Id", id)
	// The connection may have served a request before, with its own deadline.
	_ = w.ctl.SetWriteDeadline(time.Time{})

	route, vars := a.match(r.URL.Path)
	defer func() {
		panicked := recover()
		broken := panicked != nil
		if broken && panicked != http.ErrAbortHandler {
			a.log.ErrorContext(r.Context(), "panic while serving", "panic", panicked, "stack", string(debug.Stack()))
			if w.status == 0 {
				_ = w.sendJSON(http.StatusInternalServerError, detail{"internal error"})
				broken = false
			}
		}
		a.log.LogAttrs(r.Context(), slog.LevelInfo, "request",
			slog.String("method", r.Method), slog.String("route", route.pattern),
			slog.Int("status", w.status), slog.Duration("duration", time.Since(start)), slog.Int64("bytes", w.bytes))
		span.Set(slog.String("method", methodName(r.Method)), slog.String("route", route.pattern), slog.Int("status", w.status),
			slog.String("request_id", id))
		span.End(failed(w, panicked))
		if broken {
			panic(http.ErrAbortHandler) // ends the connection, and is not logged again
		}
	}()
	if err := a.serve(w, r, route, vars); err != nil {
		a.fail(w, r, err)
	}
}

// methodName is a method as observers see it: a client can make up any.
func methodName(method string) string {
	if slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions}, method) {
		return method
	}
	return "other"
}

// failed is what observers are told of a request that went wrong by the
// service's doing.
func failed(w *response, panicked any) error {
	switch {
	case panicked != nil && w.status != statusClientGone && w.err == nil:
		return errors.New("answer broken off")
	case w.status >= http.StatusInternalServerError:
		return errors.New(http.StatusText(w.status))
	}
	return nil
}
