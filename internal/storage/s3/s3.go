// Package s3 keeps objects in AWS S3 and in whatever speaks its protocol.
package s3

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/upload"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/wire"
)

// defaultRegion is the one that is signed for where the block forwards none.
// Stores other than AWS mostly take any.
const defaultRegion = "us-east-1"

// Options are the operator's, the same for every bucket.
type Options struct {
	// MaxAttempts is how often a request is sent before it has failed, at least 1.
	MaxAttempts int
	// ConnectTimeout and ReadTimeout bound an attempt: the time to connect, and
	// the time in which nothing moves on the connection.
	ConnectTimeout, ReadTimeout time.Duration
	// Parts is the memory that uploads share.
	Parts *upload.Parts
}

// Driver makes S3 buckets, all of them with one pool of connections.
type Driver struct {
	opts   Options
	client *http.Client
}

// New returns a driver. Its connections are closed by Close.
func New(opts Options) *Driver {
	return &Driver{opts: opts, client: wire.NewClient(opts.ConnectTimeout, opts.ReadTimeout)}
}

// Close closes the connections that are not in use.
func (d *Driver) Close() { d.client.CloseIdleConnections() }

// Open is a storage.Driver. A block without a bucket, or with one half of a key
// pair, is not effective; one without keys uses the credentials that the process
// finds by the AWS default chain. An endpoint that is no HTTP URL is
// fault.Invalid.
func (d *Driver) Open(ctx context.Context, cfg storage.Config) (storage.Bucket, bool, error) {
	if cfg.S3Bucket == "" || (cfg.S3AccessKey == "") != (cfg.S3SecretKey == "") {
		return nil, false, nil
	}
	o := awss3.Options{
		Region:     cfg.S3Region,
		HTTPClient: d.client,
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
			o.MaxAttempts = d.opts.MaxAttempts
		}),
		// Bodies are signed with their digest, which guards them as well as a
		// checksum would, and every server knows how to check it.
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
	}
	if cfg.S3Endpoint != "" {
		endpoint, err := parseEndpoint(cfg.S3Endpoint)
		if err != nil {
			return nil, false, err
		}
		o.BaseEndpoint = &endpoint
		o.UsePathStyle = true
	}
	if cfg.S3AccessKey != "" {
		o.Credentials = credentials.NewStaticCredentialsProvider(cfg.S3AccessKey, cfg.S3SecretKey, "")
	} else {
		chain, err := config.LoadDefaultConfig(ctx)
		if err != nil {
			return nil, false, storage.NewError("find credentials for bucket", cfg.S3Bucket, err, "", 0)
		}
		o.Credentials = chain.Credentials
		if o.Region == "" {
			o.Region = chain.Region
		}
	}
	if o.Region == "" {
		o.Region = defaultRegion
	}
	client := awss3.New(o)
	return &bucket{
		name:    cfg.S3Bucket,
		client:  client,
		presign: awss3.NewPresignClient(client),
		parts:   d.opts.Parts,
		secrets: []string{cfg.S3SecretKey, url.QueryEscape(cfg.S3SecretKey)},
	}, true, nil
}

// parseEndpoint takes a URL of scheme, host and perhaps a path, or a host alone,
// which is spoken to with TLS.
func parseEndpoint(s string) (string, error) {
	if !strings.Contains(s, "://") {
		s = "https://" + s
	}
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		return "", storage.BadConfig("s3_endpoint is not an HTTP URL")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", storage.BadConfig("s3_endpoint has more than scheme, host and path")
	}
	return u.String(), nil
}
