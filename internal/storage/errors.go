package storage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

// Sentences that clients of the older service know. Errors carry them as
// fault.Error details, all of them fault.Invalid.
const (
	DetailNotConfigured = "storage backend not configured"
	DetailInvalidKey    = "invalid storage key"
	DetailNoPresign     = "presigned URLs are unsupported for local storage"
	DetailBadConfig     = "invalid storage configuration"
	DetailContentType   = "invalid content_type"
)

// Reason says why a store failed, in words that a client may read.
type Reason string

// The reasons.
const (
	ReasonUnreachable Reason = "the store cannot be reached"
	ReasonTimeout     Reason = "the store did not answer in time"
	ReasonDenied      Reason = "the store refused the credentials"
	ReasonNoBucket    Reason = "the bucket does not exist"
	ReasonUnavailable Reason = "the store is out of order"
	ReasonRefused     Reason = "the store refused the request"
	ReasonFailed      Reason = "the store failed"
)

// Error is a failure of a store. Its text is fit for the log: what the store or
// its SDK said is cut to a kilobyte and holds neither a credential nor a signed
// URL. The cause itself cannot be unwrapped, since it may hold both; errors.Is
// still sees through it.
type Error struct {
	// Op is what was being done, such as `put object "a/b"`.
	Op     string
	Reason Reason
	text   string
	cause  error
}

// Error returns operation and text.
func (e *Error) Error() string { return "cannot " + e.Op + ": " + e.text }

// Is reports whether the cause is target.
func (e *Error) Is(target error) bool { return errors.Is(e.cause, target) }

// NewError classifies what a store or its SDK said. Code is the store's own word
// for the error and status its HTTP status, empty and 0 where there was no
// answer. Secrets are struck out of the text.
func NewError(op, key string, cause error, code string, status int, secrets ...string) *Error {
	return &Error{
		Op:     op + " " + strconv.Quote(key),
		Reason: reason(cause, code, status),
		text:   scrub(cause.Error(), secrets),
		cause:  cause,
	}
}

// NotExist is the error of a key that no object has.
func NotExist(op, key string) error { return fmt.Errorf("cannot %s %q: %w", op, key, ErrNotExist) }

// BadConfig is the error of a driver that cannot use what the block forwards,
// such as an endpoint that is no URL. Why must not quote the block.
func BadConfig(why string) error {
	return fault.Wrap(fault.Invalid, DetailBadConfig, errors.New(why))
}

// BodyError is the error of a Put whose reader failed: the store is not to blame.
type BodyError struct{ Err error }

// Error returns the reader's error.
func (e *BodyError) Error() string { return "cannot read what to store: " + e.Err.Error() }

// Unwrap returns the reader's error.
func (e *BodyError) Unwrap() error { return e.Err }

func reason(cause error, code string, status int) Reason {
	var timeout net.Error
	var op *net.OpError
	var dns *net.DNSError
	switch {
	case code == "NoSuchBucket":
		return ReasonNoBucket
	case status == 401 || status == 403:
		return ReasonDenied
	case status >= 500 || status == 429:
		return ReasonUnavailable
	case status != 0:
		return ReasonRefused
	case errors.Is(cause, context.DeadlineExceeded), errors.As(cause, &timeout) && timeout.Timeout():
		return ReasonTimeout
	case errors.As(cause, &op), errors.As(cause, &dns):
		return ReasonUnreachable
	}
	return ReasonFailed
}

// What makes a signed URL or an authorization header worth stealing, wherever a
// store may have echoed it: values by their names, and V4 signatures by their
// look.
var (
	named  = regexp.MustCompile(`(?i)((?:signature|security-?token|credential)["']?\s*(?:[=:>]|%3d)\s*["']?)[^&\s"'<,;)]+`)
	digest = regexp.MustCompile(`(?i)\b[0-9a-f]{64}\b`)
)

const (
	redacted = "[redacted]"
	maxText  = 1 << 10
)

// scrub makes one line of at most a kilobyte of what a store said.
func scrub(text string, secrets []string) string {
	// A hostile store's answer may be long: only its beginning is looked at, and
	// enough of it that no secret is cut in two and so missed.
	if len(text) > 8*maxText {
		text = text[:8*maxText]
	}
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, redacted)
		}
	}
	text = digest.ReplaceAllString(named.ReplaceAllString(text, "${1}"+redacted), redacted)
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "..."
	}
	return text
}
