package api

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestAppendEscaped(t *testing.T) {
	for in, want := range map[string]string{
		"":                         "",
		"plain":                    "plain",
		"中😀é\u2028\x7f":            "中😀é\u2028\x7f",
		"\"\\/":                    `\"\\/`,
		"\b\f\n\r\t\x00\x1b":       `\b\f\n\r\t\u0000\u001b`,
		"<&>":                      "<&>",
		"\xff\xfeok\xe4\xb8":       "��ok�",
		"\xf0\x9f\x98":             "�",
		"\xf0\x9f\x98A":            "�A",
		"\xed\xa0\x80":             "���",
		"\xed\x9f\xbf":             "\ud7ff",
		"\xc0\xaf":                 "��",
		"\xc1\xbf":                 "��",
		"\xe0\x80\x80":             "���",
		"\xe0\xa0":                 "�",
		"\xe4\xb8A":                "�A",
		"\xe4A\xb8":                "�A�",
		"\x80\x80":                 "��",
		"\xf4\x90\x80\x80":         "����",
		"\xf4\x8f\xbf":             "�",
		"\xf0\x80\x80\x80":         "����",
		"\xf0\x90\x80":             "�",
		"\xf5\x80\x80\x80":         "����",
		"\xf1\x80\x80\xe1\x80\xc2": "���",
		"\xe4\xb8\xe4\xb8\xad":     "�中",
		"a\xc3":                    "a�",
		"\xc3\"":                   `�\"`,
		"\uFFFD":                   "�",
	} {
		if got := string(appendEscaped(nil, []byte(in))); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzEscaped(f *testing.F) {
	f.Add([]byte("a\"\n\xff\xe4\xb8中"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var got string
		text := append(appendEscaped([]byte{'"'}, in), '"')
		if !utf8.Valid(text) {
			t.Fatalf("%q is not UTF-8", text)
		}
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if utf8.Valid(in) && got != string(in) {
			t.Fatalf("%q became %q", in, got)
		}
		// The library replaces every single byte: never more than we keep of it.
		if clean := strings.ToValidUTF8(string(in), ""); strings.ReplaceAll(got, "\uFFFD", "") != strings.ReplaceAll(clean, "\uFFFD", "") {
			t.Fatalf("%q became %q", in, got)
		}
	})
}
