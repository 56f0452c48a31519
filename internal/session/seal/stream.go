package seal

import (
	"bufio"
	"bytes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// chunkSize is how much of a stream is encrypted at a time, bytes.
const chunkSize = 64 << 10

// nonce counts chunks and marks the last.
type nonce [12]byte

func (n *nonce) next() {
	count := binary.BigEndian.Uint64(n[3:11])
	binary.BigEndian.PutUint64(n[3:11], count+1)
}

func (n *nonce) markLast() { n[11] = 1 }

// Writer returns a writer that encrypts to w. The stream is whole once Close has
// succeeded; Close does not close w. After an error the writer is of no use.
func (k Key) Writer(w io.Writer, context string) (io.WriteCloser, error) {
	header := newHeader()
	aead, err := k.aead(header[len(magic):], kindStream, context)
	if err != nil {
		return nil, fmt.Errorf("cannot seal: %w", err)
	}
	if _, err := w.Write(header); err != nil {
		return nil, err
	}
	return &writer{w: w, aead: aead, buf: make([]byte, 0, chunkSize+tagSize)}, nil
}

type writer struct {
	w     io.Writer
	aead  cipher.AEAD
	nonce nonce
	buf   []byte // what is not written yet, at most a chunk
	err   error
}

func (w *writer) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 && w.err == nil {
		if len(w.buf) == chunkSize { // more follows, so it is not the last
			w.flush()
			continue
		}
		n := min(len(p), chunkSize-len(w.buf))
		w.buf = append(w.buf, p[:n]...)
		p = p[n:]
	}
	return total - len(p), w.err
}

func (w *writer) flush() {
	_, w.err = w.w.Write(w.aead.Seal(w.buf[:0], w.nonce[:], w.buf, nil))
	w.buf = w.buf[:0]
	w.nonce.next()
}

func (w *writer) Close() error {
	if w.err != nil {
		return w.err
	}
	w.nonce.markLast()
	w.flush()
	err := w.err
	w.err = errors.New("stream is closed")
	return err
}

// Reader returns a reader of what a Writer wrote to r. Whatever it returns is
// what was written; where the stream is damaged or ends early, it fails with
// ErrUnreadable instead of io.EOF.
func (k Key) Reader(r io.Reader, context string) (io.Reader, error) {
	header := make([]byte, headerSize)
	if _, err := io.ReadFull(r, header); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, ErrUnreadable
		}
		return nil, err
	}
	if !bytes.HasPrefix(header, []byte(magic)) {
		return nil, ErrUnreadable
	}
	aead, err := k.aead(header[len(magic):], kindStream, context)
	if err != nil {
		return nil, fmt.Errorf("cannot open: %w", err)
	}
	return &reader{r: bufio.NewReaderSize(r, 4<<10), aead: aead, buf: make([]byte, chunkSize+tagSize)}, nil
}

type reader struct {
	r     *bufio.Reader
	aead  cipher.AEAD
	nonce nonce
	buf   []byte
	plain []byte // of buf, not read yet
	err   error
}

func (r *reader) Read(p []byte) (int, error) {
	for len(r.plain) == 0 && r.err == nil {
		r.err = r.fill()
	}
	if len(r.plain) == 0 {
		return 0, r.err
	}
	n := copy(p, r.plain)
	r.plain = r.plain[n:]
	return n, nil
}

// fill opens the next chunk; with the last it returns io.EOF.
func (r *reader) fill() error {
	n, err := io.ReadFull(r.r, r.buf)
	last := errors.Is(err, io.ErrUnexpectedEOF)
	switch {
	case errors.Is(err, io.EOF):
		return ErrUnreadable // the last chunk was not marked
	case err == nil:
		_, peek := r.r.Peek(1)
		if last = errors.Is(peek, io.EOF); peek != nil && !last {
			return peek
		}
	case !last:
		return err
	}
	if last {
		r.nonce.markLast()
	}
	plain, err := r.aead.Open(r.buf[:0], r.nonce[:], r.buf[:n], nil)
	if err != nil {
		return ErrUnreadable
	}
	r.plain = plain
	r.nonce.next()
	if last {
		return io.EOF
	}
	return nil
}
