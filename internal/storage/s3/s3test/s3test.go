// Package s3test starts real S3 servers for tests: two of different make, since
// each has quirks that are not the protocol. scripts/s3-servers.sh builds them.
package s3test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// Names are the servers that Start knows.
var Names = []string{"versitygw", "minio"}

// programs names the file of each server, as scripts/s3-servers.sh does.
var programs = map[string]string{
	"versitygw": "versitygw-v1.8.0",
	"minio":     "minio-v0.0.0-20260212201848-7aac2a2c5b7c",
}

const (
	keyID  = "test-key-id"
	secret = "test-secret+key/nobody=sees"
	region = "us-east-1"
)

// Server is a running server.
type Server struct {
	URL string

	client  *awss3.Client
	buckets atomic.Int64
}

// Bucket is a bucket of a server, empty at first.
type Bucket struct {
	Name   string
	server *Server
}

// Start starts the server of that name on loopback. It ends with the test, and
// its data goes with it.
func Start(t testing.TB, name string) *Server {
	t.Helper()
	program := filepath.Join(cacheDir(t), "s3-servers", programs[name])
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("no server to test with: %v; scripts/s3-servers.sh builds it", err)
	}
	dir, address := t.TempDir(), freeAddress(t)
	var cmd *exec.Cmd
	switch name {
	case "versitygw":
		meta := filepath.Join(t.TempDir(), "meta")
		if err := os.Mkdir(meta, 0o700); err != nil {
			t.Fatal(err)
		}
		// A directory for metadata: not every file system has the attributes for it.
		cmd = exec.Command(program, "--port", address, "--region", region, "--quiet", "posix", "--sidecar", meta, dir)
		cmd.Env = []string{"ROOT_ACCESS_KEY=" + keyID, "ROOT_SECRET_KEY=" + secret, "HOME=" + dir}
	case "minio":
		cmd = exec.Command(program, "server", "--quiet", "--address", address, "--console-address", freeAddress(t), dir)
		cmd.Env = []string{"MINIO_ROOT_USER=" + keyID, "MINIO_ROOT_PASSWORD=" + secret, "MINIO_BROWSER=off", "MINIO_UPDATE=off", "HOME=" + t.TempDir()}
	default:
		t.Fatalf("there is no server %q", name)
	}
	run(t, cmd)
	s := &Server{URL: "http://" + address}
	s.client = awss3.New(awss3.Options{
		Region: region, BaseEndpoint: &s.URL, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(keyID, secret, ""),
		HTTPClient:  &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		Retryer:     aws.NopRetryer{},
	})
	return s
}

// Config is the storage block that a client would forward.
func (b *Bucket) Config() storage.Config {
	return storage.Config{
		Provider: "s3", S3Bucket: b.Name, S3Region: region, S3Endpoint: b.server.URL, S3AccessKey: keyID, S3SecretKey: secret,
	}
}

// Uploads names the unfinished multipart uploads, as "key id".
func (b *Bucket) Uploads(t testing.TB) []string {
	t.Helper()
	out, err := b.server.client.ListMultipartUploads(context.Background(), &awss3.ListMultipartUploadsInput{Bucket: &b.Name})
	if err != nil {
		t.Fatalf("cannot list uploads: %v", err)
	}
	var all []string
	for _, u := range out.Uploads {
		all = append(all, aws.ToString(u.Key)+" "+aws.ToString(u.UploadId))
	}
	return all
}

// BeginUpload begins a multipart upload that nobody finishes.
func (b *Bucket) BeginUpload(t testing.TB, key string) {
	t.Helper()
	_, err := b.server.client.CreateMultipartUpload(context.Background(), &awss3.CreateMultipartUploadInput{Bucket: &b.Name, Key: &key})
	if err != nil {
		t.Fatalf("cannot begin upload: %v", err)
	}
}

// NewBucket makes a bucket, waiting for the server to answer.
func (s *Server) NewBucket(t testing.TB) *Bucket {
	t.Helper()
	b := &Bucket{fmt.Sprintf("test-bucket-%d", s.buckets.Add(1)), s}
	deadline := time.Now().Add(60 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err := s.client.CreateBucket(ctx, &awss3.CreateBucketInput{Bucket: &b.Name})
		cancel()
		if err == nil || strings.Contains(err.Error(), "BucketAlreadyOwnedByYou") {
			return b
		}
		if time.Now().After(deadline) {
			t.Fatalf("server does not make a bucket: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// run runs a server until the test ends.
func run(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Dir = t.TempDir()
	// A test that is killed takes its servers along.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("cannot start server: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // says that it was killed
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(cmd.Path), tail(log.Bytes()))
		}
	})
}

func tail(log []byte) []byte { return log[max(0, len(log)-4096):] }

// freeAddress returns an address of loopback where nobody listened just now.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return address
}

// cacheDir is where the scripts keep what they make.
func cacheDir(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("AIVORY_CACHE_DIR"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(fmt.Errorf("cannot find the cache directory: %w", err))
	}
	return filepath.Join(dir, "aivory-sandbox")
}
