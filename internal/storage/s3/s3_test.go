package s3_test

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/s3"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/upload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options() s3.Options {
	return s3.Options{MaxAttempts: 3, ConnectTimeout: 5 * time.Second, ReadTimeout: 20 * time.Second, Parts: upload.NewParts(4)}
}

func open(t testing.TB, cfg storage.Config) storage.Bucket {
	t.Helper()
	return openWith(t, options(), cfg)
}

func openWith(t testing.TB, opts s3.Options, cfg storage.Config) storage.Bucket {
	t.Helper()
	driver := s3.New(opts)
	t.Cleanup(driver.Close)
	b, ok, err := driver.Open(t.Context(), cfg)
	if err != nil || !ok {
		t.Fatalf("Open = %v, %v", ok, err)
	}
	return b
}

func TestEffective(t *testing.T) {
	driver := s3.New(options())
	defer driver.Close()
	for name, cfg := range map[string]storage.Config{
		"no bucket":       {S3Endpoint: "https://host", S3AccessKey: "a", S3SecretKey: "s"},
		"no access key":   {S3Bucket: "b", S3SecretKey: "s"},
		"no secret key":   {S3Bucket: "b", S3AccessKey: "a"},
		"nothing":         {},
		"others' values":  {OSSBucket: "b", OSSEndpoint: "e", OSSAccessKeyID: "i", OSSAccessKeySecret: "s"},
		"bad URL as well": {S3Endpoint: "ftp://x", S3AccessKey: "a", S3SecretKey: "s"},
	} {
		if b, ok, err := driver.Open(t.Context(), cfg); b != nil || ok || err != nil {
			t.Errorf("%s: %v, %v, %v", name, b, ok, err)
		}
	}
	for _, endpoint := range []string{"ftp://host", "https://", "http://user:pass@host", "https://host?x=1", "https://host#x", "http://a b", "http://host:port"} {
		_, ok, err := driver.Open(t.Context(), storage.Config{S3Bucket: "b", S3Endpoint: endpoint, S3AccessKey: "a", S3SecretKey: "s"})
		if ok || !fault.Is(err, fault.Invalid) {
			t.Errorf("endpoint %q: %v, %v", endpoint, ok, err)
		} else if strings.Contains(err.Error(), "pass") {
			t.Errorf("endpoint %q is quoted: %v", endpoint, err)
		}
	}
}

// A signed URL shows address style, region and credentials without a request.
func TestAddressStyle(t *testing.T) {
	for _, key := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"} {
		t.Setenv(key, "")
	}
	t.Setenv("AWS_REGION", "eu-west-1")
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://not.asked.test")
	t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
	keys := storage.Config{S3Bucket: "bkt", S3AccessKey: "AK", S3SecretKey: "SK"}
	with := func(change func(*storage.Config)) storage.Config {
		c := keys
		change(&c)
		return c
	}
	for name, c := range map[string]struct {
		cfg        storage.Config
		start, has string
	}{
		"AWS, no region": {keys, "https://bkt.s3.us-east-1.amazonaws.com/dir/k?", "AK%2F"},
		"AWS, region": {with(func(c *storage.Config) { c.S3Region = "cn-north-1" }),
			"https://bkt.s3.cn-north-1.amazonaws.com.cn/dir/k?", "%2Fcn-north-1%2Fs3%2Faws4_request"},
		"endpoint": {with(func(c *storage.Config) { c.S3Endpoint = "http://127.0.0.1:9000"; c.S3Region = "x-1" }),
			"http://127.0.0.1:9000/bkt/dir/k?", "%2Fx-1%2Fs3%2Faws4_request"},
		"endpoint with a slash": {with(func(c *storage.Config) { c.S3Endpoint = "https://minio.example.internal/" }),
			"https://minio.example.internal/bkt/dir/k?", "%2Fus-east-1%2F"},
		"endpoint with a path": {with(func(c *storage.Config) { c.S3Endpoint = "https://gw.example.internal/s3" }),
			"https://gw.example.internal/s3/bkt/dir/k?", "X-Amz-Expires=60"},
		"host alone": {with(func(c *storage.Config) { c.S3Endpoint = "minio.example.internal:9000" }),
			"https://minio.example.internal:9000/bkt/dir/k?", "X-Amz-Signature="},
	} {
		url, err := open(t, c.cfg).PresignGet(t.Context(), "dir/k", time.Minute)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !strings.HasPrefix(url, c.start) || !strings.Contains(url, c.has) {
			t.Errorf("%s gives %s", name, url)
		}
	}
}

// Without forwarded keys the process's own credentials are used, and its region.
func TestDefaultCredentials(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "OWNKEY")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "own-secret")
	t.Setenv("AWS_SESSION_TOKEN", "own-token")
	t.Setenv("AWS_REGION", "eu-west-1")
	url, err := open(t, storage.Config{S3Bucket: "bkt"}).PresignGet(t.Context(), "k", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"https://bkt.s3.eu-west-1.amazonaws.com/k?", "OWNKEY%2F", "X-Amz-Security-Token=own-token"} {
		if !strings.Contains(url, want) {
			t.Errorf("%s is not in %s", want, url)
		}
	}
	// Forwarded keys come first, and nothing of the process's is mixed in.
	url, err = open(t, storage.Config{S3Bucket: "bkt", S3AccessKey: "AK", S3SecretKey: "SK"}).PresignGet(t.Context(), "k", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(url, "own-token") || !strings.Contains(url, "AK%2F") || strings.Contains(url, "eu-west-1") {
		t.Errorf("forwarded keys give %s", url)
	}
}
