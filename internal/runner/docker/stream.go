package docker

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// The engine multiplexes a command's output over one connection, in chunks:
//
//	+------+---+---+---+----------------+----------- - -
//	| kind | 0 | 0 | 0 | length, uint32 | length bytes
//	+------+---+---+---+----------------+----------- - -
//
// The kind is 1 for standard output, 2 for standard error and 3 for a word of
// the engine's own; the length is big-endian. What goes to the command's
// standard input is not framed.
const (
	chunkHeader = 8

	chunkStdout = 1
	chunkStderr = 2
	chunkEngine = 3
)

const (
	readBuffer     = 64 << 10
	maxDiagnostics = 4 << 10
)

var errChunk = errors.New("the engine's stream is out of step")

// stream is a runner.Stream over a connection that the engine gave up to a
// command. It keeps no more than one buffer, whatever lengths the chunks claim.
type stream struct {
	conn net.Conn
	r    *bufio.Reader

	kind byte   // of the chunk being read
	left uint32 // bytes of it to come

	closed func() // called by Close, where set

	mu   sync.Mutex
	tail []byte // of standard error
}

func newStream(conn net.Conn, r *bufio.Reader) *stream {
	return &stream{conn: conn, r: r}
}

// Read returns standard output. Chunks of other kinds are kept for Diagnostics
// on the way, however many there are; Close ends that too.
func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		switch {
		case s.left == 0:
			if err := s.nextChunk(); err != nil {
				return 0, err
			}
		case s.kind == chunkStdout:
			if uint64(len(p)) > uint64(s.left) {
				p = p[:s.left]
			}
			n, err := s.r.Read(p)
			s.left -= uint32(n)
			if n > 0 {
				return n, nil
			}
			if err != nil {
				return 0, cutShort(err)
			}
		default:
			if err := s.keep(); err != nil {
				return 0, err
			}
		}
	}
}

// nextChunk reads a header. io.EOF means that the command's output ended.
func (s *stream) nextChunk() error {
	h, err := s.r.Peek(chunkHeader)
	if err != nil {
		if len(h) > 0 {
			err = cutShort(err)
		}
		return err
	}
	kind, length := h[0], binary.BigEndian.Uint32(h[4:])
	if kind < chunkStdout || kind > chunkEngine || h[1]|h[2]|h[3] != 0 {
		return errChunk
	}
	_, err = s.r.Discard(chunkHeader)
	s.kind, s.left = kind, length
	return err
}

// keep takes what is there of a chunk into the tail.
func (s *stream) keep() error {
	if _, err := s.r.Peek(1); err != nil {
		return cutShort(err)
	}
	n := s.r.Buffered()
	if uint64(n) > uint64(s.left) {
		n = int(s.left)
	}
	b, err := s.r.Peek(n)
	if err != nil {
		return cutShort(err)
	}
	s.mu.Lock()
	if len(b) >= maxDiagnostics {
		s.tail = append(s.tail[:0], b[len(b)-maxDiagnostics:]...)
	} else {
		if over := len(s.tail) + len(b) - maxDiagnostics; over > 0 {
			s.tail = append(s.tail[:0], s.tail[over:]...)
		}
		s.tail = append(s.tail, b...)
	}
	s.mu.Unlock()
	s.left -= uint32(n)
	_, err = s.r.Discard(n)
	return err
}

// cutShort is err, where the end of the stream is no proper end.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Write goes to the command's standard input.
func (s *stream) Write(p []byte) (int, error) { return s.conn.Write(p) }

// Close ends both directions.
func (s *stream) Close() error {
	if s.closed != nil {
		s.closed()
	}
	return s.conn.Close()
}

// Diagnostics returns the last 4 KiB of standard error that Read came across.
func (s *stream) Diagnostics() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.tail)
}
