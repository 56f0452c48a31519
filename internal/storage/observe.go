package storage

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/observe"
)

// Observed is a driver whose buckets tell the observer of each operation, under
// the provider's name.
func Observed(provider string, d Driver) Driver {
	return func(ctx context.Context, cfg Config) (Bucket, bool, error) {
		b, ok, err := d(ctx, cfg)
		if err != nil || !ok {
			return nil, ok, err
		}
		return &observed{b, provider}, true, nil
	}
}

type observed struct {
	Bucket
	provider string
}

func (b *observed) start(ctx context.Context, operation string) (context.Context, *observe.Span) {
	return observe.Start(ctx, observe.Storage, slog.String("provider", b.provider), slog.String("operation", operation))
}

func (b *observed) Put(ctx context.Context, key string, body io.Reader, contentType string) (int64, error) {
	ctx, span := b.start(ctx, "put")
	n, err := b.Bucket.Put(ctx, key, body, contentType)
	span.End(err)
	return n, err
}

// Get's operation lasts until the body is closed.
func (b *observed) Get(ctx context.Context, key string) (io.ReadCloser, Object, error) {
	ctx, span := b.start(ctx, "get")
	body, obj, err := b.Bucket.Get(ctx, key)
	if errors.Is(err, ErrNotExist) {
		span.Set(slog.Bool("missing", true))
		span.End(nil) // that is an answer
		return body, obj, err
	}
	if err != nil {
		span.End(err)
		return body, obj, err
	}
	return &observedBody{ReadCloser: body, span: span}, obj, nil
}

func (b *observed) Delete(ctx context.Context, key string) error {
	ctx, span := b.start(ctx, "delete")
	err := b.Bucket.Delete(ctx, key)
	span.End(err)
	return err
}

func (b *observed) List(ctx context.Context, prefix string, fn func(Object) error) error {
	ctx, span := b.start(ctx, "list")
	err := b.Bucket.List(ctx, prefix, fn)
	span.End(err)
	return err
}

func (b *observed) RemoveLeftovers(ctx context.Context, key string) error {
	ctx, span := b.start(ctx, "remove leftovers")
	err := b.Bucket.RemoveLeftovers(ctx, key)
	span.End(err)
	return err
}

// PresignGet asks no store, but may ask for temporary credentials.
func (b *observed) PresignGet(ctx context.Context, key string, ttl time.Duration) (string, error) {
	ctx, span := b.start(ctx, "presign")
	url, err := b.Bucket.PresignGet(ctx, key, ttl)
	if errors.Is(err, ErrNoPresign) {
		span.End(nil)
	} else {
		span.End(err)
	}
	return url, err
}

type observedBody struct {
	io.ReadCloser
	span *observe.Span
	err  error
}

func (b *observedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}

func (b *observedBody) Close() error {
	err := b.ReadCloser.Close()
	b.span.End(errors.Join(b.err, err))
	return err
}
