package api

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"
)

// encode writes text in UTF-16 or UTF-32.
func encode(text string, order binary.AppendByteOrder, width int) string {
	var b []byte
	for _, c := range text {
		if width == 4 {
			b = order.AppendUint32(b, uint32(c))
			continue
		}
		for _, unit := range utf16.AppendRune(nil, c) {
			b = order.AppendUint16(b, unit)
		}
	}
	return string(b)
}

func TestTextEncodings(t *testing.T) {
	big, little := binary.BigEndian, binary.LittleEndian
	for _, text := range []string{
		`{"a":"b"}`, `{"ключ":"中😀"}`, `[]`, `12`, `"é"`, `1`, `{"pad":"` + strings.Repeat("é中😀x", 5000) + `"}`,
	} {
		for name, body := range map[string]string{
			"UTF-8":                   text,
			"UTF-8 with a mark":       "\xEF\xBB\xBF" + text,
			"UTF-16, big":             encode("\uFEFF"+text, big, 2),
			"UTF-16, little":          encode("\uFEFF"+text, little, 2),
			"UTF-32, big":             encode("\uFEFF"+text, big, 4),
			"UTF-32, little":          encode("\uFEFF"+text, little, 4),
			"UTF-16 unmarked, big":    encode(text, big, 2),
			"UTF-16 unmarked, little": encode(text, little, 2),
			"UTF-32 unmarked, big":    encode(text, big, 4),
			"UTF-32 unmarked, little": encode(text, little, 4),
		} {
			for how, slow := range slowly {
				got, err := io.ReadAll(newTextReader(slow(strings.NewReader(body))))
				if err != nil || string(got) != text {
					t.Errorf("%.20q in %s %s: %.40q, %v", text, name, how, got, err)
				}
			}
		}
	}
}

func TestTextInvalid(t *testing.T) {
	big, little := binary.BigEndian, binary.LittleEndian
	for _, body := range []string{
		"\xff", "a\xff", "\xc3", "{\"a\":\"\xe4\xb8", "\xf0\x9f\x98", "\xed\xa0\x80", "\xc0\xaf", "\xf4\x90\x80\x80", "\x80",
		strings.Repeat("x", scanBuffer-1) + "\xe4\xb8",
		encode("{}", big, 2) + "\x00", encode("{}", little, 4) + "\x00", encode("{}", little, 4) + "\x00\x00\x00",
		encode("{\"", big, 2) + "\xd8\x00\x00\"", encode("{\"", big, 2) + "\xdc\x00\x00\"", encode("{\"", big, 2) + "\xd8\x00",
		encode("{", little, 4) + "\x00\xd8\x00\x00", encode("{", little, 4) + "\x00\x00\x11\x00",
	} {
		for how, slow := range slowly {
			if _, err := io.ReadAll(newTextReader(slow(strings.NewReader(body)))); !errors.Is(err, errUnparsable) {
				t.Errorf("%.20q %s: %v", body, how, err)
			}
		}
	}
}

func TestCountRunes(t *testing.T) {
	text := strings.Repeat("aé中😀", 5) + "xyz"
	for from := range text {
		for to := from; to <= len(text); to++ {
			if !utf8.ValidString(text[from:to]) {
				continue
			}
			if got, want := countRunes([]byte(text[from:to])), utf8.RuneCountInString(text[from:to]); got != int64(want) {
				t.Fatalf("%q: %d, want %d", text[from:to], got, want)
			}
		}
	}
	if got := countRunes([]byte("a\xed\xa0\x80")); got != 2 {
		t.Errorf("a lone surrogate counts as %d", got-1)
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("{\"a\":\"é😀\"}"), uint8(1))
	f.Add([]byte(encode("\uFEFF{\"a\":\"😀\"}", binary.LittleEndian, 2)), uint8(5))
	f.Fuzz(func(t *testing.T, body []byte, step uint8) {
		read := func(n int) (string, error) {
			got, err := io.ReadAll(newTextReader(&stepReader{body, n}))
			return string(got), err
		}
		whole, err := read(len(body) + 1)
		if !utf8.ValidString(whole) {
			t.Fatalf("%q gives %q", body, whole)
		}
		parts, partsErr := read(int(step) + 1)
		if (err == nil) != (partsErr == nil) || err == nil && whole != parts {
			t.Fatalf("%q: %q, %v at once, %q, %v in steps", body, whole, err, parts, partsErr)
		}
	})
}

// stepReader gives at most n bytes at a time.
type stepReader struct {
	rest []byte
	n    int
}

func (r *stepReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), r.n)], r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
