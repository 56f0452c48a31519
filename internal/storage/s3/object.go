package s3

import (
	"bytes"
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// leftoversTimeout bounds the removal of what earlier processes left.
const leftoversTimeout = 10 * time.Second

// object is an upload.Target. Its errors are the SDK's; Put classifies them.
type object struct {
	b           *bucket
	key         string
	contentType string
}

func (o *object) Put(ctx context.Context, body *bytes.Reader) error {
	_, err := o.b.client.PutObject(ctx, &awss3.PutObjectInput{
		Bucket: &o.b.name, Key: &o.key, ContentType: &o.contentType, Body: body,
	})
	return err
}

func (o *object) Create(ctx context.Context) (string, error) {
	out, err := o.b.client.CreateMultipartUpload(ctx, &awss3.CreateMultipartUploadInput{
		Bucket: &o.b.name, Key: &o.key, ContentType: &o.contentType,
	})
	if err != nil {
		return "", err
	}
	id := aws.ToString(out.UploadId)
	if id == "" {
		return "", errors.New("the store gave the upload no name")
	}
	return id, nil
}

func (o *object) Part(ctx context.Context, id string, number int32, body *bytes.Reader) (string, error) {
	out, err := o.b.client.UploadPart(ctx, &awss3.UploadPartInput{
		Bucket: &o.b.name, Key: &o.key, UploadId: &id, PartNumber: &number, Body: body,
	})
	if err != nil {
		return "", err
	}
	tag := aws.ToString(out.ETag)
	if tag == "" {
		return "", errors.New("the store gave a part no tag")
	}
	return tag, nil
}

func (o *object) Complete(ctx context.Context, id string, tags []string) error {
	parts := make([]types.CompletedPart, len(tags))
	for i := range tags {
		parts[i] = types.CompletedPart{ETag: &tags[i], PartNumber: aws.Int32(int32(i + 1))}
	}
	_, err := o.b.client.CompleteMultipartUpload(ctx, &awss3.CompleteMultipartUploadInput{
		Bucket: &o.b.name, Key: &o.key, UploadId: &id,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	})
	if err == nil {
		// The object is stored: a store that does not let itself be asked fails nothing.
		_ = o.RemoveLeftovers(ctx)
	}
	return err
}

// RemoveLeftovers aborts the uploads to this key that nobody goes on with.
func (o *object) RemoveLeftovers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leftoversTimeout)
	defer cancel()
	out, err := o.b.client.ListMultipartUploads(ctx, &awss3.ListMultipartUploadsInput{
		Bucket: &o.b.name, Prefix: &o.key, EncodingType: types.EncodingTypeUrl,
	})
	if err != nil {
		return err
	}
	for _, u := range out.Uploads {
		key := aws.ToString(u.Key)
		if out.EncodingType == types.EncodingTypeUrl {
			if key, err = url.QueryUnescape(key); err != nil {
				continue
			}
		}
		id := aws.ToString(u.UploadId)
		if key != o.key || !o.b.parts.IsLeftover(id, aws.ToTime(u.Initiated)) {
			continue
		}
		if err := o.Abort(ctx, id); err != nil {
			return err
		}
		o.b.parts.Removed(id)
	}
	return nil
}

func (o *object) Abort(ctx context.Context, id string) error {
	_, err := o.b.client.AbortMultipartUpload(ctx, &awss3.AbortMultipartUploadInput{
		Bucket: &o.b.name, Key: &o.key, UploadId: &id,
	})
	if code, _ := answer(err); code == "NoSuchUpload" {
		return nil
	}
	return err
}
