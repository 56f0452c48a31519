package storage_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// memory is a bucket in memory whose failures a test chooses.
type memory struct {
	mu      sync.Mutex
	objects map[string]storage.Object
	content map[string]string
	types   map[string]string
	calls   []string
	// fail gives an error for a call such as "put key"; nil is none.
	fail func(call string) error
	// listed is called before each object of a listing.
	listed func(key string)
	noURL  bool
}

func newMemory() *memory {
	return &memory{objects: map[string]storage.Object{}, content: map[string]string{}, types: map[string]string{}}
}

func (m *memory) call(op, key string) error {
	m.mu.Lock()
	m.calls = append(m.calls, op+" "+key)
	fail := m.fail
	m.mu.Unlock()
	if fail == nil {
		return nil
	}
	return fail(op + " " + key)
}

func (m *memory) called() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.calls)
}

func (m *memory) plant(key, text string, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[key], m.content[key] = storage.Object{Key: key, Size: int64(len(text)), ModTime: at}, text
}

func (m *memory) keys() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.objects))
}

func (m *memory) Put(_ context.Context, key string, body io.Reader, contentType string) (int64, error) {
	if err := m.call("put", key); err != nil {
		return 0, err
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return 0, &storage.BodyError{Err: err}
	}
	m.plant(key, string(data), time.Now())
	m.mu.Lock()
	defer m.mu.Unlock()
	m.types[key] = contentType
	return int64(len(data)), nil
}

func (m *memory) Get(_ context.Context, key string) (io.ReadCloser, storage.Object, error) {
	if err := m.call("get", key); err != nil {
		return nil, storage.Object{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.objects[key]
	if !ok {
		return nil, storage.Object{}, storage.NotExist("get object", key)
	}
	return io.NopCloser(strings.NewReader(m.content[key])), o, nil
}

func (m *memory) Delete(_ context.Context, key string) error {
	if err := m.call("delete", key); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, key)
	return nil
}

func (m *memory) List(_ context.Context, prefix string, fn func(storage.Object) error) error {
	if err := m.call("list", prefix); err != nil {
		return err
	}
	for _, key := range m.keys() {
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		m.mu.Lock()
		o := m.objects[key]
		m.mu.Unlock()
		if err := fn(o); err != nil {
			return err
		}
		if m.listed != nil {
			m.listed(key)
		}
	}
	return nil
}

func (m *memory) RemoveLeftovers(context.Context, string) error { return nil }

func (m *memory) PresignGet(_ context.Context, key string, ttl time.Duration) (string, error) {
	if m.noURL {
		return "", storage.ErrNoPresign
	}
	if err := m.call("presign", key); err != nil {
		return "", err
	}
	return fmt.Sprintf("https://store.test/%s?ttl=%v&at=%d", key, ttl, time.Now().Unix()), nil
}

// driver opens a new bucket in memory for every block with a bucket's name.
func driver(made *int) storage.Driver {
	return func(_ context.Context, cfg storage.Config) (storage.Bucket, bool, error) {
		switch cfg.S3Bucket {
		case "":
			return nil, false, nil
		case "broken":
			return nil, false, storage.BadConfig("broken")
		}
		*made++
		return newMemory(), true, nil
	}
}

func TestOpen(t *testing.T) {
	made := 0
	o := storage.NewOpener(map[string]storage.Driver{"s3": driver(&made)})
	for _, cfg := range []storage.Config{{}, {Provider: "S3", S3Bucket: "b"}, {Provider: "gcs", S3Bucket: "b"}, {Provider: "local"}, {Provider: "s3"}} {
		if b, ok, err := o.Open(t.Context(), cfg); b != nil || ok || err != nil {
			t.Errorf("Open(%v) = %v, %v, %v, want not effective", cfg, b, ok, err)
		}
	}
	for range 2 {
		if b, ok, err := o.Open(t.Context(), storage.Config{Provider: "s3", S3Bucket: "broken"}); b != nil || ok || err == nil {
			t.Errorf("Open = %v, %v, %v, want an error", b, ok, err)
		}
	}
	if made != 0 {
		t.Errorf("made %d buckets", made)
	}
}

// One bucket for one configuration, and never one for two.
func TestOpenCaches(t *testing.T) {
	made := 0
	o := storage.NewOpener(map[string]storage.Driver{"s3": driver(&made), "other": driver(&made)})
	open := func(cfg storage.Config) storage.Bucket {
		t.Helper()
		b, ok, err := o.Open(t.Context(), cfg)
		if err != nil || !ok {
			t.Fatalf("Open(%v) = %v, %v", cfg, ok, err)
		}
		return b
	}
	base := storage.Config{Provider: "s3", Prefix: "p", S3Bucket: "b", S3Region: "r", S3Endpoint: "e", S3AccessKey: "a", S3SecretKey: "k"}
	first := open(base)
	seen := []storage.Bucket{first}
	for name, change := range map[string]func(*storage.Config){
		"provider": func(c *storage.Config) { c.Provider = "other" },
		"bucket":   func(c *storage.Config) { c.S3Bucket = "b2" },
		"region":   func(c *storage.Config) { c.S3Region = "" },
		"endpoint": func(c *storage.Config) { c.S3Endpoint = "e2" },
		"key":      func(c *storage.Config) { c.S3AccessKey = "a2" },
		"secret":   func(c *storage.Config) { c.S3SecretKey = "k2" },
		"shifted":  func(c *storage.Config) { c.S3AccessKey, c.S3SecretKey = "ak", "" },
		"oss":      func(c *storage.Config) { c.OSSAccessKeySecret = "x" },
	} {
		cfg := base
		change(&cfg)
		b := open(cfg)
		if slices.Contains(seen, b) {
			t.Errorf("another %s gives the bucket of another block", name)
		}
		seen = append(seen, b)
		if open(cfg) != b {
			t.Errorf("the same block with another %s gives two buckets", name)
		}
	}
	other := base
	other.Prefix = "elsewhere/"
	if open(other) != first {
		t.Error("another prefix in the same bucket gives another client")
	}
	// What is used stays, what is not goes.
	for i := range 200 {
		cfg := base
		cfg.S3Bucket = fmt.Sprint("many", i)
		open(cfg)
		if open(base) != first {
			t.Fatalf("a bucket in use is gone after %d others", i)
		}
	}
	before := made
	cfg := base
	cfg.S3Bucket = "many0"
	open(cfg)
	if made != before+1 {
		t.Error("a bucket that was not used for long is still kept")
	}
}

func TestOpenConcurrently(t *testing.T) {
	made := 0
	o := storage.NewOpener(map[string]storage.Driver{"s3": driver(&made)})
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for i := range 100 {
				cfg := storage.Config{Provider: "s3", S3Bucket: fmt.Sprint("b", i%10)}
				if _, ok, err := o.Open(t.Context(), cfg); !ok || err != nil {
					t.Errorf("Open = %v, %v", ok, err)
				}
			}
		})
	}
	all.Wait()
	if made != 10 {
		t.Errorf("made %d buckets for 10 blocks", made)
	}
}

func TestGetLimit(t *testing.T) {
	m := newMemory()
	m.plant("k", "0123456789", time.Now())
	for limit, want := range map[int64]string{10: "0123456789", 11: "0123456789", 1 << 40: "0123456789"} {
		body, obj, err := storage.GetLimit(t.Context(), m, "k", limit)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(body)
		if err := errors.Join(err, body.Close()); err != nil || string(data) != want || obj.Size != 10 {
			t.Errorf("with limit %d: %q, %v", limit, data, err)
		}
	}
	if _, _, err := storage.GetLimit(t.Context(), m, "k", 9); !errors.Is(err, storage.ErrTooLarge) {
		t.Errorf("10 bytes with limit 9: %v", err)
	}
	if _, _, err := storage.GetLimit(t.Context(), m, "none", 9); !errors.Is(err, storage.ErrNotExist) {
		t.Errorf("a missing object: %v", err)
	}
	// A store that does not tell the size, or lies about it.
	m.objects["k"] = storage.Object{Key: "k", Size: 3}
	body, _, err := storage.GetLimit(t.Context(), m, "k", 9)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(body)
	if string(data) != "012345678" || !errors.Is(err, storage.ErrTooLarge) {
		t.Errorf("10 bytes that say they are 3, with limit 9: %q, %v", data, err)
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
}
