package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

// newBody returns a reader for a body without a connection behind it.
func newBody(src io.Reader) *bodyReader {
	rec := httptest.NewRecorder()
	return &bodyReader{src: src, w: &response{ResponseWriter: rec, ctl: http.NewResponseController(rec)}}
}

// readDoc reads a JSON body into fields.
func readDoc(src io.Reader, fields ...field) (*document, error) {
	d := &document{fields: fields, values: make([]value, len(fields))}
	return d, d.readJSON(newBody(src))
}

// slowly are ways for the same bytes to arrive.
var slowly = map[string]func(io.Reader) io.Reader{
	"at once":         func(r io.Reader) io.Reader { return r },
	"byte by byte":    iotest.OneByteReader,
	"in halves":       iotest.HalfReader,
	"end with data":   iotest.DataErrReader,
	"with idle reads": func(r io.Reader) io.Reader { return &idleReader{r: r} },
}

// idleReader gives nothing every other time.
type idleReader struct {
	r    io.Reader
	idle bool
}

func (r *idleReader) Read(p []byte) (int, error) {
	if r.idle = !r.idle; r.idle {
		return 0, nil
	}
	return r.r.Read(p[:min(len(p), 5)])
}

// outcome is what became of a document, as one string.
func outcome(err error) string {
	var v *validationError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &v) && v.issues[0].Type == "json_invalid":
		return fmt.Sprint(v.issues[0].Loc[1], " ", v.issues[0].Ctx["error"])
	case errors.Is(err, errUnparsable):
		return "unparsable"
	}
	return err.Error()
}

func TestScanSyntax(t *testing.T) {
	deep := func(n int, in string) string {
		return strings.Repeat(in[:1], n) + strings.Repeat(in[1:], n)
	}
	tests := []struct{ doc, want string }{
		{`{}`, "ok"}, {`[]`, "ok"}, {`null`, "ok"}, {`"x"`, "ok"}, {`-0`, "ok"}, {`1.5e-3`, "ok"}, {`1E+2`, "ok"},
		{" \r\n\t{ \"a\" : [ 1 , 2 ] } \n", "ok"},
		{`NaN`, "ok"}, {`-Infinity`, "ok"}, {`[Infinity]`, "ok"}, {`1e999`, "ok"},
		{`"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00\ud800"`, "ok"},
		{``, "ok"}, // no body at all
		{` `, "1 Expecting value"},
		{`nul`, "0 Expecting value"}, {`tru`, "0 Expecting value"}, {`Nan`, "0 Expecting value"}, {`-Inf`, "0 Expecting value"},
		{`-`, "0 Expecting value"}, {`-x`, "0 Expecting value"}, {`+1`, "0 Expecting value"}, {`.5`, "0 Expecting value"}, {`'x'`, "0 Expecting value"},
		{`01`, "1 Extra data"}, {`1.`, "1 Extra data"}, {`1e`, "1 Extra data"}, {`1e+`, "1 Extra data"}, {`1.5.`, "3 Extra data"}, {`NaN1`, "3 Extra data"},
		{`{} x`, "3 Extra data"}, {`{} // x`, "3 Extra data"}, {`""""`, "2 Extra data"}, {"{}\x00", "2 Extra data"},
		{`[`, "1 Expecting value"}, {`[1`, "2 Expecting ',' delimiter"}, {`[1,`, "3 Expecting value"}, {`[,]`, "1 Expecting value"},
		{`[1 2]`, "3 Expecting ',' delimiter"}, {`[1,]`, "2 Illegal trailing comma before end of array"}, {`[1 , ]`, "3 Illegal trailing comma before end of array"},
		{`[1}`, "2 Expecting ',' delimiter"}, {`{"a":[1,2}`, "9 Expecting ',' delimiter"},
		{`{`, "1 Expecting property name enclosed in double quotes"}, {`{,}`, "1 Expecting property name enclosed in double quotes"},
		{`{1:2}`, "1 Expecting property name enclosed in double quotes"}, {`{"a":1,`, "7 Expecting property name enclosed in double quotes"},
		{`{"a"`, "4 Expecting ':' delimiter"}, {`{"a" 1}`, "5 Expecting ':' delimiter"}, {`{"a":`, "5 Expecting value"}, {`{"a":}`, "5 Expecting value"},
		{`{"a":1`, "6 Expecting ',' delimiter"}, {`{"a":1 "b":2}`, "7 Expecting ',' delimiter"},
		{`{"a":1,}`, "6 Illegal trailing comma before end of object"}, {`{"é😀":1,}`, "7 Illegal trailing comma before end of object"},
		{`"abc`, "0 Unterminated string starting at"}, {`["中", "abc`, "6 Unterminated string starting at"}, {`"\`, "0 Unterminated string starting at"}, {`"\"`, "0 Unterminated string starting at"},
		{"\"a\nb\"", "2 Invalid control character at"}, {"\"é\x00\"", "2 Invalid control character at"}, {"\"\x7f\"", "ok"},
		{`"\x"`, `1 Invalid \escape`}, {`"é\é"`, `2 Invalid \escape`}, {`"\U0041"`, `1 Invalid \escape`},
		{`"\u12`, `2 Invalid \uXXXX escape`}, {`"\u1234`, `2 Invalid \uXXXX escape`}, {`"\u12g4"`, `2 Invalid \uXXXX escape`}, {`"\u 123"`, `2 Invalid \uXXXX escape`},
		{`"\ud800\uzzzz"`, `8 Invalid \uXXXX escape`}, {`"\ud800\u12`, `8 Invalid \uXXXX escape`},
		{deep(maxDepth, "[]"), "ok"}, {deep(maxDepth+1, "[]"), "unparsable"}, {strings.Repeat("[", 2*scanBuffer), "unparsable"},
		{strings.Repeat(`{"a":`, maxDepth) + "1" + strings.Repeat("}", maxDepth), "ok"},
		{strings.Repeat("9", maxDigits), "ok"}, {"-" + strings.Repeat("9", maxDigits), "ok"},
		{strings.Repeat("9", maxDigits+1), "unparsable"}, {"[1," + strings.Repeat("9", 2*scanBuffer) + "]", "unparsable"},
		{"\"\xff\"", "unparsable"}, {"\"\xed\xa0\x80\"", "unparsable"}, {"{\"a\"\xc3", "unparsable"}, {"[1,]\xff", "unparsable"},
	}
	for _, test := range tests {
		for how, slow := range slowly {
			_, err := readDoc(slow(strings.NewReader(test.doc)))
			if got := outcome(err); got != test.want {
				t.Errorf("%.60q %s: %s, want %s", test.doc, how, got, test.want)
			}
		}
	}
}

// The scanner's buffer ends anywhere in a document and every token survives it.
func TestScanBufferEdges(t *testing.T) {
	const tail = `","code":"a\ud83d\ude00\"é","n":-12.5e3,"b":true,"x":[null,{"y":-Infinity}]}`
	head := `{"pad":"`
	for shift := -len(tail) - 2; shift <= 2; shift++ {
		pad := strings.Repeat("p", scanBuffer-len(head)+shift)
		var code []byte
		var size int64
		var n value
		d, err := readDoc(strings.NewReader(head+pad+tail), codeField("code", 100, &code, &size),
			field{name: "n", set: func(v *value) *issue { n = *v; return nil }})
		if err == nil {
			err = d.check(false)
		}
		if err != nil || string(code) != "a😀\"é" || size != int64(len(code)) || n.num != "-12.5e3" || n.kind != float {
			t.Fatalf("shift %d: %v, code %q of %d bytes, n %q", shift, err, code, size, n.num)
		}
	}
}

func TestScanPositionsPastBuffer(t *testing.T) {
	for _, n := range []int{scanBuffer - 1, scanBuffer, scanBuffer + 1, 5*scanBuffer + 7} {
		doc := `["` + strings.Repeat("é", n) + `",]`
		_, err := readDoc(strings.NewReader(doc))
		if got, want := outcome(err), fmt.Sprint(n+3, " Illegal trailing comma before end of array"); got != want {
			t.Errorf("%d characters: %s, want %s", n, got, want)
		}
	}
}

// An error of the source beats what it does to the text.
func TestScanSourceError(t *testing.T) {
	broken := errors.New("broken")
	for _, doc := range []string{``, `{"a":1`, `{"a":"é`[:7], `{"a":1,} `, `"`, `[[[`, `1`} {
		_, err := readDoc(io.MultiReader(strings.NewReader(doc), iotest.ErrReader(broken)))
		if !errors.Is(err, broken) || !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", doc, err)
		}
	}
	if _, err := readDoc(iotest.ErrReader(io.ErrUnexpectedEOF)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a body cut short: %v", err)
	}
}

func TestScanNoProgress(t *testing.T) {
	_, err := readDoc(io.MultiReader(strings.NewReader(`{"a":`), stuckReader{}))
	if !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("got %v", err)
	}
}

type stuckReader struct{}

func (stuckReader) Read([]byte) (int, error) { return 0, nil }

// A document with a huge number of small tokens takes time in proportion.
func TestScanManyTokens(t *testing.T) {
	for _, token := range []string{`1,`, `"",`, `[],`, `{"a":0},`} {
		doc := "[" + strings.Repeat(token, 1<<17) + "0,]"
		_, err := readDoc(strings.NewReader(doc))
		if got, want := outcome(err), fmt.Sprint(len(doc)-2, " Illegal trailing comma before end of array"); got != want {
			t.Errorf("%s: %s, want %s", token, got, want)
		}
	}
}

func TestPlainLen(t *testing.T) {
	for c := range 256 {
		for at := range 20 {
			p := bytes.Repeat([]byte{0xFF}, 20)
			p[at] = byte(c)
			want := 20
			if c < ' ' || c == '"' || c == '\\' {
				want = at
			}
			if got := plainLen(p); got != want {
				t.Fatalf("%#x at %d: %d, want %d", c, at, got, want)
			}
		}
	}
}

func FuzzScan(f *testing.F) {
	for _, seed := range []string{
		`{"code":"a\u00e9\ud83d\ude00","x":[1,-2.5e+3,true,false,null,{"y":""}]}`, `[1,]`, `{"a":1,}`, `"\ud800"`, `01`, `{"code":"a","code":1}`,
	} {
		f.Add([]byte(seed), uint16(3))
	}
	f.Fuzz(func(t *testing.T, doc []byte, split uint16) {
		if _, width, skip := sniff(doc); width > 1 || skip > 0 || len(doc) > maxDigits {
			t.Skip("another encoding, or beyond our bounds")
		}
		if bytes.Contains(doc, []byte("NaN")) || bytes.Contains(doc, []byte("Infinity")) {
			t.Skip("encoding/json has no such numbers")
		}
		at := min(int(split), len(doc))
		var code string
		d, err := readDoc(io.MultiReader(bytes.NewReader(doc[:at]), bytes.NewReader(doc[at:])), stringField("code", &code))
		accepted := err == nil && len(doc) > 0
		if want := json.Valid(doc) && utf8.Valid(doc); accepted != want {
			t.Fatalf("%q: %v, but valid is %t", doc, err, want)
		}
		if !accepted {
			return
		}
		var oracle any
		if err := json.Unmarshal(doc, &oracle); err != nil {
			return // a number out of range, for one
		}
		members, isObject := oracle.(map[string]any)
		if isObject != (d.top.kind == object) {
			t.Fatalf("%q: kind %d", doc, d.top.kind)
		}
		echoed := d.top.input()
		if isObject {
			echoed = d.whole.value()
		}
		if !json.Valid(echoed) {
			t.Fatalf("%q: echo %q is not JSON", doc, echoed)
		}
		if d.check(true) == nil && isObject {
			want, isString := members["code"].(string)
			if got := strings.ToValidUTF8(code, "\uFFFD"); isString && got != want && utf8.ValidString(code) {
				t.Fatalf("%q: code %q, want %q", doc, got, want)
			}
		}
	})
}
