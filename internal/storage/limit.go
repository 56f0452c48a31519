package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// ErrTooLarge means that an object is larger than the caller takes.
var ErrTooLarge = errors.New("object is too large")

// GetLimit is Bucket.Get for an object of at most limit bytes. It fails with
// ErrTooLarge where the store says that the object is larger; where the store
// says nothing, or not the truth, reading past the limit does.
func GetLimit(ctx context.Context, b Bucket, key string, limit int64) (io.ReadCloser, Object, error) {
	body, obj, err := b.Get(ctx, key)
	if err != nil {
		return nil, Object{}, err
	}
	if obj.Size > limit {
		err := fmt.Errorf("cannot get %q of %d bytes, more than %d: %w", key, obj.Size, limit, ErrTooLarge)
		if cerr := body.Close(); cerr != nil {
			err = fmt.Errorf("%w (and closing it failed: %v)", err, cerr)
		}
		return nil, Object{}, err
	}
	return &limited{body: body, left: limit}, obj, nil
}

type limited struct {
	body io.ReadCloser
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	// One byte past the limit tells an object of that size from a longer one.
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.body.Read(p)
	if int64(n) > l.left {
		n, err = int(l.left), ErrTooLarge
	}
	l.left -= int64(n)
	return n, err
}

func (l *limited) Close() error { return l.body.Close() }
