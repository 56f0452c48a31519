package upload_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/upload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// part is a small part.
const part = 100 << 10

func newParts(extra int) *upload.Parts { return upload.NewSmallParts(extra, part) }

// target is a store in memory that is as slow and as broken as a test wants.
type target struct {
	mu      sync.Mutex
	object  []byte
	stored  bool
	parts   map[int32][]byte
	open    bool
	calls   []string
	now     int // parts in flight
	most    int
	inParts int
	// before is called before each request takes effect; its error is the answer.
	before func(ctx context.Context, call string) error
}

func (s *target) call(ctx context.Context, call string) error {
	s.mu.Lock()
	s.calls = append(s.calls, call)
	before := s.before
	s.mu.Unlock()
	if before == nil {
		return nil
	}
	return before(ctx, call)
}

func (s *target) Put(ctx context.Context, body *bytes.Reader) error {
	if err := s.call(ctx, "put"); err != nil {
		return err
	}
	data, err := io.ReadAll(body)
	s.object, s.stored = data, true
	return err
}

func (s *target) Create(ctx context.Context) (string, error) {
	if err := s.call(ctx, "create"); err != nil {
		return "", err
	}
	s.parts, s.open = map[int32][]byte{}, true
	return "id", nil
}

func (s *target) Part(ctx context.Context, id string, number int32, body *bytes.Reader) (string, error) {
	s.mu.Lock()
	s.now++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	err := s.call(ctx, fmt.Sprint("part ", number))
	data, rerr := io.ReadAll(body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
	if err := errors.Join(err, rerr); err != nil {
		return "", err
	}
	if !s.open {
		return "", errors.New("part of an upload that is not open")
	}
	s.parts[number] = data
	return fmt.Sprint("tag", number), nil
}

func (s *target) Complete(ctx context.Context, id string, tags []string) error {
	if err := s.call(ctx, "complete"); err != nil {
		return err
	}
	s.object = nil
	for i, tag := range tags {
		if tag != fmt.Sprint("tag", i+1) {
			return fmt.Errorf("tag %d is %q", i+1, tag)
		}
		s.object = append(s.object, s.parts[int32(i+1)]...)
	}
	s.open, s.stored, s.inParts = false, true, len(tags)
	return nil
}

func (s *target) Abort(ctx context.Context, id string) error {
	if err := s.call(ctx, "abort"); err != nil {
		return err
	}
	if s.now > 0 {
		return errors.New("aborted while parts are on their way")
	}
	s.open = false
	return nil
}

func content(n int) []byte {
	data := make([]byte, n)
	if _, err := rand.NewChaCha8([32]byte{byte(n)}).Read(data); err != nil {
		panic(err)
	}
	return data
}

func TestSizes(t *testing.T) {
	const head = 64 << 10
	for _, c := range []struct{ size, parts int }{
		{0, 0}, {1, 0}, {head - 1, 0}, {head, 0}, {head + 1, 0}, {part - 1, 0},
		{part, 1}, {part + 1, 2}, {2*part - 1, 2}, {2 * part, 2}, {2*part + 1, 3}, {7*part + 3, 8},
	} {
		for name, wrap := range map[string]func(io.Reader) io.Reader{
			"whole":    func(r io.Reader) io.Reader { return r },
			"with EOF": iotest.DataErrReader,
			"halves":   iotest.HalfReader,
			"odd":      func(r io.Reader) io.Reader { return &oddReader{r} },
		} {
			want := content(c.size)
			s := &target{}
			n, err := newParts(4).Upload(t.Context(), s, wrap(bytes.NewReader(want)))
			if err != nil || n != int64(c.size) || !bytes.Equal(s.object, want) || s.inParts != c.parts || s.open {
				t.Errorf("%d bytes, %s: %d, %v; stored %d bytes in %d parts, open %v", c.size, name, n, err, len(s.object), s.inParts, s.open)
			}
		}
	}
}

// oddReader gives what fits no buffer.
type oddReader struct{ r io.Reader }

func (o *oddReader) Read(p []byte) (int, error) { return o.r.Read(p[:min(len(p), 70001)]) }

func TestStoreFails(t *testing.T) {
	broken := errors.New("broken")
	for call, want := range map[string][]string{
		"create":   {"create"},
		"part 1":   {"abort"},
		"part 2":   {"abort"},
		"part 9":   {"abort"},
		"complete": {"complete", "abort"},
	} {
		s := &target{before: func(_ context.Context, c string) error {
			if c == call {
				return broken
			}
			return nil
		}}
		_, err := newParts(4).Upload(t.Context(), s, bytes.NewReader(content(9*part)))
		if !errors.Is(err, broken) || s.stored || s.open {
			t.Errorf("%s fails: %v, stored %v, open %v", call, err, s.stored, s.open)
		}
		if got := s.calls[len(s.calls)-len(want):]; !slices.Equal(got, want) {
			t.Errorf("%s fails: ends with %q, want %q", call, got, want)
		}
	}
	s := &target{before: func(context.Context, string) error { return broken }}
	if _, err := newParts(4).Upload(t.Context(), s, strings.NewReader("x")); !errors.Is(err, broken) || s.stored {
		t.Errorf("put fails: %v", err)
	}
	// Both faults are told when the parts cannot be removed either.
	stuck := errors.New("stuck")
	s = &target{before: func(_ context.Context, c string) error {
		return map[string]error{"part 2": broken, "abort": stuck}[c]
	}}
	if _, err := newParts(4).Upload(t.Context(), s, bytes.NewReader(content(3*part))); !errors.Is(err, broken) || !errors.Is(err, stuck) {
		t.Errorf("part and abort fail: %v", err)
	}
}

func TestReaderFails(t *testing.T) {
	for _, broken := range []error{errors.New("broken"), io.ErrUnexpectedEOF, context.Canceled} {
		for _, at := range []int{0, 10, 64 << 10, part - 1, part, part + 1, 4 * part} {
			s := &target{}
			_, err := newParts(4).Upload(t.Context(), s, io.MultiReader(bytes.NewReader(content(at)), iotest.ErrReader(broken)))
			var body *storage.BodyError
			if !errors.As(err, &body) || body.Err != broken || s.stored || s.open {
				t.Errorf("reader fails with %v at %d: %v, stored %v, open %v", broken, at, err, s.stored, s.open)
			}
		}
	}
}

// A cancel lets what is in flight end, then takes everything back; it succeeds
// only when the object is there.
func TestCancel(t *testing.T) {
	gone := errors.New("client went away")
	for _, size := range []int{10, part - 1, 6 * part} {
		for _, at := range []string{"put", "create", "part 1", "part 3", "complete"} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				s := &target{}
				cancelled := false
				s.before = func(ctx context.Context, call string) error {
					if call == at {
						cancelled = true
						cancel(gone)
						time.Sleep(3 * time.Second) // within the grace
					}
					return ctx.Err()
				}
				_, err := newParts(4).Upload(ctx, s, bytes.NewReader(content(size)))
				if (err == nil) != s.stored || s.open {
					t.Errorf("%d bytes, cancelled at %s: %v, stored %v, open %v, %q", size, at, err, s.stored, s.open, s.calls)
				}
				if wantErr := cancelled && at != "put" && at != "complete"; wantErr != (err != nil) || err != nil && !errors.Is(err, gone) {
					t.Errorf("%d bytes, cancelled at %s: %v", size, at, err)
				}
			})
		}
	}
}

// A store that hangs holds a cancelled upload for a few seconds, not for good.
func TestCancelOfHangingStore(t *testing.T) {
	gone := errors.New("client went away")
	for _, size := range []int{10, 6 * part} {
		for _, at := range []string{"put", "create", "part 1", "part 3", "complete"} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				s := &target{}
				start := time.Now()
				s.before = func(ctx context.Context, call string) error {
					if call == at {
						cancel(gone)
						<-ctx.Done()
						return context.Cause(ctx)
					}
					return nil
				}
				_, err := newParts(4).Upload(ctx, s, bytes.NewReader(content(size)))
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("%d bytes, hanging at %s: took %v", size, at, took)
				}
				if slices.Contains(s.calls, at) && (!errors.Is(err, gone) || s.stored || s.open) {
					t.Errorf("%d bytes, hanging at %s: %v, stored %v, open %v", size, at, err, s.stored, s.open)
				}
			})
		}
	}
}

// The abort has a time of its own, whatever became of the caller's.
func TestAbortIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		s := &target{before: func(ctx context.Context, call string) error {
			if call == "abort" || call == "part 1" {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		}}
		_, err := newParts(4).Upload(ctx, s, bytes.NewReader(content(2*part)))
		if took := time.Since(start); took != 36*time.Second {
			t.Errorf("took %v, want 1 s, 5 s of grace, and 30 s for the abort", took)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
	})
}

func TestEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := &target{}
	if _, err := newParts(4).Upload(ctx, s, strings.NewReader("x")); !errors.Is(err, context.Canceled) || len(s.calls) > 0 {
		t.Errorf("error is %v after %q", err, s.calls)
	}
}

// One stream holds three parts at most, and one that stalls holds up no other.
func TestMemoryIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parts := newParts(2)
		slow := func(context.Context, string) error { time.Sleep(time.Second); return nil }
		stalled := &target{before: slow}
		resume := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			body := io.MultiReader(bytes.NewReader(content(5*part)), readerFunc(func([]byte) (int, error) {
				<-resume
				return 0, io.EOF
			}))
			if _, err := parts.Upload(t.Context(), stalled, body); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		start := time.Now()
		other := &target{before: slow}
		if _, err := parts.Upload(t.Context(), other, bytes.NewReader(content(4*part))); err != nil {
			t.Error(err)
		}
		// Without memory to share, one part after the other.
		if took := time.Since(start); took != 6*time.Second || other.most != 1 {
			t.Errorf("beside a stalled stream, four parts took %v, %d at a time", took, other.most)
		}
		close(resume)
		all.Wait()
		if stalled.most != 3 {
			t.Errorf("a stream alone had %d parts in flight, want 3", stalled.most)
		}
		// What was lent is back.
		again := &target{before: slow}
		start = time.Now()
		if _, err := parts.Upload(t.Context(), again, bytes.NewReader(content(6*part))); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != 4*time.Second || again.most != 3 {
			t.Errorf("six parts took %v, %d at a time", took, again.most)
		}
	})
}

// What failing streams were lent is back as well.
func TestMemoryComesBack(t *testing.T) {
	parts := newParts(2)
	for range 20 {
		s := &target{before: func(_ context.Context, call string) error {
			if call == "part 3" {
				return errors.New("broken")
			}
			return nil
		}}
		if _, err := parts.Upload(t.Context(), s, bytes.NewReader(content(5*part))); err == nil {
			t.Fatal("a failing upload succeeds")
		}
	}
	synctest.Test(t, func(t *testing.T) {
		parts := newParts(2)
		s := &target{before: func(context.Context, string) error { time.Sleep(time.Second); return nil }}
		if _, err := parts.Upload(t.Context(), s, bytes.NewReader(content(6*part))); err != nil || s.most != 3 {
			t.Errorf("%v, with %d parts at a time", err, s.most)
		}
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// An upload is a leftover when it is older than this process, and none of its own
// whatever its time says.
func TestIsLeftover(t *testing.T) {
	parts := newParts(2)
	before, after := time.Now().Add(-time.Minute), time.Now().Add(time.Minute)
	s := &target{before: func(_ context.Context, call string) error {
		// While it is created it has no id yet.
		if call != "create" && parts.IsLeftover("id", before) {
			return fmt.Errorf("%s: an upload in progress is a leftover", call)
		}
		return nil
	}}
	if _, err := parts.Upload(t.Context(), s, bytes.NewReader(content(3*part))); err != nil {
		t.Error(err)
	}
	if !parts.IsLeftover("id", before) || parts.IsLeftover("id", after) || parts.IsLeftover("id", time.Time{}) {
		t.Error("uploads are told apart by other than their time")
	}
	s = &target{before: func(_ context.Context, call string) error {
		if call == "part 2" || call == "abort" {
			return errors.New("broken")
		}
		return nil
	}}
	if _, err := parts.Upload(t.Context(), s, bytes.NewReader(content(3*part))); err == nil || !parts.IsLeftover("id", after) {
		t.Errorf("an upload that could not be removed is no leftover: %v", err)
	}
	if parts.Removed("id"); parts.IsLeftover("id", after) {
		t.Error("an upload that was removed still is a leftover")
	}
}
