package client

import (
	"context"
	"io"
	"net/http"
	"time"
)

// Storage is where archives and documents are kept. It may hold credentials: it
// is sent with requests and never printed.
type Storage struct {
	Provider           string `json:"provider"` // "local", "s3" or "aliyun_oss"
	Prefix             string `json:"prefix,omitempty"`
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

// String names provider and prefix alone.
func (s Storage) String() string { return s.Provider + ":" + s.Prefix }

// GoString is String.
func (s Storage) GoString() string { return s.String() }

// Object is a stored document.
type Object struct {
	Provider string `json:"provider"`
	Key      string `json:"key"` // with the prefix
	// URL gives the document to whoever has it, for ExpiresIn seconds.
	URL       string `json:"url"`
	ExpiresIn int64  `json:"expires_in"`
}

// PutObject stores a document, encoded while it is sent, and returns a URL for it.
// An empty content type is application/octet-stream, an expiry of 0 the service's
// default.
func (c *Client) PutObject(ctx context.Context, storage Storage, key, contentType string, expires time.Duration, body io.Reader) (o Object, err error) {
	fields := map[string]any{"key": key, "storage": storage}
	if contentType != "" {
		fields["content_type"] = contentType
	}
	if expires > 0 {
		fields["expires_in"] = int64(max(expires/time.Second, 1))
	}
	sent, err := newUpload(body)
	if err == nil {
		err = sent.send(ctx, c, "/storage/put", fields, &o)
	}
	return o, err
}

// DeleteObject deletes a document, by its key with or without the prefix, and
// returns the key with it. One that does not exist is deleted.
func (c *Client) DeleteObject(ctx context.Context, storage Storage, key string) (string, error) {
	var done struct {
		Key string `json:"key"`
	}
	err := c.call(ctx, http.MethodPost, "/storage/delete", map[string]any{"key": key, "storage": storage}, &done)
	return done.Key, err
}

// Collected is what CollectObjects did.
type Collected struct {
	Deleted    int   `json:"deleted"`
	Scanned    int   `json:"scanned"`
	FreedBytes int64 `json:"freed_bytes"`
}

// CollectObjects deletes archives and documents that are older; 0 deletes nothing.
func (c *Client) CollectObjects(ctx context.Context, storage Storage, older time.Duration) (done Collected, err error) {
	body := map[string]any{"max_age_seconds": int64(older / time.Second), "storage": storage}
	err = c.call(ctx, http.MethodPost, "/storage/gc", body, &done)
	return done, err
}
