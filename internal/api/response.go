package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/asm/base64"
)

// response is a http.ResponseWriter that knows what was answered and gives a
// slow client only so long for each part.
type response struct {
	http.ResponseWriter
	ctl    *http.ResponseController
	req    *http.Request
	stall  time.Duration // the longest wait for a part of the request or of the answer
	read   bool          // the request's body came to its end
	lost   bool          // it never will
	status int           // 0 until the header is written
	bytes  int64         // of the body
	err    error         // of writing
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends the header.
func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		w.leaveBody()
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write sends a part of the body.
func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	// Deadlines are an ability of real connections; a recorder in a test has none.
	_ = w.ctl.SetWriteDeadline(time.Now().Add(w.stall))
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	if err != nil {
		w.err = err
	}
	return n, err
}

// expectRead gives the client time for the next part of the request.
func (w *response) expectRead() { _ = w.ctl.SetReadDeadline(time.Now().Add(w.stall)) }

// endRead lifts that limit. From here on the server watches the connection, and
// a deadline that passed would look like a client that went away.
func (w *response) endRead() {
	w.read = true
	_ = w.ctl.SetReadDeadline(time.Time{})
}

const (
	// leaveMost is how much of a body that nobody wants is read nevertheless.
	leaveMost = 256 << 10
	leaveWait = time.Second
)

// leaveBody sees to a body that is answered before it was read. A short one is
// read, so that the connection can be used again; with one that is long, or that
// does not come, the connection is closed after the answer. Left to itself the
// server would wait for the body first.
func (w *response) leaveBody() {
	if w.read || w.req.ContentLength == 0 {
		return
	}
	if !w.lost && w.req.ContentLength <= leaveMost && w.req.Header.Get("Expect") == "" {
		_ = w.ctl.SetReadDeadline(time.Now().Add(leaveWait))
		n, err := io.Copy(io.Discard, io.LimitReader(w.req.Body, leaveMost+1))
		if w.endRead(); err == nil && n <= leaveMost {
			return
		}
	}
	w.Header().Set("Connection", "close")
	_ = w.ctl.SetReadDeadline(time.Now().Add(leaveWait))
	// A connection that is closed while the client is still sending is reset, and the
	// answer lost. The server waits a moment in between, but where the client asked
	// for the close it does so only after a body that was over a limit: so here is one.
	_, _ = http.MaxBytesReader(w.ResponseWriter, io.NopCloser(strings.NewReader("x")), 0).Read(make([]byte, 1))
}

// sendJSON answers with a small JSON value.
func (w *response) sendJSON(status int, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	w.send(status, "application/json", bytes.TrimSuffix(b.Bytes(), []byte{'\n'}))
	return nil
}

// send answers with a body that is all there.
func (w *response) send(status int, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // w keeps the error; there is nobody to tell
}

const (
	streamBuffer = 32 << 10
	// encodeBlock is a multiple of three, so that base64 of blocks is base64 of
	// the whole.
	encodeBlock = 24 << 10
)

// stream answers 200 with JSON of known length that body writes. An error that
// comes before anything has left is returned, to be answered like any other; a
// later one ends the connection, so that the client sees that something is
// missing.
func (w *response) stream(length int64, body func(out *bufio.Writer) error) error {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.FormatInt(length, 10))
	out := bufio.NewWriterSize(w, streamBuffer)
	err := body(out)
	if err == nil {
		err = out.Flush()
	}
	switch {
	case err == nil:
		return nil
	case w.status == 0:
		h.Del("Content-Length")
		return err
	case w.err != nil:
		return &abortError{err: w.err, client: true}
	}
	return &abortError{err: err}
}

// abortError is an answer that broke off after its header was sent.
type abortError struct {
	err    error
	client bool // the client's doing
}

func (e *abortError) Error() string { return "answer broken off: " + e.err.Error() }

func (e *abortError) Unwrap() error { return e.err }

type encodeBuffer struct {
	in  [encodeBlock]byte
	out [encodeBlock / 3 * 4]byte
}

var encodeBuffers = sync.Pool{New: func() any { return new(encodeBuffer) }}

// encodeBase64 writes exactly size bytes of src as base64.
func encodeBase64(out *bufio.Writer, src io.Reader, size int64) error {
	b := encodeBuffers.Get().(*encodeBuffer)
	defer encodeBuffers.Put(b)
	for size > 0 {
		n := int(min(size, encodeBlock))
		if _, err := io.ReadFull(src, b.in[:n]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		size -= int64(n)
		base64.StdEncoding.Encode(b.out[:], b.in[:n])
		if _, err := out.Write(b.out[:base64.StdEncoding.EncodedLen(n)]); err != nil {
			return err
		}
	}
	return nil
}
