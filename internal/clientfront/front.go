// Package clientfront puts the Go client where requests of any caller are: it
// listens as the service does, makes each request again with package client, and
// answers from what the client returned. So whatever is tried on the service over
// HTTP is tried on the client too.
//
// Requests that the client cannot make are passed on to the service byte for byte,
// with all that follows on their connection. The rules for that are strict, and
// each has a name under which it is counted: see untyped.
package clientfront

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/hjxwz123/aivory-sandbox/client"
)

// patience is how long a part of a body may take to come. What takes longer is
// passed on, since a service may answer before the body has come.
const patience = time.Second

// Front stands before one service.
type Front struct {
	base      string // the service's URL
	host      string // its host and port
	transport *http.Transport

	mu     sync.Mutex
	counts Counts
}

// Counts tells what became of requests.
type Counts struct {
	Typed  int            // made with the client
	Passed map[string]int // passed on as they were, by the reason
}

// Total is the number of requests.
func (c Counts) Total() int {
	n := c.Typed
	for _, p := range c.Passed {
		n += p
	}
	return n
}

// New returns a front of the service at a URL such as http://127.0.0.1:48217.
func New(service string) (*Front, error) {
	u, err := url.Parse(service)
	if err != nil {
		return nil, err
	}
	if _, err := client.New(service, ""); err != nil {
		return nil, err
	}
	return &Front{base: service, host: u.Host, transport: &http.Transport{MaxIdleConnsPerHost: 64, ExpectContinueTimeout: time.Second}, counts: Counts{Passed: make(map[string]int)}}, nil
}

// Counts returns what became of the requests so far.
func (f *Front) Counts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := Counts{Typed: f.counts.Typed, Passed: make(map[string]int)}
	for reason, n := range f.counts.Passed {
		c.Passed[reason] = n
	}
	return c
}

func (f *Front) count(u *untyped) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u == nil {
		f.counts.Typed++
	} else {
		f.counts.Passed[u.reason]++
	}
}

// Serve serves the connections of a listener until ctx ends, which ends them too.
func (f *Front) Serve(ctx context.Context, l net.Listener) error {
	var all sync.WaitGroup
	defer f.transport.CloseIdleConnections()
	defer all.Wait()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		all.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			f.serve(ctx, conn)
		})
	}
}

// recorder keeps what is read from a connection, so that it can be passed on.
type recorder struct {
	net.Conn
	seen bytes.Buffer
	// patient lifts the limit on the wait for bytes.
	patient bool
}

func (r *recorder) Read(p []byte) (int, error) {
	if !r.patient {
		_ = r.SetReadDeadline(time.Now().Add(patience))
	}
	n, err := r.Conn.Read(p)
	r.seen.Write(p[:n])
	return n, err
}

// serve answers the requests of one connection.
func (f *Front) serve(ctx context.Context, conn net.Conn) {
	rec := &recorder{Conn: conn, patient: true}
	in := bufio.NewReader(rec)
	for {
		if _, err := in.Peek(1); err != nil {
			return
		}
		call, last, bad := f.next(rec, in)
		f.count(bad)
		if bad != nil {
			f.passOn(ctx, rec)
			return
		}
		// A client that leaves meanwhile ends the call.
		callCtx, leave := context.WithCancel(ctx)
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			var timeout net.Error
			if _, err := in.Peek(1); err != nil && !(errors.As(err, &timeout) && timeout.Timeout()) {
				leave()
			}
		}()
		answer, err := call(callCtx)
		gone := callCtx.Err() != nil
		leave()
		_ = conn.SetReadDeadline(time.Unix(1, 0))
		<-watched
		_ = conn.SetReadDeadline(time.Time{})
		// The connection ends with an answer that breaks off, as the service's does.
		if gone || err != nil || answer.Write(conn) != nil || last {
			return
		}
		// What is left of the record is the next request's.
		next, _ := in.Peek(in.Buffered())
		rec.seen.Reset()
		rec.seen.Write(next)
	}
}

// next reads a request and makes a call of it, or says why it cannot. It tells
// whether the request is the last of its connection.
func (f *Front) next(rec *recorder, in *bufio.Reader) (made func(context.Context) (*http.Response, error), last bool, bad *untyped) {
	rec.patient = false
	defer func() {
		rec.patient = true
		_ = rec.SetReadDeadline(time.Time{})
	}()
	r, err := http.ReadRequest(in)
	if err != nil {
		return nil, false, &untyped{"no HTTP request"}
	}
	key, bad := head(r)
	if bad != nil {
		return nil, false, bad
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, false, &untyped{"body that does not come"}
	}
	call, bad := translate(r, body)
	if bad != nil {
		return nil, false, bad
	}
	c, err := client.New(f.base, key, client.WithHTTPClient(&http.Client{Transport: f.transport}))
	if err != nil {
		return nil, false, &untyped{"key"}
	}
	return func(ctx context.Context) (*http.Response, error) {
		status, answer, err := call(ctx, c)
		return response(status, answer, err)
	}, r.Close, nil
}

// passOn connects what was read of a connection, and what is still to come, with
// the service.
func (f *Front) passOn(ctx context.Context, rec *recorder) {
	service, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.host)
	if err != nil {
		return
	}
	defer service.Close()
	defer context.AfterFunc(ctx, func() { _ = service.Close() })()
	var sent sync.WaitGroup
	sent.Go(func() {
		if _, err := service.Write(rec.seen.Bytes()); err == nil {
			_, _ = io.Copy(service, rec.Conn)
		}
		// The service may be about to answer; it sees the end of the requests.
		if half, ok := service.(*net.TCPConn); ok {
			_ = half.CloseWrite()
		}
	})
	_, _ = io.Copy(rec.Conn, service)
	_ = rec.Close()
	sent.Wait()
}
