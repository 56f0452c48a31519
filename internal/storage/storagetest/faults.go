package storagetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// FaultAttempts is how often the driver under test sends a request.
const FaultAttempts = 3

// Read timeouts of the driver under test: one that a busy machine keeps, and one
// that is waited for.
const (
	patient = 30 * time.Second
	hasty   = time.Second
)

// FaultSecret is a secret key for the driver under test. RunFaults looks for it
// in what fails.
const FaultSecret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"

// Front is what stands before a healthy server: it answers itself or passes on.
type Front func(next http.Handler) http.Handler

// Faulty is a bucket whose server has a front.
type Faulty struct {
	Bucket storage.Bucket
	// Uploads names the unfinished multipart uploads.
	Uploads func() []string
	// Page is a listing's answer with these keys and, unless it is empty, this
	// token for the next page.
	Page func(next string, keys ...string) string
}

// Start makes a bucket of a healthy server behind a front. Its driver waits that
// long for an answer, sends requests FaultAttempts times, and has FaultSecret.
type Start func(t *testing.T, readTimeout time.Duration, front Front) Faulty

// RunFaults runs a bucket of a store that is spoken to by HTTP against a server
// that fails in every way.
func RunFaults(t *testing.T, start Start) {
	// Those that look at the memory or the output of the process run alone, the
	// others mostly wait and do it together.
	t.Run("BadAnswers", func(t *testing.T) { testBadAnswers(t, start) })
	t.Run("ShowsNoSecret", func(t *testing.T) { testShowsNoSecret(t, start) })
	for name, run := range map[string]func(*testing.T, Start){
		"Recovers":           testRecovers,
		"GivesUp":            testGivesUp,
		"PartsFail":          testPartsFail,
		"Hangs":              testHangs,
		"Redirects":          testRedirects,
		"Listings":           testListings,
		"BrokenObject":       testBrokenObject,
		"CancelWhileHanging": testCancelWhileHanging,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, start)
		})
	}
}

// large is put in parts.
const large = 12 << 20

// operation is one of a bucket's methods, with what it needs.
type operation struct {
	name string
	do   func(ctx context.Context, b storage.Bucket) error
}

func operations() []operation {
	return []operation{
		{"Put", func(ctx context.Context, b storage.Bucket) error {
			_, err := b.Put(ctx, "f/put", strings.NewReader("text"), "text/plain")
			return err
		}},
		{"Put in parts", func(ctx context.Context, b storage.Bucket) error {
			_, err := b.Put(ctx, "f/large", Content(large, 1), "")
			return err
		}},
		{"Get", func(ctx context.Context, b storage.Bucket) error {
			body, _, err := b.Get(ctx, "f/there")
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, body)
			return errors.Join(err, body.Close())
		}},
		{"Delete", func(ctx context.Context, b storage.Bucket) error { return b.Delete(ctx, "f/there") }},
		{"List", func(ctx context.Context, b storage.Bucket) error {
			return b.List(ctx, "f/", func(storage.Object) error { return nil })
		}},
	}
}

// counter counts requests and knows which are new.
type counter struct {
	mu   sync.Mutex
	seen map[string]int
	all  int
}

// next returns how often a request of this kind has come, this time included.
func (c *counter) next(r *http.Request) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]int{}
	}
	q := r.URL.Query()
	kind := fmt.Sprint(r.Method, r.URL.Path, q["partNumber"], q.Has("uploads"), q.Has("uploadId"))
	c.seen[kind]++
	c.all++
	return c.seen[kind]
}

func (c *counter) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all
}

func sendError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>%s</Message></Error>`, code, message)
}

// reset breaks the connection, half-way through the request where it has a body.
func reset(w http.ResponseWriter, r *http.Request) {
	_, _ = io.CopyN(io.Discard, r.Body, max(r.ContentLength/2, 0))
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_ = conn.Close()
}

// plant stores what the operations want to find.
func plant(t *testing.T, b storage.Bucket) { put(t, b, "f/there", "there") }

// faults are those that pass when the request is sent again.
var faults = map[string]http.HandlerFunc{
	"500":   func(w http.ResponseWriter, _ *http.Request) { sendError(w, 500, "InternalError", "again") },
	"503":   func(w http.ResponseWriter, _ *http.Request) { sendError(w, 503, "SlowDown", "again") },
	"reset": reset,
	"empty": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) },
}

func testRecovers(t *testing.T, start Start) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broken := false
			var c counter
			f := start(t, patient, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if broken && c.next(r) < FaultAttempts {
						fault(w, r)
						return
					}
					next.ServeHTTP(w, r)
				})
			})
			plant(t, f.Bucket)
			broken = true
			for _, op := range operations() {
				if err := op.do(t.Context(), f.Bucket); err != nil {
					t.Errorf("%s: %v", op.name, err)
				}
			}
			broken = false
			if got := get(t, f.Bucket, "f/put"); got != "text" {
				t.Errorf("Put stored %q", got)
			}
			if all := keys(t, f.Bucket, "f/"); len(all) != 2 || all["f/large"].Size != large {
				t.Errorf("listed: %v", all)
			}
			if left := f.Uploads(); len(left) > 0 {
				t.Errorf("uploads are left: %q", left)
			}
		})
	}
}

func testGivesUp(t *testing.T, start Start) {
	for _, c := range []struct {
		name     string
		fault    http.HandlerFunc
		requests int
		reason   storage.Reason
	}{
		{"500", faults["500"], FaultAttempts, storage.ReasonUnavailable},
		{"reset", reset, FaultAttempts, ""},
		{"403", func(w http.ResponseWriter, _ *http.Request) { sendError(w, 403, "AccessDenied", "no") }, 1, storage.ReasonDenied},
		{"no bucket", func(w http.ResponseWriter, _ *http.Request) { sendError(w, 404, "NoSuchBucket", "no") }, 1, storage.ReasonNoBucket},
		{"400", func(w http.ResponseWriter, _ *http.Request) { sendError(w, 400, "InvalidRequest", "no") }, 1, storage.ReasonRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var n counter
			f := start(t, patient, func(http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					n.next(r)
					c.fault(w, r)
				})
			})
			for _, op := range operations() {
				before := n.total()
				err := op.do(t.Context(), f.Bucket)
				var e *storage.Error
				if !errors.As(err, &e) || c.reason != "" && e.Reason != c.reason || errors.Is(err, storage.ErrNotExist) {
					t.Errorf("%s: %v, want that %s", op.name, err, c.reason)
				}
				if got := n.total() - before; got != c.requests {
					t.Errorf("%s was asked for %d times, want %d", op.name, got, c.requests)
				}
			}
		})
	}
}

// testPartsFail breaks an upload in parts at every step.
func testPartsFail(t *testing.T, start Start) {
	is := func(method, param string) func(*http.Request) bool {
		return func(r *http.Request) bool { return r.Method == method && r.URL.Query().Has(param) }
	}
	part := func(number string) func(*http.Request) bool {
		return func(r *http.Request) bool { return r.Method == "PUT" && r.URL.Query().Get("partNumber") == number }
	}
	refuse := func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		sendError(w, 400, "InvalidRequest", "no")
	}
	tag := func(tag string) func(http.ResponseWriter, *http.Request, http.Handler) {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			h := &header{ResponseWriter: w, set: func(h http.Header) { h.Set("ETag", tag) }}
			next.ServeHTTP(h, r)
			if !h.done {
				h.WriteHeader(200)
			}
		}
	}
	for name, c := range map[string]struct {
		when  func(*http.Request) bool
		fault func(http.ResponseWriter, *http.Request, http.Handler)
	}{
		"create is refused":   {is("POST", "uploads"), refuse},
		"first part":          {part("1"), refuse},
		"last part":           {part("3"), refuse},
		"part without a tag":  {part("2"), tag("")},
		"part of a wrong tag": {part("2"), tag(`"00000000000000000000000000000000"`)},
		"complete is refused": {is("POST", "uploadId"), refuse},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broken := true
			f := start(t, patient, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if broken && c.when(r) {
						c.fault(w, r, next)
						return
					}
					next.ServeHTTP(w, r)
				})
			})
			put(t, f.Bucket, "k", "before")
			if _, err := f.Bucket.Put(t.Context(), "k", Content(large, 1), ""); err == nil {
				t.Error("Put succeeds")
			}
			if left := f.Uploads(); len(left) > 0 {
				t.Errorf("uploads are left: %q", left)
			}
			if got := get(t, f.Bucket, "k"); got != "before" {
				t.Errorf("the object holds %d other bytes", len(got))
			}
			broken = false
			if _, err := f.Bucket.Put(t.Context(), "k", Content(large, 1), ""); err != nil {
				t.Errorf("Put afterwards: %v", err)
			}
		})
	}
}

// header is a response whose headers are changed before they go out.
type header struct {
	http.ResponseWriter
	set  func(http.Header)
	done bool
}

func (h *header) WriteHeader(status int) {
	if !h.done {
		h.done = true
		h.set(h.Header())
	}
	h.ResponseWriter.WriteHeader(status)
}

func (h *header) Write(p []byte) (int, error) {
	if !h.done {
		h.WriteHeader(200)
	}
	return h.ResponseWriter.Write(p)
}

func testHangs(t *testing.T, start Start) {
	release := make(chan struct{})
	defer close(release) // before the server ends, which waits for its handlers
	var n counter
	f := start(t, hasty, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			n.next(r)
			<-release
		})
	})
	for _, op := range operations() {
		before, began := n.total(), time.Now()
		err := op.do(t.Context(), f.Bucket)
		var e *storage.Error
		if !errors.As(err, &e) || e.Reason != storage.ReasonTimeout {
			t.Errorf("%s: %v, want that %s", op.name, err, storage.ReasonTimeout)
		}
		if got := n.total() - before; got != FaultAttempts {
			t.Errorf("%s was asked for %d times", op.name, got)
		}
		// Three attempts and the pauses between them.
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("%s took %v to give up", op.name, took)
		}
	}
}

// testRedirects answers with the address of another host, which must not get to
// see a signed request.
func testRedirects(t *testing.T, start Start) {
	var stolen counter
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { stolen.next(r) }))
	t.Cleanup(thief.Close)
	for _, status := range []int{301, 302, 307, 308} {
		f := start(t, patient, func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, thief.URL+r.URL.Path, status)
			})
		})
		for _, op := range operations() {
			if err := op.do(t.Context(), f.Bucket); err == nil {
				t.Errorf("%s is content with %d", op.name, status)
			}
		}
	}
	if n := stolen.total(); n > 0 {
		t.Errorf("the other host got %d requests", n)
	}
}

// testCancelWhileHanging cancels while the store is silent.
func testCancelWhileHanging(t *testing.T, start Start) {
	release := make(chan struct{})
	defer close(release) // before the server ends, which waits for its handlers
	f := start(t, patient, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release })
	})
	for _, op := range operations() {
		gone := errors.New("client went away")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, gone)
		began := time.Now()
		err := op.do(ctx, f.Bucket)
		cancel()
		if err == nil {
			t.Errorf("%s succeeds", op.name)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s took %v to notice its cancel", op.name, took)
		}
	}
}
