package api

import (
	"fmt"
	"io"
	"unicode/utf8"
)

const (
	scanBuffer = 128 << 10
	// maxDepth is how deep arrays and objects may be nested. A level costs one
	// byte.
	maxDepth = 9990
	// maxDigits is how long a number may be.
	maxDigits = 4300
	// maxKey bounds what is kept of a key; no known one is longer.
	maxKey = 64
)

// syntaxError says where JSON breaks off, in the words of Python's decoder,
// which clients of the service have always seen.
type syntaxError struct {
	pos int64 // in characters
	msg string
}

func (e *syntaxError) Error() string { return fmt.Sprintf("%s at character %d", e.msg, e.pos) }

// scanner reads one JSON document in a single pass with bounded memory. It
// takes what Python's json.loads takes: NaN and Infinity too.
//
// An error of the source counts as the end of the text; err holds it, and is
// to be looked at before a syntax error.
type scanner struct {
	src  io.Reader // gives valid UTF-8
	buf  []byte
	r, w int
	eof  bool
	err  error

	counted int   // buf[:counted] is in past
	past    int64 // characters before buf[counted]

	whole *echo // where set, collects everything
	part  *echo // where set, collects the value at hand

	num   []byte            // the number at hand
	char  [utf8.UTFMax]byte // what the escape at hand stands for
	stack []byte            // brackets that are open in skip
}

// fail ends the text with an error that no position explains.
func (s *scanner) fail(err error) *syntaxError {
	if s.err == nil {
		s.err = err
	}
	s.eof = true
	s.r, s.counted = s.w, s.w
	return &syntaxError{msg: err.Error()}
}

// need makes n bytes available, at most a few, and tells whether there are.
func (s *scanner) need(n int) bool {
	for s.w-s.r < n && !s.eof {
		if s.r > 0 {
			s.pos()
			s.w = copy(s.buf, s.buf[s.r:s.w])
			s.r, s.counted = 0, 0
		}
		m, err := s.src.Read(s.buf[s.w:])
		s.w += m
		if err != nil {
			s.eof = true
			if err != io.EOF {
				s.err = err
			}
		}
	}
	return s.w-s.r >= n
}

// pos returns the number of characters before the next byte. All calls
// together cost one pass over the text.
func (s *scanner) pos() int64 {
	s.past += countRunes(s.buf[s.counted:s.r])
	s.counted = s.r
	return s.past
}

func (s *scanner) bad(msg string) *syntaxError { return &syntaxError{s.pos(), msg} }

// next skips white space and returns the byte after it without taking it; zero
// at the end of the text (a NUL is no more welcome anywhere).
func (s *scanner) next() byte {
	for s.need(1) {
		for ; s.r < s.w; s.r++ {
			if c := s.buf[s.r]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
				return c
			}
		}
	}
	return 0
}

// take consumes n ASCII bytes that are available and notes them.
func (s *scanner) take(n int) {
	s.note(s.buf[s.r : s.r+n]...)
	s.r += n
}

func (s *scanner) note(p ...byte) {
	if s.whole != nil && !s.whole.cut {
		s.whole.raw(p...)
	}
	if s.part != nil {
		s.part.raw(p...)
	}
}

func (s *scanner) noteString(p []byte) {
	if s.whole != nil && !s.whole.cut {
		s.whole.str(p)
	}
	if s.part != nil {
		s.part.str(p)
	}
}

// object reads the object whose brace is next and calls member with each key,
// as far as it is kept; member has to read the value, which is next.
func (s *scanner) object(member func(key []byte) *syntaxError) *syntaxError {
	s.take(1)
	if s.next() == '}' {
		s.take(1)
		return nil
	}
	for {
		key := prefix{max: maxKey}
		if err := s.key(&key); err != nil {
			return err
		}
		if err := member(key.text); err != nil {
			return err
		}
		if more, err := s.more('}'); !more || err != nil {
			return err
		}
	}
}

// key reads a key and its colon, up to the value.
func (s *scanner) key(sink stringSink) *syntaxError {
	if s.next() != '"' {
		return s.bad("Expecting property name enclosed in double quotes")
	}
	if err := s.str(sink); err != nil {
		return err
	}
	if s.next() != ':' {
		return s.bad("Expecting ':' delimiter")
	}
	s.take(1)
	s.next()
	return nil
}

// more reads what comes after a member: a comma, or the closing bracket.
func (s *scanner) more(closing byte) (bool, *syntaxError) {
	switch s.next() {
	case closing:
		s.take(1)
		return false, nil
	case ',':
	default:
		return false, s.bad("Expecting ',' delimiter")
	}
	comma := s.pos()
	s.take(1)
	if s.next() == closing {
		if closing == '}' {
			return false, &syntaxError{comma, "Illegal trailing comma before end of object"}
		}
		return false, &syntaxError{comma, "Illegal trailing comma before end of array"}
	}
	return true, nil
}

// skip reads a value of any kind and keeps nothing of it.
func (s *scanner) skip() *syntaxError {
	s.stack = s.stack[:0]
	for {
		opened := byte(0)
		switch c := s.next(); c {
		case '"':
			if err := s.str(nil); err != nil {
				return err
			}
		case '{', '[':
			if len(s.stack) == maxDepth {
				return s.fail(errUnparsable)
			}
			opened = c + 2 // the closing bracket: both pairs are two apart
			s.take(1)
			if s.next() == opened {
				s.take(1)
				opened = 0
			}
		default:
			if _, _, err := s.scalar(); err != nil {
				return err
			}
		}
		if opened != 0 {
			s.stack = append(s.stack, opened)
		} else if done, err := s.unwind(); done || err != nil {
			return err
		}
		if s.stack[len(s.stack)-1] == '}' {
			if err := s.key(nil); err != nil {
				return err
			}
		}
	}
}

// unwind closes what ends after a value and tells whether nothing is open.
func (s *scanner) unwind() (done bool, err *syntaxError) {
	for len(s.stack) > 0 {
		more, err := s.more(s.stack[len(s.stack)-1])
		if more || err != nil {
			return false, err
		}
		s.stack = s.stack[:len(s.stack)-1]
	}
	return true, nil
}

// end makes sure that nothing follows.
func (s *scanner) end() *syntaxError {
	if s.next(); s.need(1) {
		return s.bad("Extra data")
	}
	return nil
}
