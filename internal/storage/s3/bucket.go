package s3

import (
	"context"
	"errors"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/upload"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/wire"
)

// maxPages bounds a listing, a hundred million objects, so that a store that
// never ends one does not hold its reader for good.
const maxPages = 100_000

var errEndless = errors.New("the listing does not end")

// bucket implements storage.Bucket.
type bucket struct {
	name    string
	client  *awss3.Client
	presign *awss3.PresignClient
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
	out, err := b.client.GetObject(wire.Object(ctx), &awss3.GetObjectInput{Bucket: &b.name, Key: &key})
	if isMissing(err) {
		return nil, storage.Object{}, storage.NotExist("get object", key)
	}
	if err != nil {
		return nil, storage.Object{}, b.fail("get object", key, err)
	}
	return out.Body, storage.Object{
		Key:     key,
		Size:    aws.ToInt64(out.ContentLength),
		ModTime: aws.ToTime(out.LastModified),
	}, nil
}

func (b *bucket) Delete(ctx context.Context, key string) error {
	_, err := b.client.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: &b.name, Key: &key})
	if err != nil && !isMissing(err) {
		return b.fail("delete object", key, err)
	}
	return nil
}

func (b *bucket) List(ctx context.Context, prefix string, fn func(storage.Object) error) error {
	in := &awss3.ListObjectsV2Input{
		Bucket: &b.name,
		Prefix: &prefix,
		// XML cannot hold every character that a key can.
		EncodingType: types.EncodingTypeUrl,
	}
	for range maxPages {
		out, err := b.client.ListObjectsV2(ctx, in)
		if err != nil {
			return b.fail("list objects under", prefix, err)
		}
		for _, o := range out.Contents {
			key := aws.ToString(o.Key)
			// Some servers ignore the request for an encoding, and say so.
			if out.EncodingType == types.EncodingTypeUrl {
				if key, err = url.QueryUnescape(key); err != nil {
					return b.fail("list objects under", prefix, errors.New("a listed key is badly encoded"))
				}
			}
			// Whoever lists deletes what is listed, so the store is not trusted with it.
			if !strings.HasPrefix(key, prefix) {
				continue
			}
			if err := fn(storage.Object{Key: key, Size: aws.ToInt64(o.Size), ModTime: aws.ToTime(o.LastModified)}); err != nil {
				return err
			}
		}
		next := aws.ToString(out.NextContinuationToken)
		if !aws.ToBool(out.IsTruncated) || next == "" {
			return nil
		}
		if next == aws.ToString(in.ContinuationToken) {
			break
		}
		in.ContinuationToken = &next
	}
	return b.fail("list objects under", prefix, errEndless)
}

func (b *bucket) PresignGet(ctx context.Context, key string, ttl time.Duration) (string, error) {
	req, err := b.presign.PresignGetObject(ctx, &awss3.GetObjectInput{Bucket: &b.name, Key: &key}, awss3.WithPresignExpires(ttl))
	if err != nil {
		return "", b.fail("sign URL of object", key, err)
	}
	return req.URL, nil
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
	var api smithy.APIError
	if errors.As(err, &api) {
		code = api.ErrorCode()
	}
	var resp *smithyhttp.ResponseError
	if errors.As(err, &resp) {
		status = resp.HTTPStatusCode()
	}
	return code, status
}

// isMissing tells an object that does not exist from a bucket that does not.
func isMissing(err error) bool {
	code, status := answer(err)
	return code == "NoSuchKey" || code == "NotFound" && status == 404
}
