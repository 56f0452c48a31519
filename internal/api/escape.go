package api

import "unicode/utf8"

const hexDigits = "0123456789abcdef"

// appendEscaped appends raw bytes as the inside of a JSON string. Characters
// are kept as they are, but for those that JSON wants escaped; bytes that are
// no UTF-8 become U+FFFD as in Python's errors="replace", one for each longest
// run of bytes that begins a character which does not go on.
func appendEscaped(dst, p []byte) []byte {
	start := 0
	for i := 0; i < len(p); {
		c := p[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' {
				i++
				continue
			}
			dst = append(dst, p[start:i]...)
			dst = appendEscape(dst, c)
			i++
			start = i
			continue
		}
		if r, n := utf8.DecodeRune(p[i:]); r != utf8.RuneError || n > 1 {
			i += n
			continue
		}
		dst = append(dst, p[start:i]...)
		dst = append(dst, "\uFFFD"...)
		i += badLen(p[i:])
		start = i
	}
	return append(dst, p[start:]...)
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

// badLen returns the length of the maximal subpart at the start of p, which is
// not a valid character: the longest beginning of one (Unicode, table 3-7).
func badLen(p []byte) int {
	low, high, want := byte(0x80), byte(0xBF), 0
	switch c := p[0]; {
	case c >= 0xC2 && c <= 0xDF:
		want = 1
	case c >= 0xE0 && c <= 0xEF:
		want = 2
		if c == 0xE0 {
			low = 0xA0
		} else if c == 0xED {
			high = 0x9F
		}
	case c >= 0xF0 && c <= 0xF4:
		want = 3
		if c == 0xF0 {
			low = 0x90
		} else if c == 0xF4 {
			high = 0x8F
		}
	}
	n := 1
	for ; n <= want && n < len(p) && p[n] >= low && p[n] <= high; n++ {
		low, high = 0x80, 0xBF
	}
	return n
}
