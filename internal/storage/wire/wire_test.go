package wire_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hjxwz123/aivory-sandbox/internal/storage/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func newClient(t *testing.T, read time.Duration) *http.Client {
	t.Helper()
	c := wire.NewClient(time.Second, read)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// do sends a request and reads the answer to its end.
func do(t *testing.T, c *http.Client, ctx context.Context, method, url string, body io.Reader) (*http.Response, []byte, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, nil, err
	}
	data, err := io.ReadAll(resp.Body)
	return resp, data, errors.Join(err, resp.Body.Close())
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	var visits atomic.Int32
	other := serve(t, func(http.ResponseWriter, *http.Request) { visits.Add(1) })
	for _, status := range []int{301, 302, 303, 307, 308} {
		url := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other, status) })
		for _, method := range []string{"GET", "PUT", "POST", "DELETE"} {
			resp, _, err := do(t, newClient(t, time.Second), t.Context(), method, url, strings.NewReader("x"))
			if err != nil || resp.StatusCode != status {
				t.Errorf("%s with %d: %v, %v", method, status, resp, err)
			}
		}
	}
	if n := visits.Load(); n > 0 {
		t.Errorf("%d requests went to the other host", n)
	}
}

func TestAnswerIsBounded(t *testing.T) {
	endless := serve(t, func(w http.ResponseWriter, r *http.Request) {
		chunk := bytes.Repeat([]byte("x"), 1<<16)
		for range 1 << 8 {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	_, _, err := do(t, newClient(t, 10*time.Second), t.Context(), "GET", endless, nil)
	if err == nil || !strings.Contains(err.Error(), "it is too long") {
		t.Errorf("an answer of 16 MiB: %v", err)
	}
	// An object may be of any size.
	_, data, err := do(t, newClient(t, 10*time.Second), wire.Object(t.Context()), "GET", endless, nil)
	if err != nil || len(data) != 16<<20 {
		t.Errorf("an object of 16 MiB gives %d bytes, %v", len(data), err)
	}
	// But an error in the place of an object may not.
	failing := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(500)
		for range 1 << 8 {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	if _, _, err := do(t, newClient(t, 10*time.Second), wire.Object(t.Context()), "GET", failing, nil); err == nil {
		t.Error("an error of 16 MiB is read")
	}
	headers := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for i := range 1 << 12 {
			w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 100))
		}
	})
	if _, _, err := do(t, newClient(t, 10*time.Second), t.Context(), "GET", headers, nil); err == nil {
		t.Error("headers of 400 KiB are read")
	}
}

func wantTimeout(t *testing.T, what string, err error, took, most time.Duration) {
	t.Helper()
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("%s: %v, want a timeout", what, err)
	}
	if took > most {
		t.Errorf("%s: took %v", what, took)
	}
}

func TestTimeouts(t *testing.T) {
	const read = time.Second
	release := make(chan struct{})
	hang := serve(t, func(http.ResponseWriter, *http.Request) { <-release })
	stall := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "12345")
		w.(http.Flusher).Flush()
		<-release
	})
	// A byte now and then, which never is silence.
	drip := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for {
			select {
			case <-release:
				return
			case <-time.After(read / 6):
			}
			if _, err := io.WriteString(w, "x"); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	})
	defer close(release)
	for what, url := range map[string]string{"no answer": hang, "half an answer": stall, "a dripping answer": drip} {
		start := time.Now()
		_, _, err := do(t, newClient(t, read), t.Context(), "GET", url, nil)
		wantTimeout(t, what, err, time.Since(start), 10*read)
	}
	start := time.Now()
	_, _, err := do(t, newClient(t, read), wire.Object(t.Context()), "GET", stall, nil)
	wantTimeout(t, "half an object", err, time.Since(start), 10*read)

	// An object that comes slowly, but comes.
	slow := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for range 10 {
			_, _ = io.WriteString(w, "x")
			w.(http.Flusher).Flush()
			time.Sleep(read / 4)
		}
	})
	if _, data, err := do(t, newClient(t, read), wire.Object(t.Context()), "GET", slow, nil); err != nil || len(data) != 10 {
		t.Errorf("a slow object: %q, %v", data, err)
	}
}

// A body without a length is not sent in chunks when it is empty.
func TestEmptyBody(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%d %v %q", r.ContentLength, r.TransferEncoding, data)
	})
	for want, body := range map[string]io.Reader{
		`0 [] ""`:             struct{ io.Reader }{strings.NewReader("")},
		`-1 [chunked] "text"`: struct{ io.Reader }{strings.NewReader("text")},
		`3 [] "abc"`:          strings.NewReader("abc"),
	} {
		if _, data, err := do(t, newClient(t, time.Second), t.Context(), "PUT", url, body); err != nil || string(data) != want {
			t.Errorf("got %s, %v, want %s", data, err, want)
		}
	}
}

// When the client returns, nothing reads the body any more: its memory is used
// again. The race detector watches.
func TestBodyIsReleased(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(403) // without having read the body
	})
	memory, other := make([]byte, 1<<20), make([]byte, 1<<20)
	for range 30 {
		_, _, _ = do(t, newClient(t, time.Second), t.Context(), "PUT", url, bytes.NewReader(memory))
		copy(memory, other)
	}
}

func TestCancel(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	url := serve(t, func(http.ResponseWriter, *http.Request) { <-release })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := do(t, newClient(t, time.Minute), ctx, "GET", url, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
}
