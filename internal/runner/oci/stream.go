package oci

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"time"
)

const maxDiagnostics = 4 << 10

// stream is a runner.Stream over three pipes.
type stream struct {
	in, out, err *os.File      // this process's ends of standard input, output and error
	listened     chan struct{} // closed when standard error has ended

	mu   sync.Mutex
	tail []byte // of standard error
}

// newStream makes a stream and the files for the process at its other end.
func newStream() (*stream, stdio, error) {
	var ends [6]*os.File
	for i := 0; i < len(ends); i += 2 {
		var err error
		if ends[i], ends[i+1], err = os.Pipe(); err != nil {
			for _, f := range ends[:i] {
				f.Close()
			}
			return nil, stdio{}, err
		}
	}
	s := &stream{in: ends[1], out: ends[2], err: ends[4], listened: make(chan struct{})}
	go s.listen()
	return s, stdio{in: ends[0], out: ends[3], err: ends[5]}, nil
}

// listen keeps the tail of standard error. The process is never held up by it.
func (s *stream) listen() {
	defer close(s.listened)
	b := make([]byte, maxDiagnostics)
	for {
		n, err := s.err.Read(b)
		s.keep(b[:n])
		if err != nil {
			return
		}
	}
}

func (s *stream) keep(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tail = append(s.tail, b...)
	if over := len(s.tail) - maxDiagnostics; over > 0 {
		s.tail = append(s.tail[:0], s.tail[over:]...)
	}
}

func (s *stream) Read(p []byte) (int, error)  { return s.out.Read(p) }
func (s *stream) Write(p []byte) (int, error) { return s.in.Write(p) }

// Close ends both directions.
func (s *stream) Close() error {
	return errors.Join(s.in.Close(), s.out.Close(), s.err.Close())
}

// Diagnostics returns the last 4 KiB of standard error.
func (s *stream) Diagnostics() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.tail)
}

// lastWords returns what was said on standard error by a process that failed to
// start. Should something hold that open, it does not wait.
func (s *stream) lastWords(ctx context.Context) string {
	select {
	case <-s.listened:
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
	return strings.TrimSpace(s.Diagnostics())
}

// close closes the files of the other end, once a process has its own of them.
func (s stdio) close() {
	s.in.Close()
	s.out.Close()
	s.err.Close()
}
