package api

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

// detail is how a handler's error looks to a client.
type detail struct {
	Detail any `json:"detail"`
}

// plainError is how an error looks that comes before any handler: the size of a
// body, authentication.
type plainError struct {
	Error string `json:"error"`
}

// routeError is a request that leads to no handler.
type routeError struct{ status int }

func (e *routeError) Error() string { return http.StatusText(e.status) }

var errUnauthorized = fault.New(fault.Unauthenticated, "unauthorized")

// statusClientGone is logged where nobody was left to answer.
const statusClientGone = 499

// statuses maps error kinds to HTTP statuses; there is no other place.
var statuses = map[fault.Kind]int{
	fault.Internal:        http.StatusInternalServerError,
	fault.Invalid:         http.StatusBadRequest,
	fault.Unauthenticated: http.StatusUnauthorized,
	fault.NotFound:        http.StatusNotFound,
	fault.Conflict:        http.StatusConflict,
	fault.TooLarge:        http.StatusRequestEntityTooLarge,
	fault.Unprocessable:   http.StatusUnprocessableEntity,
	fault.Busy:            http.StatusTooManyRequests,
	fault.Upstream:        http.StatusBadGateway,
	fault.Unavailable:     http.StatusServiceUnavailable,
}

// render turns an error into a status and what the client reads.
func render(err error) (int, any) {
	var (
		tooLarge *tooLargeError
		invalid  *validationError
		route    *routeError
		kind     *fault.Error
	)
	switch {
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge, plainError{tooLarge.Error()}
	case errors.Is(err, errUnauthorized):
		return http.StatusUnauthorized, plainError{errUnauthorized.Detail}
	case errors.As(err, &invalid):
		return http.StatusUnprocessableEntity, detail{invalid.issues}
	case errors.As(err, &route):
		return route.status, detail{route.Error()}
	case errors.Is(err, errSlowBody):
		return http.StatusRequestTimeout, detail{errSlowBody.Error()}
	case errors.As(err, &kind) && statuses[kind.Kind] != 0:
		return statuses[kind.Kind], detail{kind.Detail}
	}
	return http.StatusInternalServerError, detail{"internal error"}
}

// fail answers with an error and logs it, both for the only time.
func (a *api) fail(w *response, r *http.Request, err error) {
	ctx := r.Context()
	var abort *abortError
	if errors.As(err, &abort) {
		level := slog.LevelError
		if abort.client || ctx.Err() != nil {
			level = slog.LevelDebug
		}
		a.log.Log(ctx, level, "answer broken off", "error", abort.err)
		panic(http.ErrAbortHandler)
	}
	// The server ends the context for a body that did not come as well, and then
	// there may be somebody to tell.
	if ctx.Err() != nil && !w.lost {
		a.log.DebugContext(ctx, "client went away", "error", err)
		w.status = statusClientGone
		panic(http.ErrAbortHandler) // to return would be to answer 200
	}
	status, body := render(err)
	a.log.Log(ctx, failureLevel(status), "request failed", "status", status, "error", err)
	if encodeErr := w.sendJSON(status, body); encodeErr != nil {
		panic(fmt.Errorf("cannot encode an error: %w", encodeErr))
	}
}
