package api

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"
)

type kept []byte

func (k *kept) keep(p []byte) { *k = append(*k, p...) }

// decodeParts decodes text that comes in parts of at most n bytes.
func decodeParts(text []byte, n int) (out []byte, valid bool) {
	var d base64Decoder
	for len(text) > 0 {
		m := min(n, len(text))
		d.add(text[:m], (*kept)(&out))
		text = text[m:]
	}
	return out, d.valid()
}

func TestBase64(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "YQ==": "a", "YWI=": "ab", "YWJj": "abc", "aGVsbG8=": "hello", "+/+/": "\xfb\xff\xbf",
		"YR==": "a", // bits that are not used may be set
	} {
		for n := 1; n <= len(text)+1; n++ {
			if got, ok := decodeParts([]byte(text), n); !ok || string(got) != want {
				t.Errorf("%q by %d: %q, %t", text, n, got, ok)
			}
		}
	}
	for _, text := range []string{
		"A", "AA", "AAA", "YQ", "YQ=", "=", "==", "===", "====", "=YWJj", "Y=Q=", "Y===", "YQ=a", "YQ==YQ==", "YWJj=", "YWJj====", "aGVsbG8==",
		"aGVsbG8=\n", "aGVs\r\nbG8=", "\n", "aGVs bG8=", " YQ==", "YQ== ", "-_-_", "!!!!", "éééé", "data:text/plain;base64,aGVsbG8=", "YQ\x00=", "YW\nJj",
	} {
		for n := 1; n <= len(text)+1; n++ {
			if got, ok := decodeParts([]byte(text), n); ok {
				t.Errorf("%q by %d is taken as %q", text, n, got)
			}
		}
	}
}

func TestBase64BlockEdges(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcdef!"), 10000)
	for _, n := range []int{base64Block - 1, base64Block, base64Block + 1, base64Block + 4, 3 * base64Block} {
		for _, size := range []int{len(data), len(data) - 1, len(data) - 2, base64Block / 4 * 3} {
			text := base64.StdEncoding.EncodeToString(data[:size])
			if got, ok := decodeParts([]byte(text), n); !ok || !bytes.Equal(got, data[:size]) {
				t.Errorf("%d bytes by %d: %d bytes, %t", size, n, len(got), ok)
			}
		}
	}
}

func FuzzBase64(f *testing.F) {
	for _, seed := range []string{"aGVsbG8=", "YQ==YQ==", "aGVs\nbG8=", "====", "YR==", "-_-_"} {
		f.Add([]byte(seed), uint8(3))
	}
	f.Fuzz(func(t *testing.T, text []byte, step uint8) {
		want, err := base64.StdEncoding.DecodeString(string(text))
		valid := err == nil && !strings.ContainsAny(string(text), "\r\n")
		got, ok := decodeParts(text, int(step)+1)
		if ok != valid || ok && !bytes.Equal(got, want) {
			t.Fatalf("%q by %d: %q, %t; want %q, %t", text, int(step)+1, got, ok, want, valid)
		}
	})
}

// TestBase64EveryByte puts every byte at every place of a text that is long enough
// for the decoder's wide registers.
func TestBase64EveryByte(t *testing.T) {
	text := []byte(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("\x00\x10\x83\x10Q\x87 \x92\x8b0\xd3\x8f"), 10)))
	for at := range text {
		was := text[at]
		for c := range 256 {
			text[at] = byte(c)
			want, err := base64.StdEncoding.DecodeString(string(text))
			valid := err == nil && c != '\n' && c != '\r'
			got, ok := decodeParts(text, len(text))
			if ok != valid || ok && !bytes.Equal(got, want) {
				t.Fatalf("byte %#x at %d of %d: %q, %t; want %q, %t", c, at, len(text), got, ok, want, valid)
			}
		}
		text[at] = was
	}
}
