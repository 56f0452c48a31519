package oss

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	alioss "github.com/aliyun/alibabacloud-oss-go-sdk-v2/oss"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/upload"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/wire"
)

const (
	// pageSize is the most that a listing gives at a time.
	pageSize = 1000
	// maxPages bounds a listing, a hundred million objects, so that a store that
	// never ends one does not hold its reader for good.
	maxPages = 100_000
)

var errEndless = errors.New("the listing does not end")

// bucket implements storage.Bucket.
type bucket struct {
	name    string
	client  *alioss.Client
	parts   *upload.Parts
	secrets []string // never in an error's text
}

func (b *bucket) Put(ctx context.Context, key string, body io.Reader, contentType string) (int64, error) {
	n, err := b.parts.Upload(ctx, &object{b: b, key: key, contentType: contentType}, body)
	if err != nil {
		return 0, b.fail("put object", key, err)
	}
	return n, nil
}

func (b *bucket) Get(ctx context.Context, key string) (io.ReadCloser, storage.Object, error) {
	out, err := b.client.GetObject(wire.Object(ctx), &alioss.GetObjectRequest{Bucket: &b.name, Key: &key})
	if code, _ := answer(err); code == "NoSuchKey" {
		return nil, storage.Object{}, storage.NotExist("get object", key)
	}
	if err != nil {
		return nil, storage.Object{}, b.fail("get object", key, err)
	}
	return out.Body, storage.Object{Key: key, Size: out.ContentLength, ModTime: alioss.ToTime(out.LastModified)}, nil
}

func (b *bucket) Delete(ctx context.Context, key string) error {
	_, err := b.client.DeleteObject(ctx, &alioss.DeleteObjectRequest{Bucket: &b.name, Key: &key})
	if code, _ := answer(err); err != nil && code != "NoSuchKey" {
		return b.fail("delete object", key, err)
	}
	return nil
}

func (b *bucket) List(ctx context.Context, prefix string, fn func(storage.Object) error) error {
	in := &alioss.ListObjectsV2Request{Bucket: &b.name, Prefix: &prefix, MaxKeys: pageSize}
	for range maxPages {
		out, err := b.client.ListObjectsV2(ctx, in)
		if err != nil {
			return b.fail("list objects under", prefix, err)
		}
		for _, o := range out.Contents {
			key := alioss.ToString(o.Key)
			// Whoever lists deletes what is listed, so the store is not trusted with it.
			if !strings.HasPrefix(key, prefix) {
				continue
			}
			if err := fn(storage.Object{Key: key, Size: o.Size, ModTime: alioss.ToTime(o.LastModified)}); err != nil {
				return err
			}
		}
		next := alioss.ToString(out.NextContinuationToken)
		if !out.IsTruncated || next == "" {
			return nil
		}
		if next == alioss.ToString(in.ContinuationToken) {
			break
		}
		in.ContinuationToken = &next
	}
	return b.fail("list objects under", prefix, errEndless)
}

func (b *bucket) PresignGet(ctx context.Context, key string, ttl time.Duration) (string, error) {
	out, err := b.client.Presign(ctx, &alioss.GetObjectRequest{Bucket: &b.name, Key: &key}, alioss.PresignExpires(ttl))
	if err != nil {
		return "", b.fail("sign URL of object", key, err)
	}
	return out.URL, nil
}

// fail makes a storage.Error of what the SDK said. An error of the body that was
// to be stored stays what it is.
func (b *bucket) RemoveLeftovers(ctx context.Context, key string) error {
	if err := (&object{b: b, key: key}).RemoveLeftovers(ctx); err != nil {
		return b.fail("remove unfinished uploads to", key, err)
	}
	return nil
}

func (b *bucket) fail(op, key string, err error) error {
	var body *storage.BodyError
	if errors.As(err, &body) {
		return err
	}
	code, status := answer(err)
	return storage.NewError(op, key, err, code, status, b.secrets...)
}

// answer returns the store's word for an error and the HTTP status, or nothing
// where no answer came.
func answer(err error) (code string, status int) {
	var e *alioss.ServiceError
	if errors.As(err, &e) {
		return e.Code, e.StatusCode
	}
	return "", 0
}
