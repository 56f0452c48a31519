package oss

import (
	"bytes"
	"context"
	"errors"
	"time"

	alioss "github.com/aliyun/alibabacloud-oss-go-sdk-v2/oss"
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
	_, err := o.b.client.PutObject(ctx, &alioss.PutObjectRequest{
		Bucket: &o.b.name, Key: &o.key, ContentType: &o.contentType, Body: body,
	})
	return err
}

func (o *object) Create(ctx context.Context) (string, error) {
	out, err := o.b.client.InitiateMultipartUpload(ctx, &alioss.InitiateMultipartUploadRequest{
		Bucket: &o.b.name, Key: &o.key, ContentType: &o.contentType,
	})
	if err != nil {
		return "", err
	}
	id := alioss.ToString(out.UploadId)
	if id == "" {
		return "", errors.New("the store gave the upload no name")
	}
	return id, nil
}

func (o *object) Part(ctx context.Context, id string, number int32, body *bytes.Reader) (string, error) {
	out, err := o.b.client.UploadPart(ctx, &alioss.UploadPartRequest{
		Bucket: &o.b.name, Key: &o.key, UploadId: &id, PartNumber: number, Body: body,
	})
	if err != nil {
		return "", err
	}
	tag := alioss.ToString(out.ETag)
	if tag == "" {
		return "", errors.New("the store gave a part no tag")
	}
	return tag, nil
}

func (o *object) Complete(ctx context.Context, id string, tags []string) error {
	parts := make([]alioss.UploadPart, len(tags))
	for i := range tags {
		parts[i] = alioss.UploadPart{ETag: &tags[i], PartNumber: int32(i + 1)}
	}
	_, err := o.b.client.CompleteMultipartUpload(ctx, &alioss.CompleteMultipartUploadRequest{
		Bucket: &o.b.name, Key: &o.key, UploadId: &id,
		CompleteMultipartUpload: &alioss.CompleteMultipartUpload{Parts: parts},
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
	out, err := o.b.client.ListMultipartUploads(ctx, &alioss.ListMultipartUploadsRequest{
		Bucket: &o.b.name, Prefix: &o.key, MaxUploads: pageSize,
	})
	if err != nil {
		return err
	}
	for _, u := range out.Uploads {
		id := alioss.ToString(u.UploadId)
		if alioss.ToString(u.Key) != o.key || !o.b.parts.IsLeftover(id, alioss.ToTime(u.Initiated)) {
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
	_, err := o.b.client.AbortMultipartUpload(ctx, &alioss.AbortMultipartUploadRequest{
		Bucket: &o.b.name, Key: &o.key, UploadId: &id,
	})
	if code, _ := answer(err); code == "NoSuchUpload" {
		return nil
	}
	return err
}
