// Package wire makes the HTTP clients that object stores are spoken to with. A
// store is chosen by whoever forwards a storage block, so it may answer with
// anything: what it can cost in time and memory is bounded here.
package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// maxAnswer bounds every answer that is not an object: a listing of a thousand
	// keys at their longest, all of it escaped.
	maxAnswer = 8 << 20
	// maxHeader bounds the headers of an answer.
	maxHeader = 64 << 10
	// idleTimeout is how long an unused connection is kept.
	idleTimeout = 60 * time.Second
)

// errAnswerTooLong means that a store sent more than maxAnswer.
var errAnswerTooLong = errors.New("cannot read answer: it is too long")

// NewClient returns a client that gives a connection connect to come up, and
// then read for each time that nothing moves on it: the timeouts of one attempt,
// not of a request as a whole. Redirects are not followed, since a signed
// request must not go to another host. Answers other than objects are read as a
// whole, in at most read, and fail beyond 8 MiB; a request of Object's context
// gets its body as a stream, without either bound. Close idle connections with
// CloseIdleConnections.
func NewClient(connect, read time.Duration) *http.Client {
	dialer := &net.Dialer{Timeout: connect, KeepAlive: 30 * time.Second}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &deadlineConn{Conn: conn, timeout: read}, nil
		},
		TLSHandshakeTimeout:    connect,
		ResponseHeaderTimeout:  read,
		ExpectContinueTimeout:  time.Second,
		IdleConnTimeout:        idleTimeout,
		MaxIdleConnsPerHost:    8,
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true, // a stored .tgz stays one
	}
	return &http.Client{
		Transport:     &roundTripper{base: t, timeout: read},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

type objectKey struct{}

// Object returns a context whose requests answer with an object, of any size.
func Object(ctx context.Context) context.Context {
	return context.WithValue(ctx, objectKey{}, true)
}

type roundTripper struct {
	base    *http.Transport
	timeout time.Duration
}

// CloseIdleConnections is called by the http.Client's method of that name.
func (t *roundTripper) CloseIdleConnections() { t.base.CloseIdleConnections() }

func (t *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	req = req.Clone(ctx)
	req.GetBody = nil // the SDK repeats requests, and counts them
	if isEmpty(req) {
		req.Body = http.NoBody
	}
	if req.Body != nil && req.Body != http.NoBody {
		body := &sharedBody{ReadCloser: req.Body}
		req.Body = body
		// The transport may go on sending after it returned, from memory that the
		// caller uses for something else by then.
		defer body.release()
	}
	resp, err := t.base.RoundTrip(req)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	if isObject, _ := req.Context().Value(objectKey{}).(bool); isObject && resp.StatusCode/100 == 2 {
		resp.Body = &objectBody{ReadCloser: resp.Body, cancel: cancel}
		return resp, nil
	}
	defer cancel(nil)
	timer := time.AfterFunc(t.timeout, func() { cancel(timeoutError{}) })
	defer timer.Stop()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	// What is left of the body, if anything, is not wanted.
	_ = resp.Body.Close()
	switch {
	case err != nil && errors.Is(context.Cause(ctx), timeoutError{}):
		return nil, timeoutError{}
	case err != nil:
		return nil, err
	case len(body) > maxAnswer:
		return nil, errAnswerTooLong
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// isEmpty tells whether a body that does not say its length has none. Otherwise
// it would be sent in chunks, which not every store takes. Bodies are in memory,
// so looking does not block.
func isEmpty(req *http.Request) bool {
	if req.Body == nil || req.ContentLength != 0 {
		return false
	}
	var first [1]byte
	n, err := io.ReadFull(req.Body, first[:])
	if n == 0 && err == io.EOF {
		return true
	}
	req.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(first[:n]), req.Body), req.Body}
	return false
}

// timeoutError is a net.Error, which SDKs take as a reason to try again. They
// look at the error itself, so that nothing here wraps one.
type timeoutError struct{}

func (timeoutError) Error() string   { return "cannot read answer: it took too long" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }

// sharedBody is a request body that ends, for whoever still reads it, when it is
// released.
type sharedBody struct {
	io.ReadCloser
	mu       sync.Mutex
	released bool
}

func (b *sharedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.released {
		return 0, io.EOF
	}
	return b.ReadCloser.Read(p)
}

func (b *sharedBody) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released = true
}

// objectBody frees the request's context when the body is closed.
type objectBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *objectBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// deadlineConn fails when nothing moves on it for a while, in either direction.
type deadlineConn struct {
	net.Conn
	timeout time.Duration
}

func (c *deadlineConn) Read(p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *deadlineConn) Write(p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}
