// Package oss keeps objects in Alibaba Cloud's Object Storage Service.
package oss

import (
	"context"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	alioss "github.com/aliyun/alibabacloud-oss-go-sdk-v2/oss"
	"github.com/aliyun/alibabacloud-oss-go-sdk-v2/oss/credentials"
	"github.com/aliyun/alibabacloud-oss-go-sdk-v2/oss/retry"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/upload"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/wire"
)

// defaultRegion is the one that is signed for where the endpoint names none.
const defaultRegion = "cn-hangzhou"

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

// Driver makes OSS buckets, all of them with one pool of connections.
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

// Open is a storage.Driver. A block without bucket, endpoint or either half of
// the key pair is not effective. An endpoint that is no HTTP URL is
// fault.Invalid.
func (d *Driver) Open(_ context.Context, cfg storage.Config) (storage.Bucket, bool, error) {
	if cfg.OSSBucket == "" || cfg.OSSEndpoint == "" || cfg.OSSAccessKeyID == "" || cfg.OSSAccessKeySecret == "" {
		return nil, false, nil
	}
	endpoint, err := parseEndpoint(cfg.OSSEndpoint)
	if err != nil {
		return nil, false, err
	}
	// An IP address gets path style, which is the SDK's own rule.
	ownHost := strings.HasPrefix(strings.ToLower(endpoint.Hostname()), strings.ToLower(cfg.OSSBucket)+".")
	address := endpoint.Scheme + "://" + endpoint.Host
	region := regionOf(endpoint.Hostname())
	return &bucket{
		name: cfg.OSSBucket,
		client: alioss.NewClient(&alioss.Config{
			Endpoint:            &address,
			Region:              &region,
			UseCName:            &ownHost,
			CredentialsProvider: credentials.NewStaticCredentialsProvider(cfg.OSSAccessKeyID, cfg.OSSAccessKeySecret),
			HttpClient:          d.client,
			Retryer:             retry.NewStandard(func(o *retry.RetryOptions) { o.MaxAttempts = d.opts.MaxAttempts }),
		}),
		parts:   d.opts.Parts,
		secrets: []string{cfg.OSSAccessKeySecret, url.QueryEscape(cfg.OSSAccessKeySecret)},
	}, true, nil
}

// parseEndpoint takes a URL of scheme and host, or a host alone, which is spoken
// to with TLS.
func parseEndpoint(s string) (*url.URL, error) {
	if !strings.Contains(s, "://") {
		s = "https://" + s
	}
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		return nil, storage.BadConfig("oss_endpoint is not an HTTP URL")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return nil, storage.BadConfig("oss_endpoint has more than scheme and host")
	}
	return u, nil
}

var (
	// regional matches oss-cn-hangzhou.aliyuncs.com, its -internal twin, and both
	// with a bucket or a network's name in front.
	regional = regexp.MustCompile(`(?:^|[.-])oss-([a-z]{2}-[a-z0-9-]+?)(?:-internal)?\.aliyuncs\.com$`)
	// dualStack matches cn-hangzhou.oss.aliyuncs.com.
	dualStack = regexp.MustCompile(`(?:^|\.)([a-z]{2}-[a-z0-9-]+)\.oss\.aliyuncs\.com$`)
)

// regionOf returns the region that a V4 signature is made for. The storage block
// names none, so it is that of the endpoint's name. Names that tell nothing (an
// address, an acceleration endpoint, a domain of one's own) get cn-hangzhou.
func regionOf(host string) string {
	host = strings.ToLower(host)
	for _, name := range []*regexp.Regexp{regional, dualStack} {
		if m := name.FindStringSubmatch(host); m != nil {
			return m[1]
		}
	}
	return defaultRegion
}
