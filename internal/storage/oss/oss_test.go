package oss_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/oss"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/oss/osstest"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/storagetest"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/upload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options() oss.Options {
	return oss.Options{MaxAttempts: 2, ConnectTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, Parts: upload.NewParts(4)}
}

func config(s *osstest.Server) storage.Config {
	return storage.Config{
		Provider: "aliyun_oss", OSSBucket: s.Bucket, OSSEndpoint: s.URL,
		OSSAccessKeyID: s.KeyID, OSSAccessKeySecret: s.Secret,
	}
}

func open(t *testing.T, cfg storage.Config) storage.Bucket {
	t.Helper()
	return openWith(t, options(), cfg)
}

func openWith(t *testing.T, opts oss.Options, cfg storage.Config) storage.Bucket {
	t.Helper()
	driver := oss.New(opts)
	t.Cleanup(driver.Close)
	b, ok, err := driver.Open(t.Context(), cfg)
	if err != nil || !ok {
		t.Fatalf("Open = %v, %v", ok, err)
	}
	return b
}

func TestConformance(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storagetest.Store {
		server := osstest.New(t)
		return storagetest.Store{
			Bucket:   open(t, config(server)),
			Presigns: true,
			Uploads:  func(*testing.T) []string { return server.Uploads() },
		}
	})
}

func TestFaults(t *testing.T) {
	storagetest.RunFaults(t, func(t *testing.T, read time.Duration, front storagetest.Front) storagetest.Faulty {
		server := osstest.NewBehind(t, front)
		server.Secret = storagetest.FaultSecret
		return storagetest.Faulty{
			Bucket: openWith(t, oss.Options{
				MaxAttempts: storagetest.FaultAttempts, ConnectTimeout: 10 * time.Second, ReadTimeout: read, Parts: upload.NewParts(4),
			}, config(server)),
			Uploads: server.Uploads,
			Page:    page,
		}
	})
}

// page is a listing without times, as the service never sends it.
func page(next string, keys ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "<ListBucketResult><IsTruncated>%v</IsTruncated><NextContinuationToken>%s</NextContinuationToken>", next != "", next)
	for _, key := range keys {
		fmt.Fprintf(&b, "<Contents><Key>%s</Key><Size>1</Size></Contents>", key)
	}
	return b.String() + "</ListBucketResult>"
}

func TestEffective(t *testing.T) {
	full := storage.Config{OSSBucket: "b", OSSEndpoint: "oss-cn-beijing.aliyuncs.com", OSSAccessKeyID: "i", OSSAccessKeySecret: "s"}
	driver := oss.New(options())
	defer driver.Close()
	for name, change := range map[string]func(*storage.Config){
		"bucket":   func(c *storage.Config) { c.OSSBucket = "" },
		"endpoint": func(c *storage.Config) { c.OSSEndpoint = "" },
		"key id":   func(c *storage.Config) { c.OSSAccessKeyID = "" },
		"secret":   func(c *storage.Config) { c.OSSAccessKeySecret = "" },
	} {
		cfg := full
		change(&cfg)
		if b, ok, err := driver.Open(t.Context(), cfg); b != nil || ok || err != nil {
			t.Errorf("without %s: %v, %v, %v", name, b, ok, err)
		}
	}
	for _, endpoint := range []string{"ftp://host", "https://", "http://user:pass@host", "https://host/path", "https://host?x=1", "http://a b"} {
		cfg := full
		cfg.OSSEndpoint = endpoint
		_, ok, err := driver.Open(t.Context(), cfg)
		if ok || !fault.Is(err, fault.Invalid) {
			t.Errorf("endpoint %q: %v, %v", endpoint, ok, err)
		} else if strings.Contains(err.Error(), "pass") {
			t.Errorf("endpoint %q is quoted: %v", endpoint, err)
		}
	}
}

// A signed URL shows region and address style without a request.
func TestRegionAndStyle(t *testing.T) {
	for endpoint, want := range map[string]struct{ host, region string }{
		"https://oss-cn-shanghai.aliyuncs.com":           {"https://bkt.oss-cn-shanghai.aliyuncs.com/k?", "cn-shanghai"},
		"oss-cn-shanghai.aliyuncs.com":                   {"https://bkt.oss-cn-shanghai.aliyuncs.com/k?", "cn-shanghai"},
		"http://oss-cn-hangzhou-internal.aliyuncs.com/":  {"http://bkt.oss-cn-hangzhou-internal.aliyuncs.com/k?", "cn-hangzhou"},
		"https://OSS-AP-Southeast-1.aliyuncs.com":        {"https://bkt.OSS-AP-Southeast-1.aliyuncs.com/k?", "ap-southeast-1"},
		"https://vpc100-oss-cn-beijing.aliyuncs.com":     {"https://bkt.vpc100-oss-cn-beijing.aliyuncs.com/k?", "cn-beijing"},
		"https://cn-beijing.oss.aliyuncs.com":            {"https://bkt.cn-beijing.oss.aliyuncs.com/k?", "cn-beijing"},
		"https://bkt.oss-cn-shenzhen.aliyuncs.com":       {"https://bkt.oss-cn-shenzhen.aliyuncs.com/k?", "cn-shenzhen"},
		"https://oss-accelerate.aliyuncs.com":            {"https://bkt.oss-accelerate.aliyuncs.com/k?", "cn-hangzhou"},
		"https://oss-accelerate-overseas.aliyuncs.com":   {"https://bkt.oss-accelerate-overseas.aliyuncs.com/k?", "cn-hangzhou"},
		"https://files.example.com":                      {"https://bkt.files.example.com/k?", "cn-hangzhou"},
		"http://127.0.0.1:9000":                          {"http://127.0.0.1:9000/bkt/k?", "cn-hangzhou"},
		"https://oss-cn-hangzhou.aliyuncs.com.evil.test": {"https://bkt.oss-cn-hangzhou.aliyuncs.com.evil.test/k?", "cn-hangzhou"},
	} {
		b := open(t, storage.Config{OSSBucket: "bkt", OSSEndpoint: endpoint, OSSAccessKeyID: "id", OSSAccessKeySecret: "secret"})
		url, err := b.PresignGet(t.Context(), "k", time.Minute)
		if err != nil {
			t.Errorf("%s: %v", endpoint, err)
			continue
		}
		if !strings.HasPrefix(url, want.host) || !strings.Contains(url, "%2F"+want.region+"%2Foss%2Faliyun_v4_request") || !strings.Contains(url, "x-oss-expires=60") {
			t.Errorf("%s gives %s, want %+v", endpoint, url, want)
		}
	}
}

// A bucket's own domain name and a name in front of an endpoint are addressed by
// host; the server knows both by the Host header.
func TestHostStyle(t *testing.T) {
	server := osstest.New(t)
	address := strings.TrimPrefix(server.URL, "http://")
	proxy := &http.Transport{Proxy: nil}
	defer proxy.CloseIdleConnections()
	cfg := config(server)
	cfg.OSSEndpoint = "http://oss-cn-hangzhou.aliyuncs.com"
	signed, err := open(t, cfg).PresignGet(t.Context(), "no thing", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, signed, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host, req.URL.Host = req.URL.Host, address
	resp, err := proxy.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 404 {
		t.Errorf("a signed URL of a missing object gives %d", resp.StatusCode)
	}
	if all := server.Requests(); !slices.Equal(all, []string{"GET test-bucket no thing x-oss-credential&x-oss-date&x-oss-expires&x-oss-signature&x-oss-signature-version"}) {
		t.Errorf("requests: %q", all)
	}
}

func TestRequests(t *testing.T) {
	server := osstest.New(t)
	b := open(t, config(server))
	for _, c := range []struct {
		size int64
		want []string
	}{
		{10, []string{"PUT test-bucket k "}},
		{5 << 20, []string{"POST test-bucket k uploads", "PUT test-bucket k partNumber&uploadId", "POST test-bucket k uploadId", "GET test-bucket  max-uploads&prefix&uploads"}},
		{1 << 20, []string{"PUT test-bucket k "}},
	} {
		before := len(server.Requests())
		if _, err := b.Put(t.Context(), "k", storagetest.Content(c.size, 1), "text/plain"); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range server.Requests()[before:] {
			got = append(got, strings.ReplaceAll(r, "encoding-type&", ""))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("Put of %d bytes makes %q, want %q", c.size, got, c.want)
		}
	}
}

// What a process left that was killed goes with the next upload to that key, or when asked;
// what others are about stays.
func TestLeftoversOfAKilledProcess(t *testing.T) {
	server := osstest.New(t)
	for key, at := range map[string]time.Time{
		"a b/+键": time.Now().Add(-time.Minute), "a b/+键2": time.Now().Add(-time.Minute), "other": time.Now().Add(-time.Minute),
	} {
		server.BeginUpload(key, at)
	}
	server.BeginUpload("a b/+键", time.Now().Add(time.Minute))
	b := open(t, config(server))
	if _, err := b.Put(t.Context(), "a b/+键", storagetest.Content(6<<20, 1), ""); err != nil {
		t.Fatal(err)
	}
	if err := b.RemoveLeftovers(t.Context(), "other"); err != nil {
		t.Error(err)
	}
	var left []string
	for _, u := range server.Uploads() {
		key, _, _ := strings.Cut(u, " upload-")
		left = append(left, key)
	}
	slices.Sort(left)
	if want := []string{"a b/+键", "a b/+键2"}; !slices.Equal(left, want) {
		t.Errorf("left: %q, want %q", left, want)
	}
}

func TestWrongCredentials(t *testing.T) {
	server := osstest.New(t)
	for name, change := range map[string]func(*storage.Config){
		"secret": func(c *storage.Config) { c.OSSAccessKeySecret = "wrong" },
		"key id": func(c *storage.Config) { c.OSSAccessKeyID = "wrong" },
	} {
		cfg := config(server)
		change(&cfg)
		_, err := open(t, cfg).Put(t.Context(), "k", strings.NewReader("x"), "")
		var e *storage.Error
		if !errors.As(err, &e) || e.Reason != storage.ReasonDenied {
			t.Errorf("Put with a wrong %s: %v", name, err)
		}
	}
	cfg := config(server)
	cfg.OSSBucket = "other-bucket"
	err := open(t, cfg).Delete(t.Context(), "k")
	var e *storage.Error
	if !errors.As(err, &e) || e.Reason != storage.ReasonNoBucket {
		t.Errorf("Delete in a bucket that does not exist: %v", err)
	}
}
