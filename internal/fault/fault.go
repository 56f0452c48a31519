// Package fault holds the closed set of error kinds that cross package borders.
//
// A package that knows why something failed wraps the cause with a kind and
// the sentence that a client may read. The HTTP layer maps the kind to a status
// in one place and logs the cause; nothing else looks inside.
package fault

import (
	"errors"
	"fmt"
)

// Kind classifies an error. The zero value is Internal, so an error that nobody
// classified is never shown to a client as something it did.
type Kind uint8

// The kinds, with the HTTP status that each stands for.
const (
	Internal        Kind = iota // 500: engine, runner or I/O failure
	Invalid                     // 400: malformed id, path, base64, storage key
	Unauthenticated             // 401
	NotFound                    // 404: no such session, or no such file
	Conflict                    // 409: the target exists as something else
	TooLarge                    // 413
	Unprocessable               // 422
	Busy                        // 429: a limit or a queue is full
	Upstream                    // 502: object store
	Unavailable                 // 503: engine cannot be reached (health only)
)

// Error is a classified error.
type Error struct {
	Kind Kind
	// Detail is the sentence that the client reads. It never holds what an
	// engine, an SDK or the operating system said.
	Detail string
	// Err is the cause, for the log. It may be nil.
	Err error
}

// Error returns the detail and the cause; it is for the log.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Detail
	}
	return e.Detail + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// New returns an error of a kind with the sentence that the client reads.
func New(kind Kind, detail string) *Error { return &Error{Kind: kind, Detail: detail} }

// Wrap classifies a cause. Detail is what the client reads, err what is logged.
func Wrap(kind Kind, detail string, err error) *Error {
	return &Error{Kind: kind, Detail: detail, Err: err}
}

// Newf is New with a format.
func Newf(kind Kind, format string, args ...any) *Error {
	return New(kind, fmt.Sprintf(format, args...))
}

// KindOf returns the kind of the outermost classified error in the chain, or
// Internal where there is none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Internal
}

// Is reports whether err is classified as kind.
func Is(err error, kind Kind) bool { return err != nil && KindOf(err) == kind }
