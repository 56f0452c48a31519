package storagetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// breakAt are how many bytes a reader gives before it breaks: none, few, within
// the first part, at its end, and far into an upload in parts.
var breakAt = []int64{0, 10, 3 << 20, 5 << 20, 17 << 20}

func testFailingReader(t *testing.T, s Store) {
	for i, at := range breakAt {
		key := fmt.Sprintf("broken/%d", i)
		put(t, s.Bucket, key, "before")
		for _, broken := range []error{errors.New("broken"), io.ErrUnexpectedEOF} {
			_, err := s.Bucket.Put(t.Context(), key, io.MultiReader(Content(at, 1), &failing{err: broken}), "")
			var body *storage.BodyError
			if !errors.As(err, &body) || !errors.Is(err, broken) {
				t.Errorf("Put from a reader that breaks after %d bytes: %v, want its error in a BodyError", at, err)
			}
			if got := get(t, s.Bucket, key); got != "before" {
				t.Errorf("after a reader broke at %d bytes the object holds %d other bytes", at, len(got))
			}
			fresh := key + "-fresh"
			if _, err := s.Bucket.Put(t.Context(), fresh, io.MultiReader(Content(at, 1), &failing{err: broken}), ""); err == nil {
				t.Errorf("Put from a reader that breaks after %d bytes succeeds", at)
			}
			wantMissing(t, s.Bucket, fresh)
		}
	}
	if all := keys(t, s.Bucket, ""); len(all) != len(breakAt) {
		t.Errorf("listed after failures: %v", all)
	}
}

// failing is a reader that fails, once: who asks again is told of an end.
type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) {
	err := f.err
	f.err = io.EOF
	return 0, err
}

func testCancel(t *testing.T, s Store) {
	reason := errors.New("client went away")
	for i, at := range breakAt {
		key := fmt.Sprintf("cancelled/%d", i)
		put(t, s.Bucket, key, "before")
		ctx, cancel := context.WithCancelCause(t.Context())
		body := io.MultiReader(Content(at, 1), readerFunc(func([]byte) (int, error) {
			cancel(reason)
			// A body that does not end, since nobody told it.
			return 0, nil
		}))
		start := time.Now()
		_, err := s.Bucket.Put(ctx, key, endAfterEmpty(body), "")
		if !errors.Is(err, reason) {
			t.Errorf("Put that is cancelled after %d bytes: %v, want the reason", at, err)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("Put took %v to notice its cancel", took)
		}
		if got := get(t, s.Bucket, key); got != "before" {
			t.Errorf("after a cancel at %d bytes the object holds %d other bytes", at, len(got))
		}
		s.wantNothingHalfWritten(t)
		cancel(nil)
	}
	// A context that ended before.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Bucket.Put(ctx, "never", strings.NewReader("x"), ""); !errors.Is(err, context.Canceled) {
		t.Errorf("Put with a cancelled context: %v", err)
	}
	wantMissing(t, s.Bucket, "never")
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// endAfterEmpty ends a stream that gives nothing for the fiftieth time, so that a
// bucket that does not look at its context stores what came before.
func endAfterEmpty(r io.Reader) io.Reader {
	empty := 0
	return readerFunc(func(p []byte) (int, error) {
		n, err := r.Read(p)
		if n == 0 && err == nil {
			if empty++; empty > 50 {
				return 0, io.EOF
			}
		}
		return n, err
	})
}

func testConcurrentPuts(t *testing.T, s Store) {
	const writers = 6
	sums := map[string]bool{}
	var names []string
	for i := range writers {
		h := sha256.New()
		if _, err := io.Copy(h, Content(6<<20, uint64(i))); err != nil {
			t.Fatal(err)
		}
		sums[string(h.Sum(nil))] = true
		names = append(names, fmt.Sprint(i))
	}
	inParallel(t, writers, names, func(name string) error {
		var i uint64
		if _, err := fmt.Sscan(name, &i); err != nil {
			return err
		}
		_, err := s.Bucket.Put(t.Context(), "contended", Content(6<<20, i), "")
		return err
	})
	body, _, err := s.Bucket.Get(t.Context(), "contended")
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	_, err = io.Copy(h, body)
	if err := errors.Join(err, body.Close()); err != nil {
		t.Fatal(err)
	}
	if !sums[string(h.Sum(nil))] {
		t.Error("what concurrent puts left is none of what they put")
	}
}

// testBoundedMemory stores an object that is larger than what may be held of it.
func testBoundedMemory(t *testing.T, s Store) {
	const size, bound = 64 << 20, 40 << 20
	peak := PeakHeap(t, func() {
		n, err := s.Bucket.Put(t.Context(), "large", Content(size, 1), "")
		if err != nil || n != size {
			t.Fatalf("Put = %d, %v", n, err)
		}
		body, obj, err := s.Bucket.Get(t.Context(), "large")
		if err != nil {
			t.Fatal(err)
		}
		n, err = io.Copy(io.Discard, body)
		if err := errors.Join(err, body.Close()); err != nil || n != size || obj.Size != size {
			t.Errorf("Get gives %d of %d bytes, %v", n, obj.Size, err)
		}
	})
	t.Logf("storing and fetching %d MiB took %d MiB of memory", size>>20, peak>>20)
	if peak > bound {
		t.Errorf("storing and fetching %d MiB took %d MiB of memory", size>>20, peak>>20)
	}
}

// PeakHeap runs fn and returns by how many bytes the heap grew at its largest.
func PeakHeap(t testing.TB, fn func()) int64 {
	t.Helper()
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	var peak atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			peak.Store(max(peak.Load(), int64(now.HeapInuse)-int64(before.HeapInuse)))
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	fn()
	return peak.Load()
}
