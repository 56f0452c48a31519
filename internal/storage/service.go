package storage

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

// maxSigned is as long as a V4 signature can be valid.
const maxSigned = 7 * 24 * time.Hour

// defaultContentType is the type of a document that has none.
const defaultContentType = "application/octet-stream"

// Service does what the storage endpoints do. It is safe for concurrent use.
type Service struct {
	opener     *Opener
	defaultTTL time.Duration
	maxTTL     time.Duration
}

// NewService returns a service whose URLs are valid for defaultTTL where the
// client asks for no time of its own, and for maxTTL, at most seven days, where
// it asks for more. Both are whole seconds, at least one.
func NewService(opener *Opener, defaultTTL, maxTTL time.Duration) *Service {
	maxTTL = min(maxTTL, maxSigned)
	return &Service{opener: opener, defaultTTL: min(defaultTTL, maxTTL), maxTTL: maxTTL}
}

// PutResult is a stored document.
type PutResult struct {
	Provider string
	// Key is the full key, prefix included.
	Key string
	// URL gives the document to whoever has it.
	URL string
	// ExpiresIn is how long the URL is valid, in seconds.
	ExpiresIn int64
}

// Check reports what Put and Delete would find wrong with a request before they
// look at its body: fault.Invalid for a block that is not effective, then for a
// key, in that order.
func (s *Service) Check(ctx context.Context, cfg Config, key string) error {
	_, _, err := s.target(ctx, "put", cfg, key, cfg.Key)
	return err
}

// Put stores what body gives under the prefix and key and returns a URL to fetch
// it by. An empty content type is application/octet-stream. ExpiresIn is in
// seconds; nil, zero and negative ask for the default. What is wrong with the
// request is fault.Invalid and nothing is stored, local storage among it, since
// it has no URLs; a store's failure is fault.Upstream; an error of body comes
// back as it is, wrapped. On any error and on cancel nothing is left behind, but
// for a URL that fails to be made after the document was stored.
func (s *Service) Put(ctx context.Context, cfg Config, key, contentType string, body io.Reader, expiresIn *int64) (PutResult, error) {
	b, full, err := s.target(ctx, "put", cfg, key, cfg.Key)
	if err != nil {
		return PutResult{}, err
	}
	contentType, err = cleanContentType(contentType)
	if err != nil {
		return PutResult{}, err
	}
	ttl := s.ttl(expiresIn)
	// Asked before anything is stored: a bucket without URLs stores nothing.
	if _, err := b.PresignGet(ctx, full, ttl); errors.Is(err, ErrNoPresign) {
		return PutResult{}, fault.Wrap(fault.Invalid, DetailNoPresign, err)
	} else if err != nil {
		return PutResult{}, failed("put", err)
	}
	if _, err := b.Put(ctx, full, body, contentType); err != nil {
		return PutResult{}, failed("put", err)
	}
	// Asked again: the time of the first one began before the upload.
	url, err := b.PresignGet(ctx, full, ttl)
	if err != nil {
		return PutResult{}, failed("put", err)
	}
	return PutResult{Provider: cfg.Provider, Key: full, URL: url, ExpiresIn: int64(ttl / time.Second)}, nil
}

// Delete removes the object at a key that may or may not have its prefix, and
// returns the full key. Removing what does not exist succeeds. Errors are as
// those of Put.
func (s *Service) Delete(ctx context.Context, cfg Config, key string) (string, error) {
	b, full, err := s.target(ctx, "delete", cfg, key, cfg.FullKey)
	if err != nil {
		return "", err
	}
	if err := b.Delete(ctx, full); err != nil {
		return "", failed("delete", err)
	}
	return full, nil
}

func (s *Service) target(ctx context.Context, op string, cfg Config, key string, full func(string) (string, error)) (Bucket, string, error) {
	b, ok, err := s.opener.Open(ctx, cfg)
	if err != nil {
		return nil, "", failed(op, err)
	}
	if !ok {
		return nil, "", fault.New(fault.Invalid, DetailNotConfigured)
	}
	key, err = full(key)
	if err != nil {
		return nil, "", err
	}
	return b, key, nil
}

func (s *Service) ttl(seconds *int64) time.Duration {
	switch {
	case seconds == nil || *seconds <= 0:
		return s.defaultTTL
	case *seconds >= int64(s.maxTTL/time.Second):
		return s.maxTTL
	}
	return time.Duration(*seconds) * time.Second
}

// cleanContentType refuses what would not pass as a header.
func cleanContentType(s string) (string, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return defaultContentType, nil
	}
	if len(s) > 1<<10 || strings.ContainsFunc(s, unicode.IsControl) {
		return "", fault.New(fault.Invalid, DetailContentType)
	}
	return s, nil
}

// failed classifies an error of a bucket. What the store said is the cause, for
// the log; the client reads one of the reasons.
func failed(op string, err error) error {
	var body *BodyError
	var classified *fault.Error
	if errors.As(err, &body) || errors.As(err, &classified) {
		return err
	}
	why := ReasonFailed
	var e *Error
	if errors.As(err, &e) {
		why = e.Reason
	}
	return fault.Wrap(fault.Upstream, "storage "+op+" failed: "+string(why), err)
}
