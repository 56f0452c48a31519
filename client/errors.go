package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Kinds of errors, for errors.Is. Each stands for a status.
var (
	ErrInvalid       = errors.New("invalid request")           // 400: id, path, key or storage block
	ErrUnauthorized  = errors.New("unauthorized")              // 401
	ErrNotFound      = errors.New("not found")                 // 404: session or file
	ErrTimeout       = errors.New("request came too slowly")   // 408
	ErrTooLarge      = errors.New("too large")                 // 413
	ErrUnprocessable = errors.New("unprocessable request")     // 422
	ErrBusy          = errors.New("busy")                      // 429: a limit or a queue is full, nothing was done
	ErrInternal      = errors.New("service failed")            // 500
	ErrStorage       = errors.New("object store failed")       // 502
	ErrUnavailable   = errors.New("service is not available")  // 503
	ErrSessionLost   = errors.New("session is lost")           // 404, and it is the session that is not there
	ErrUnsupported   = errors.New("not a part of the service") // an older service, without streaming say
)

var kinds = map[int]error{
	http.StatusBadRequest: ErrInvalid, http.StatusUnauthorized: ErrUnauthorized, http.StatusNotFound: ErrNotFound,
	http.StatusRequestTimeout: ErrTimeout, http.StatusRequestEntityTooLarge: ErrTooLarge, http.StatusUnprocessableEntity: ErrUnprocessable,
	http.StatusTooManyRequests: ErrBusy, http.StatusInternalServerError: ErrInternal, http.StatusBadGateway: ErrStorage,
	http.StatusServiceUnavailable: ErrUnavailable,
}

// Error is an answer of the service that is not a success.
type Error struct {
	Status int
	// Detail is for people; its wording may change.
	Detail string
	// Issues are what is wrong with the fields of a request, with ErrUnprocessable.
	Issues []Issue
	// RequestID names the request in the service's log; empty where the service
	// did not tell.
	RequestID string
	// lost tells that a 404 is about the session.
	lost bool
}

// Issue is what is wrong with one field of a request.
type Issue struct {
	Type string `json:"type"` // such as "missing" or "string_too_long"
	Loc  []any  `json:"loc"`  // where it is: "body", then names and indices
	Msg  string `json:"msg"`
}

// Error names status and detail.
func (e *Error) Error() string {
	text := e.Detail
	if text == "" {
		text = http.StatusText(e.Status)
	}
	if e.RequestID != "" {
		return fmt.Sprintf("%s (status %d, request %s)", text, e.Status, e.RequestID)
	}
	return fmt.Sprintf("%s (status %d)", text, e.Status)
}

// Is tells whether the error is of a kind.
func (e *Error) Is(target error) bool {
	return kinds[e.Status] == target || e.lost && target == ErrSessionLost
}

// maxErrorBody is how much of an error's body is read, in bytes.
const maxErrorBody = 64 << 10

// readError makes an error of an answer and closes its body.
func readError(resp *http.Response) error {
	defer resp.Body.Close()
	e := &Error{Status: resp.StatusCode, RequestID: resp.Header.Get("X-Request-Id")}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil {
		return e // the status says what counts
	}
	var text struct {
		Detail json.RawMessage `json:"detail"`
		Error  string          `json:"error"`
	}
	if json.Unmarshal(body, &text) != nil {
		return e // not the service's, but of something between
	}
	e.Detail = text.Error
	var issues []Issue
	switch {
	case json.Unmarshal(text.Detail, &issues) == nil:
		e.Issues = issues
		var parts []string
		for _, i := range issues {
			var where []string
			for _, l := range i.Loc {
				where = append(where, fmt.Sprint(l))
			}
			parts = append(parts, strings.Join(where, ".")+": "+i.Msg)
		}
		e.Detail = strings.Join(parts, "; ")
	case text.Detail != nil:
		_ = json.Unmarshal(text.Detail, &e.Detail) // anything else stays unsaid
	}
	return e
}
