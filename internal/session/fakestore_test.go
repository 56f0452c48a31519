package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// bucket is a storage.Bucket in memory.
type bucket struct {
	mu      sync.Mutex
	objects map[string]object
	fail    map[string]error // by name of the call
	hang    bool             // Put waits for its context
	ahead   time.Duration    // how far its clock runs ahead
	coarse  bool             // its clock knows whole seconds
	noClock bool             // it tells no times
	delay   time.Duration    // of Put
	puts    int
	poison  string          // a key that cannot be stored
	unread  string          // the stem of what cannot be read
	halves  map[string]bool // keys that somebody who died was writing
	step    func(what string) error
}

type object struct {
	data string
	at   time.Time
}

func newBucket() *bucket {
	return &bucket{objects: map[string]object{}, fail: map[string]error{}, halves: map[string]bool{}}
}

func (b *bucket) check(call string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.step != nil {
		if err := b.step("bucket " + call); err != nil {
			return err
		}
	}
	return b.fail[call]
}

func (b *bucket) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

func (b *bucket) setFail(call string, err error) { b.set(func() { b.fail[call] = err }) }

// setDown makes every call fail, or none.
func (b *bucket) setDown(down bool) {
	b.set(func() {
		clear(b.fail)
		if down {
			for _, call := range []string{"put", "get", "delete", "list", "leftovers"} {
				b.fail[call] = errors.New("connection refused")
			}
		}
	})
}

func (b *bucket) keys() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.objects))
}

func (b *bucket) data(key string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.objects[key].data
}

func (b *bucket) Put(ctx context.Context, key string, body io.Reader, contentType string) (int64, error) {
	if err := b.check("put"); err != nil {
		return 0, err
	}
	if contentType != "application/gzip" {
		return 0, fmt.Errorf("content type %q", contentType)
	}
	b.mu.Lock()
	hang, delay, poison := b.hang, b.delay, b.poison
	b.mu.Unlock()
	if key == poison {
		return 0, errors.New("this key is not for us")
	}
	if hang {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return 0, &storage.BodyError{Err: err}
	}
	if err := pause(ctx, delay); err != nil {
		return 0, err
	}
	if err := b.check("put end"); err != nil {
		if errors.Is(err, errDead) {
			b.set(func() { b.halves[key] = true })
		}
		return 0, err
	}
	b.store(key, string(data))
	return int64(len(data)), b.check("stored")
}

func (b *bucket) store(key, data string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now().Add(b.ahead)
	if b.coarse {
		now = now.Truncate(time.Second)
	}
	if b.noClock {
		now = time.Time{}
	}
	b.objects[key] = object{data, now}
	b.puts++
}

func (b *bucket) Get(_ context.Context, key string) (io.ReadCloser, storage.Object, error) {
	if err := b.check("get"); err != nil {
		return nil, storage.Object{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unread != "" && strings.Contains(key, "/"+b.unread+".") {
		return nil, storage.Object{}, errors.New("this key is not for us")
	}
	o, ok := b.objects[key]
	if !ok {
		return nil, storage.Object{}, storage.NotExist("get", key)
	}
	var body io.Reader = bytes.NewReader([]byte(o.data))
	if err := b.fail["read"]; err != nil {
		body = io.MultiReader(io.LimitReader(body, 3), errReader{err})
	}
	return io.NopCloser(body), storage.Object{Key: key, Size: int64(len(o.data)), ModTime: o.at}, nil
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func (b *bucket) Delete(_ context.Context, key string) error {
	if err := b.check("delete"); err != nil {
		return err
	}
	b.set(func() { delete(b.objects, key) })
	return nil
}

func (b *bucket) List(_ context.Context, prefix string, fn func(storage.Object) error) error {
	if err := b.check("list"); err != nil {
		return err
	}
	for _, key := range b.keys() {
		if strings.HasPrefix(key, prefix) {
			if err := fn(storage.Object{Key: key}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bucket) RemoveLeftovers(_ context.Context, key string) error {
	if err := b.check("leftovers"); err != nil {
		return err
	}
	b.set(func() { delete(b.halves, key) })
	return nil
}

func (b *bucket) PresignGet(context.Context, string, time.Duration) (string, error) {
	return "", storage.ErrNoPresign
}

// buckets finds one bucket for the providers "local" and "s3", and nothing for
// others; "broken" is a block that can never work.
type buckets struct{ b *bucket }

func (b buckets) Open(_ context.Context, cfg storage.Config) (storage.Bucket, bool, error) {
	switch cfg.Provider {
	case "local", "s3":
		b.b.mu.Lock()
		defer b.b.mu.Unlock()
		if b.b.fail["open"] != nil {
			return nil, false, nil
		}
		return b.b, true, nil
	case "broken":
		return nil, false, storage.BadConfig("no good")
	}
	return nil, false, nil
}

// memStore is a Store in memory.
type memStore struct {
	mu       sync.Mutex
	records  map[string]Record
	complete bool
	fail     error
	saves    atomic.Int32
	step     func(what string) error
}

func (s *memStore) check(call string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.step != nil {
		if err := s.step("store " + call); err != nil {
			return err
		}
	}
	return s.fail
}

func (s *memStore) Load(context.Context) ([]Record, bool, error) {
	if err := s.check("load"); err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.records)), s.complete, nil
}

func (s *memStore) Save(_ context.Context, r Record) error {
	if err := s.check("save " + string(r.Phase)); err != nil {
		return err
	}
	if r.Storage != nil {
		cfg := *r.Storage
		r.Storage = &cfg
	}
	s.mu.Lock()
	s.records[r.ID] = r
	s.saves.Add(1)
	s.mu.Unlock()
	return s.check("saved")
}

func (s *memStore) Delete(_ context.Context, id string) error {
	if err := s.check("delete"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, id)
	return nil
}

func (s *memStore) SetComplete(context.Context) error {
	if err := s.check("complete"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete = true
	return nil
}

func (s *memStore) get(id string) (Record, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[id]
	return r, ok
}
