package api

import (
	"bufio"
	"encoding/binary"
	"io"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

// errUnparsable is the answer to a body that is no JSON text at all: a wrong
// encoding, nesting or numbers beyond what a parser should take.
var errUnparsable = fault.New(fault.Invalid, "There was an error parsing the body")

// newTextReader returns the UTF-8 text of a JSON body in any of the encodings
// that JSON has been sent in: UTF-8, UTF-16 or UTF-32, with or without a byte
// order mark. What it gives is always valid UTF-8; errUnparsable ends a body
// that is not text.
func newTextReader(src io.Reader) io.Reader {
	return &textReader{src: src}
}

type textReader struct {
	src     io.Reader
	decoded io.Reader // set once the encoding is known to be another than UTF-8
	started bool
	held    [utf8.UTFMax]byte // bytes that are read but not yet given out
	n       int
	err     error
	spare   []byte // decoded, but there was no room for it
}

// Read gives whole characters where p has room for one. As with any reader,
// nothing and no error means: ask again.
func (t *textReader) Read(p []byte) (int, error) {
	if len(t.spare) == 0 && len(p) >= utf8.UTFMax {
		return t.read(p)
	}
	var err error
	if len(t.spare) == 0 && len(p) > 0 {
		var one [utf8.UTFMax]byte
		var n int
		n, err = t.read(one[:])
		t.spare = one[:n]
	}
	n := copy(p, t.spare)
	if t.spare = t.spare[n:]; len(t.spare) > 0 {
		err = nil // t keeps it
	}
	return n, err
}

// read is Read with room for a character.
func (t *textReader) read(p []byte) (int, error) {
	if !t.started {
		t.start()
	}
	if t.decoded != nil {
		return t.decoded.Read(p)
	}
	n := copy(p, t.held[:t.n])
	t.n = copy(t.held[:], t.held[n:t.n])
	if t.err == nil && n < len(p) {
		var m int
		m, t.err = t.src.Read(p[n:])
		n += m
	}
	switch whole := completeRunes(p[:n]); t.err {
	case nil:
		if t.n == 0 {
			t.n = copy(t.held[:], p[whole:n]) // the rest of the character is still to come
			n = whole
		}
	case io.EOF: // so it never will: not valid
	default:
		n = whole // the error says more than the broken character
	}
	if !utf8.Valid(p[:n]) {
		t.err = errUnparsable
		return 0, t.err
	}
	if n > 0 {
		return n, nil
	}
	return 0, t.err
}

// start looks at the first bytes for the encoding, as RFC 4627 describes.
func (t *textReader) start() {
	t.started = true
	n, err := io.ReadFull(t.src, t.held[:])
	t.n = n
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	t.err = err
	order, width, skip := sniff(t.held[:n])
	if width > 1 {
		t.decoded = newWideReader(io.MultiReader(&heldReader{t}, t.src), order, width, skip)
		return
	}
	t.n = copy(t.held[:], t.held[skip:n])
}

// heldReader gives the bytes that were read for a look, then what ended them.
type heldReader struct{ t *textReader }

func (h *heldReader) Read(p []byte) (int, error) {
	t := h.t
	n := copy(p, t.held[:t.n])
	t.n = copy(t.held[:], t.held[n:t.n])
	if n > 0 {
		return n, nil
	}
	if t.err != nil {
		return 0, t.err
	}
	return 0, io.EOF
}

// sniff tells byte order and bytes per unit from the first bytes, and how many
// of these are a byte order mark. JSON begins with an ASCII character, so the
// places of its zero bytes tell.
func sniff(b []byte) (order binary.ByteOrder, width, skip int) {
	at := func(i int) int {
		if i < len(b) {
			return int(b[i])
		}
		return -1
	}
	switch {
	case at(0) == 0xFE && at(1) == 0xFF:
		return binary.BigEndian, 2, 2
	case at(0) == 0 && at(1) == 0 && at(2) == 0xFE && at(3) == 0xFF:
		return binary.BigEndian, 4, 4
	case at(0) == 0xFF && at(1) == 0xFE:
		if at(2) == 0 && at(3) == 0 {
			return binary.LittleEndian, 4, 4
		}
		return binary.LittleEndian, 2, 2
	case at(0) == 0xEF && at(1) == 0xBB && at(2) == 0xBF:
		return nil, 1, 3
	case len(b) < 4 && len(b) != 2:
		return nil, 1, 0
	case at(0) == 0:
		if at(1) == 0 {
			return binary.BigEndian, 4, 0
		}
		return binary.BigEndian, 2, 0
	case at(1) == 0:
		if at(2) == 0 && at(3) == 0 {
			return binary.LittleEndian, 4, 0
		}
		return binary.LittleEndian, 2, 0
	}
	return nil, 1, 0
}

// wideReader turns UTF-16 or UTF-32 into UTF-8.
type wideReader struct {
	src   *bufio.Reader
	order binary.ByteOrder
	width int
}

func newWideReader(src io.Reader, order binary.ByteOrder, width, skip int) io.Reader {
	r := &wideReader{src: bufio.NewReader(src), order: order, width: width}
	_, _ = r.src.Discard(skip) // the mark was seen, so it is there
	return r
}

func (r *wideReader) Read(p []byte) (int, error) {
	n := 0
	for len(p)-n >= utf8.UTFMax {
		if n > 0 && r.src.Buffered() < 4 {
			break // rather give out what there is than wait for more
		}
		c, err := r.rune()
		if err != nil {
			return n, err
		}
		n += utf8.EncodeRune(p[n:], c)
	}
	return n, nil
}

// rune reads one character. io.EOF comes only between characters.
func (r *wideReader) rune() (rune, error) {
	unit, err := r.unit()
	if err != nil {
		return 0, err
	}
	c := rune(unit)
	if r.width == 2 && utf16.IsSurrogate(c) {
		low, err := r.unit()
		if err != nil && err != io.EOF {
			return 0, err
		}
		if c = utf16.DecodeRune(c, rune(low)); c == utf8.RuneError {
			return 0, errUnparsable
		}
	}
	if !utf8.ValidRune(c) {
		return 0, errUnparsable
	}
	return c, nil
}

func (r *wideReader) unit() (uint32, error) {
	var b [4]byte
	if _, err := io.ReadFull(r.src, b[:r.width]); err != nil {
		if err == io.ErrUnexpectedEOF {
			err = errUnparsable
		}
		return 0, err
	}
	if r.width == 2 {
		return uint32(r.order.Uint16(b[:])), nil
	}
	return r.order.Uint32(b[:]), nil
}

// completeRunes returns how much of p is left when a character that is cut off
// at its end is taken away.
func completeRunes(p []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(p); i++ {
		if c := p[len(p)-i]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(p[len(p)-i:]) {
				return len(p) - i
			}
			break
		}
	}
	return len(p)
}

// countRunes returns the number of characters in UTF-8 text, eight bytes at a
// time: the bytes that do not continue a character. A lone surrogate that is
// written as three bytes counts as one.
func countRunes(p []byte) int64 {
	n := int64(len(p))
	for ; len(p) >= 8; p = p[8:] {
		x := binary.LittleEndian.Uint64(p)
		n -= int64(bits.OnesCount64(x & 0x8080808080808080 &^ (x << 1)))
	}
	for _, c := range p {
		if c&0xC0 == 0x80 {
			n--
		}
	}
	return n
}
