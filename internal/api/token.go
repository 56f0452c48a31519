package api

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// stringSink gets the content of a string in parts, escapes resolved. A lone
// surrogate comes as the three bytes that UTF-8 would have for it.
type stringSink interface{ add(p []byte) }

// str reads the string whose quote is next.
func (s *scanner) str(sink stringSink) *syntaxError {
	begin := s.pos()
	s.take(1)
	for s.need(1) {
		window := s.buf[s.r:s.w]
		n := plainLen(window)
		if n > 0 {
			s.noteString(window[:n])
			if sink != nil {
				sink.add(window[:n])
			}
			s.r += n
			continue
		}
		switch window[0] {
		case '"':
			s.take(1)
			return nil
		case '\\':
			if !s.need(2) {
				return &syntaxError{begin, "Unterminated string starting at"}
			}
			if err := s.escape(sink); err != nil {
				return err
			}
		default:
			return s.bad("Invalid control character at")
		}
	}
	return &syntaxError{begin, "Unterminated string starting at"}
}

// escape reads the escape whose backslash is next; one more byte is there.
func (s *scanner) escape(sink stringSink) *syntaxError {
	out := &s.char
	n, used := 1, 2
	switch c := s.buf[s.r+1]; c {
	case '"', '\\', '/':
		out[0] = c
	case 'b':
		out[0] = '\b'
	case 'f':
		out[0] = '\f'
	case 'n':
		out[0] = '\n'
	case 'r':
		out[0] = '\r'
	case 't':
		out[0] = '\t'
	case 'u':
		// A closing quote has to follow, so there is a byte beyond the digits.
		c, ok := rune(0), s.need(7)
		if ok {
			c, ok = hex4(s.buf[s.r+2:])
		}
		if !ok {
			return s.badUnicode(1)
		}
		used = 6
		if c >= 0xD800 && c < 0xDC00 && s.need(13) && s.buf[s.r+6] == '\\' && s.buf[s.r+7] == 'u' {
			low, ok := hex4(s.buf[s.r+8:])
			if !ok {
				return s.badUnicode(7)
			}
			if low >= 0xDC00 && low < 0xE000 {
				c = (c-0xD800)<<10 + (low - 0xDC00) + 0x10000
				used = 12
			}
		}
		n = encodeRune(out[:], c)
	default:
		return s.bad(`Invalid \escape`)
	}
	s.noteString(out[:n])
	if sink != nil {
		sink.add(out[:n])
	}
	s.r += used
	return nil
}

func (s *scanner) badUnicode(after int64) *syntaxError {
	return &syntaxError{s.pos() + after, `Invalid \uXXXX escape`}
}

// encodeRune is utf8.EncodeRune that writes surrogates as they are.
func encodeRune(p []byte, c rune) int {
	if c >= 0xD800 && c < 0xE000 {
		p[0], p[1], p[2] = 0xE0|byte(c>>12), 0x80|byte(c>>6)&0xBF, 0x80|byte(c)&0xBF
		return 3
	}
	return utf8.EncodeRune(p, c)
}

func hex4(p []byte) (rune, bool) {
	var v rune
	for _, c := range p[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		v = v<<4 | rune(c)
	}
	return v, true
}

// plainLen returns how many bytes at the start of p are neither a quote, nor a
// backslash, nor a control character, eight at a time.
func plainLen(p []byte) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; len(p)-i >= 8; i += 8 {
		x := binary.LittleEndian.Uint64(p[i:])
		q, b := x^(ones*'"'), x^(ones*'\\')
		if hit := ((x - ones*' ') &^ x & highs) | ((q - ones) &^ q & highs) | ((b - ones) &^ b & highs); hit != 0 {
			// A borrow can only make a false hit above a true one.
			return i + bits.TrailingZeros64(hit)/8
		}
	}
	for ; i < len(p); i++ {
		if c := p[i]; c < ' ' || c == '"' || c == '\\' {
			break
		}
	}
	return i
}

// prefix keeps the beginning of a string and measures all of it.
type prefix struct {
	max   int
	text  []byte
	size  int64 // bytes
	runes int64
}

func (p *prefix) add(b []byte) {
	p.size += int64(len(b))
	p.runes += countRunes(b)
	if room := p.max - len(p.text); room > 0 {
		p.text = append(p.text, b[:min(room, len(b))]...)
	}
}

// whole tells whether all of the string was kept.
func (p *prefix) whole() bool { return p.size == int64(len(p.text)) }

// kind is the type of a JSON value.
type kind uint8

const (
	absent kind = iota
	null
	boolean
	integer
	float
	text
	array
	object
)

// scalar reads a value that is neither string, array nor object; its kind, and
// for a boolean its value. The text of a number is in s.num until the next.
func (s *scanner) scalar() (kind, bool, *syntaxError) {
	s.need(len("-Infinity"))
	ahead := string(s.buf[s.r:min(s.w, s.r+len("-Infinity"))])
	for _, word := range []string{"null", "true", "false"} {
		if len(ahead) >= len(word) && ahead[:len(word)] == word {
			s.take(len(word))
			if word == "null" {
				return null, false, nil
			}
			return boolean, word == "true", nil
		}
	}
	for _, word := range []string{"NaN", "Infinity", "-Infinity"} {
		if len(ahead) >= len(word) && ahead[:len(word)] == word {
			s.num = append(s.num[:0], word...)
			s.note([]byte("null")...) // JSON has no such numbers to show
			s.r += len(word)
			return float, false, nil
		}
	}
	return s.number()
}

func (s *scanner) number() (kind, bool, *syntaxError) {
	s.num = s.num[:0]
	at := func(i int) byte {
		if s.need(i + 1) {
			return s.buf[s.r+i]
		}
		return 0
	}
	isDigit := func(c byte) bool { return c >= '0' && c <= '9' }
	move := func(n int) {
		s.num = append(s.num, s.buf[s.r:s.r+n]...)
		s.r += n
	}
	digits := func() {
		for isDigit(at(0)) && len(s.num) <= maxDigits+1 {
			n := 1
			for s.r+n < s.w && n < maxDigits && isDigit(s.buf[s.r+n]) {
				n++
			}
			move(n)
		}
	}

	first, sign := at(0), 0
	if first == '-' {
		first, sign = at(1), 1
	}
	if !isDigit(first) {
		return absent, false, s.bad("Expecting value")
	}
	move(sign)
	if first == '0' {
		move(1)
	} else {
		digits()
	}
	k := integer
	if at(0) == '.' && isDigit(at(1)) {
		k = float
		move(1)
		digits()
	}
	if c := at(0); c == 'e' || c == 'E' {
		n := 1
		if c = at(1); c == '+' || c == '-' {
			n = 2
		}
		if isDigit(at(n)) {
			k = float
			move(n)
			digits()
		}
	}
	if len(s.num)-sign > maxDigits {
		return absent, false, s.fail(errUnparsable)
	}
	shown := s.num
	if k == float {
		if f, _ := strconv.ParseFloat(string(s.num), 64); math.IsInf(f, 0) {
			shown = []byte("null") // as large as infinity
		}
	}
	s.note(shown...)
	return k, false, nil
}
