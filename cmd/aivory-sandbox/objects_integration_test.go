//go:build integration

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hjxwz123/aivory-sandbox/internal/config"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/s3/s3test"
)

// objectStore is where a service keeps archives, with a second way in for tests.
type objectStore struct {
	block  map[string]any // what a client forwards
	bucket storage.Bucket
}

// localStore returns a store in a directory, which the service is to be given as
// SANDBOX_LOCAL_STORAGE_DIR.
func localStore(t *testing.T, dir string) objectStore {
	t.Helper()
	return openStore(t, dir, map[string]any{"provider": "local", "prefix": "test/"})
}

// s3Block is what a client forwards to use a bucket, by way of endpoint where
// that is not empty.
func s3Block(b *s3test.Bucket, endpoint string) map[string]any {
	cfg := b.Config()
	shown.add("an S3 secret", cfg.S3SecretKey)
	if endpoint == "" {
		endpoint = cfg.S3Endpoint
	}
	return map[string]any{
		"provider": "s3", "prefix": "test/", "s3_bucket": cfg.S3Bucket, "s3_region": cfg.S3Region,
		"s3_endpoint": endpoint, "s3_access_key": cfg.S3AccessKey, "s3_secret_key": cfg.S3SecretKey,
	}
}

func openStore(t *testing.T, localDir string, block map[string]any) objectStore {
	t.Helper()
	cfg := config.Default()
	cfg.LocalStorageDir = localDir
	o, err := openObjects(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	bucket, effective, err := o.opener.Open(t.Context(), storage.ParseConfig(block))
	if err != nil || !effective {
		t.Fatalf("no store: effective %v, %v", effective, err)
	}
	return objectStore{block, bucket}
}

// archiveKey is where a store keeps the archive of that name.
func archiveKey(stem string) string { return "test/workspaces/" + stem + ".tgz" }

// plant puts an archive where the service looks for it.
func (s objectStore) plant(t *testing.T, stem string, archive io.Reader) {
	t.Helper()
	if _, err := s.bucket.Put(t.Context(), archiveKey(stem), archive, "application/gzip"); err != nil {
		t.Fatal(err)
	}
}

// fetch returns an archive as a file, nil where there is none.
func (s objectStore) fetch(t *testing.T, stem string) *os.File {
	t.Helper()
	body, _, err := s.bucket.Get(t.Context(), archiveKey(stem))
	if errors.Is(err, storage.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	f, err := os.Create(filepath.Join(t.TempDir(), "archive.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := io.Copy(f, body); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	return f
}

// keys returns the keys of all objects, in the order of the store.
func (s objectStore) keys(t *testing.T) []string {
	t.Helper()
	var keys []string
	err := s.bucket.List(context.Background(), "", func(o storage.Object) error {
		keys = append(keys, o.Key)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// open makes a session whose archive has that key. Nobody releases it.
func (s *testService) open(t *testing.T, stem string, ttl int, block map[string]any) testSession {
	t.Helper()
	id, err := sessionID(s.post("/sessions", map[string]any{"archive_key": stem, "idle_ttl_sec": ttl, "storage": block}))
	if err != nil {
		t.Fatal(err)
	}
	return testSession{s, id}
}

// close releases a session, with fields of the request's body.
func (s testSession) close(t *testing.T, body any) {
	t.Helper()
	if a := s.do(context.Background(), "DELETE", "/sessions/"+s.id, body); a.status != 200 || string(a.body) != `{"ok":true}` {
		t.Fatalf("delete: %v", a)
	}
}

// store is put that must succeed.
func (s testSession) store(t *testing.T, path, content string) {
	t.Helper()
	if a := s.put(path, []byte(content)); a.status != 200 {
		t.Fatalf("put %q: %v", path, a)
	}
}

// holds fails the test unless the files of a session, but for those that the
// service makes itself, are these: "path content" each.
func (s testSession) holds(t *testing.T, want ...string) {
	t.Helper()
	r := s.run(t, `
import os
for top, dirs, files in sorted(os.walk("/workspace")):
    for name in sorted(files):
        path = os.path.join(top, name)
        print(os.path.relpath(path, "/workspace"), open(path).read(100))
`, 0)
	if text := strings.Join(want, "\n") + "\n"; r.Exit != 0 || r.Stdout != strings.TrimPrefix(text, "\n") {
		t.Errorf("the session holds not %q but %v", want, r)
	}
}
