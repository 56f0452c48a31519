// Package storage keeps objects for the service: workspace archives and the
// documents that other services fetch by presigned URL.
package storage

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"
)

var (
	// ErrNotExist means that no object has that key.
	ErrNotExist = errors.New("object does not exist")
	// ErrNoPresign means that the bucket cannot make URLs.
	ErrNoPresign = errors.New("bucket cannot presign")
)

// Object describes a stored object.
type Object struct {
	Key  string
	Size int64 // bytes
	// ModTime is zero where the store does not tell.
	ModTime time.Time
}

// Bucket holds objects under slash-separated keys. Methods are safe for
// concurrent use. Errors wrap the store's own; they may name bucket and key but
// never a credential or a signed URL.
type Bucket interface {
	// Put stores body, of unknown length, under key and returns its size. It is
	// all or nothing: on error or cancel the key holds what it held before and
	// nothing half-written is left.
	Put(ctx context.Context, key string, body io.Reader, contentType string) (int64, error)
	// Get opens the object at key; the caller closes it. ErrNotExist where
	// there is none.
	Get(ctx context.Context, key string) (io.ReadCloser, Object, error)
	// Delete removes the object at key. Removing what does not exist succeeds.
	Delete(ctx context.Context, key string) error
	// List calls fn for each object whose key begins with prefix, over all
	// pages, in no promised order, until fn fails; it returns that error.
	List(ctx context.Context, prefix string, fn func(Object) error) error
	// PresignGet returns a URL that gives the object to whoever has it, for
	// ttl. ErrNoPresign where the driver has none.
	PresignGet(ctx context.Context, key string, ttl time.Duration) (string, error)
	// RemoveLeftovers removes the parts of uploads to key that nobody goes on
	// with: those that an earlier process began, and those of this one that could
	// not be removed when they failed. Put does it too, where it stores in parts.
	RemoveLeftovers(ctx context.Context, key string) error
}

// Config is the storage block that a client forwards with a request, values
// trimmed. It holds credentials: it is never logged, and %v prints no secret.
type Config struct {
	Provider           string `json:"provider,omitempty"` // "local", "s3", "aliyun_oss"; anything else is ineffective
	Prefix             string `json:"prefix,omitempty"`   // as forwarded; "workspaces/" where absent
	S3Bucket           string `json:"s3_bucket,omitempty"`
	S3Region           string `json:"s3_region,omitempty"`
	S3Endpoint         string `json:"s3_endpoint,omitempty"`
	S3AccessKey        string `json:"s3_access_key,omitempty"`
	S3SecretKey        string `json:"s3_secret_key,omitempty"`
	OSSBucket          string `json:"oss_bucket,omitempty"`
	OSSEndpoint        string `json:"oss_endpoint,omitempty"`
	OSSAccessKeyID     string `json:"oss_access_key_id,omitempty"`
	OSSAccessKeySecret string `json:"oss_access_key_secret,omitempty"`
}

// String names provider and prefix alone, so that a config in a log line gives
// no credential away.
func (c Config) String() string { return c.Provider + ":" + c.Prefix }

// GoString is String, for %#v.
func (c Config) GoString() string { return c.String() }

// LogValue is String, for log/slog, whose JSON would name every field.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }
