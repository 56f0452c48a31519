// Package storagetest is the suite that every bucket passes. A driver's test
// calls Run with a function that makes an empty bucket.
package storagetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// Store is a bucket under test, empty at first, and what the suite may ask of
// the server behind it.
type Store struct {
	Bucket storage.Bucket
	// Presigns is false where the bucket has no URLs.
	Presigns bool
	// Uploads names the multipart uploads that are not finished, and other
	// half-written things. A store that has none of them leaves it nil.
	Uploads func(t *testing.T) []string
	// Odd are keys that the server behind the bucket cannot hold, although the
	// driver could. The test of a driver says why.
	Odd []string
}

// Run runs the suite. NewStore is called once for each part of it.
func Run(t *testing.T, newStore func(t *testing.T) Store) {
	for _, part := range []struct {
		name string
		run  func(*testing.T, Store)
	}{
		{"Sizes", testSizes},
		{"UnknownLength", testUnknownLength},
		{"Missing", testMissing},
		{"Overwrite", testOverwrite},
		{"List", testList},
		{"ListStops", testListStops},
		{"OddKeys", testOddKeys},
		{"FailingReader", testFailingReader},
		{"Cancel", testCancel},
		{"ConcurrentPuts", testConcurrentPuts},
		{"BoundedMemory", testBoundedMemory},
		{"Presign", testPresign},
	} {
		t.Run(part.name, func(t *testing.T) {
			s := newStore(t)
			part.run(t, s)
			if !t.Failed() {
				s.wantNothingHalfWritten(t)
			}
		})
	}
}

func (s Store) wantNothingHalfWritten(t *testing.T) {
	t.Helper()
	if s.Uploads == nil {
		return
	}
	if left := s.Uploads(t); len(left) > 0 {
		t.Errorf("half-written: %q", left)
	}
}

// Content returns n bytes that do not compress and differ from those of any
// other seed, without holding them.
func Content(n int64, seed uint64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24)}), n)
}

func put(t *testing.T, b storage.Bucket, key, text string) {
	t.Helper()
	n, err := b.Put(t.Context(), key, strings.NewReader(text), "text/plain")
	if err != nil {
		t.Fatalf("Put(%q): %v", key, err)
	}
	if n != int64(len(text)) {
		t.Fatalf("Put(%q) = %d, want %d", key, n, len(text))
	}
}

func get(t *testing.T, b storage.Bucket, key string) string {
	t.Helper()
	body, obj, err := b.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("Get(%q): %v", key, err)
	}
	data, err := io.ReadAll(body)
	if err := errors.Join(err, body.Close()); err != nil {
		t.Fatalf("reading %q: %v", key, err)
	}
	if obj.Key != key || obj.Size != int64(len(data)) {
		t.Errorf("Get(%q) = %+v, with %d bytes", key, obj, len(data))
	}
	if age := time.Since(obj.ModTime); age < -time.Minute || age > time.Hour {
		t.Errorf("Get(%q) says it was modified at %v", key, obj.ModTime)
	}
	return string(data)
}

func wantMissing(t *testing.T, b storage.Bucket, key string) {
	t.Helper()
	body, _, err := b.Get(t.Context(), key)
	if err == nil {
		_ = body.Close()
		t.Errorf("Get(%q) finds something", key)
	} else if !errors.Is(err, storage.ErrNotExist) {
		t.Errorf("Get(%q): %v, want ErrNotExist", key, err)
	}
}

// keys lists what is under prefix.
func keys(t *testing.T, b storage.Bucket, prefix string) map[string]storage.Object {
	t.Helper()
	found := map[string]storage.Object{}
	err := b.List(t.Context(), prefix, func(o storage.Object) error {
		if _, twice := found[o.Key]; twice {
			t.Errorf("List(%q) gives %q twice", prefix, o.Key)
		}
		found[o.Key] = o
		return nil
	})
	if err != nil {
		t.Fatalf("List(%q): %v", prefix, err)
	}
	return found
}

func testSizes(t *testing.T, s Store) {
	const part = 5 << 20
	for i, size := range []int64{0, 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, part - 1, part, part + 1, 2 * part, 3*part + 17} {
		key := fmt.Sprintf("sizes/%d", size)
		want := sha256.New()
		n, err := s.Bucket.Put(t.Context(), key, io.TeeReader(Content(size, uint64(i)), want), "application/octet-stream")
		if err != nil || n != size {
			t.Fatalf("Put of %d bytes = %d, %v", size, n, err)
		}
		body, obj, err := s.Bucket.Get(t.Context(), key)
		if err != nil {
			t.Fatalf("Get of %d bytes: %v", size, err)
		}
		got := sha256.New()
		n, err = io.Copy(got, body)
		if err := errors.Join(err, body.Close()); err != nil || n != size || obj.Size != size {
			t.Errorf("Get of %d bytes gives %d and says %d, %v", size, n, obj.Size, err)
		}
		if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
			t.Errorf("Get of %d bytes gives others", size)
		}
	}
}

func testUnknownLength(t *testing.T, s Store) {
	r, w := io.Pipe()
	go func() {
		for range 1000 {
			if _, err := io.WriteString(w, "0123456789"); err != nil {
				return
			}
		}
		w.Close()
	}()
	if n, err := s.Bucket.Put(t.Context(), "pipe", r, ""); err != nil || n != 10000 {
		t.Fatalf("Put of a pipe = %d, %v", n, err)
	}
	if got := get(t, s.Bucket, "pipe"); got != strings.Repeat("0123456789", 1000) {
		t.Errorf("got %d bytes back, not those that were put", len(got))
	}
	// A reader that gives its last bytes together with its end, and one byte at a time.
	for i, r := range []io.Reader{iotest.DataErrReader(strings.NewReader("abc")), iotest.OneByteReader(strings.NewReader("abc"))} {
		key := fmt.Sprintf("reader-%d", i)
		if n, err := s.Bucket.Put(t.Context(), key, r, ""); err != nil || n != 3 {
			t.Fatalf("Put = %d, %v", n, err)
		}
		if got := get(t, s.Bucket, key); got != "abc" {
			t.Errorf("got %q back", got)
		}
	}
}

func testMissing(t *testing.T, s Store) {
	put(t, s.Bucket, "a/b", "x")
	// A file system has a directory "a" now, and nothing below the file "a/b".
	for _, key := range []string{"nothing", "a", "a/", "a/b/c", "a/nothing", strings.Repeat("n", 300)} {
		if slices.Contains(s.Odd, key) {
			continue
		}
		wantMissing(t, s.Bucket, key)
		for range 2 {
			if err := s.Bucket.Delete(t.Context(), key); err != nil {
				t.Errorf("Delete of %q, which does not exist: %v", key, err)
			}
		}
	}
	if got := get(t, s.Bucket, "a/b"); got != "x" {
		t.Errorf("the object that exists holds %q", got)
	}
	if err := s.Bucket.Delete(t.Context(), "a/b"); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	wantMissing(t, s.Bucket, "a/b")
	if left := keys(t, s.Bucket, ""); len(left) > 0 {
		t.Errorf("left after Delete: %v", left)
	}
}

func testOverwrite(t *testing.T, s Store) {
	for _, text := range []string{"first, and long", "second", "", strings.Repeat("large", 2<<20), "last"} {
		put(t, s.Bucket, "k", text)
		if got := get(t, s.Bucket, "k"); got != text {
			t.Fatalf("after a Put of %d bytes there are %d", len(text), len(got))
		}
	}
	if all := keys(t, s.Bucket, ""); len(all) != 1 || all["k"].Size != 4 {
		t.Errorf("listed: %v", all)
	}
}

func testListStops(t *testing.T, s Store) {
	for i := range 3 {
		put(t, s.Bucket, fmt.Sprintf("stop/%d", i), "x")
	}
	enough := errors.New("enough")
	calls := 0
	err := s.Bucket.List(t.Context(), "stop/", func(storage.Object) error { calls++; return enough })
	if err != enough || calls != 1 {
		t.Errorf("List whose function fails = %v after %d calls, want its error after one", err, calls)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = s.Bucket.List(ctx, "stop/", func(storage.Object) error { return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("List of a cancelled context = %v", err)
	}
}
