package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

// validationError is a body that can be read but not accepted.
type validationError struct{ issues []*issue }

// Error names what was wrong and where, not what was sent.
func (e *validationError) Error() string {
	var b strings.Builder
	for i, x := range e.issues {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s at %v", x.Type, x.Loc)
	}
	return b.String()
}

// tooLargeError is a body beyond its limit in bytes.
type tooLargeError struct{ limit int64 }

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("request body exceeds %d bytes", e.limit)
}

// errSlowBody is a body of which nothing came for too long.
var errSlowBody = errors.New("request body timed out")

// bodyReader reads a request body, waits only so long for each part of it, and
// says in the service's own terms what went wrong.
type bodyReader struct {
	src  io.Reader
	w    *response
	n    int64
	idle int // reads in a row that gave nothing
	err  error
}

func (b *bodyReader) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	b.w.expectRead()
	n, err := b.src.Read(p)
	b.n += int64(n)
	if b.idle++; n > 0 {
		b.idle = 0
	} else if err == nil && b.idle == 100 {
		err = io.ErrNoProgress
	}
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil || err == io.EOF:
		b.err = err
	case errors.As(err, &tooLarge):
		b.err = &tooLargeError{tooLarge.Limit}
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.err = errSlowBody
	default:
		b.err = fault.Wrap(errUnparsable.Kind, errUnparsable.Detail, err)
	}
	return n, b.err
}

// readBody reads a request's body to its end, sets the fields and reports what
// is wrong with it. Where the body may be left out, so may null stand for it;
// the fields then keep the values that they have.
func readBody(w *response, r *http.Request, mayLack bool, fields []field) error {
	body := &bodyReader{src: r.Body, w: w}
	err := decodeBody(body, r.Header, mayLack, fields)
	if body.err == io.EOF {
		w.endRead()
	} else {
		w.lost = true
	}
	return err
}

func decodeBody(body *bodyReader, h http.Header, mayLack bool, fields []field) error {
	doc := document{fields: fields, values: make([]value, len(fields))}
	switch {
	case !isIdentity(h):
		return drain(body, errUnparsable)
	case !isJSON(h):
		if err := doc.readRaw(body); err != nil {
			return err
		}
	default:
		if err := doc.readJSON(body); err != nil {
			return err
		}
	}
	return doc.check(mayLack)
}

// drain reads what is left of src and returns what ended it, or else err: what
// is wrong with the size or the encoding of a body counts more than what is
// wrong in it.
func drain(src io.Reader, err error) error {
	if _, readErr := io.Copy(io.Discard, src); readErr != nil {
		return readErr
	}
	return err
}

func isIdentity(h http.Header) bool {
	e := h.Get("Content-Encoding")
	return e == "" || strings.EqualFold(e, "identity")
}

// isJSON tells whether a body is read as JSON: with a JSON media type, or none.
func isJSON(h http.Header) bool {
	t := h.Get("Content-Type")
	if t == "" {
		return true
	}
	t, _, _ = strings.Cut(t, ";")
	main, sub, _ := strings.Cut(strings.ToLower(strings.TrimSpace(t)), "/")
	return main == "application" && !strings.Contains(sub, "/") && (sub == "json" || strings.HasSuffix(sub, "+json"))
}

// document is a request body and what was found in it.
type document struct {
	fields []field
	values []value // of the fields, by index
	top    value   // the body itself, where it is no object
	whole  echo    // the body itself, where it is one
}

// readRaw reads a body that is not said to be JSON. It is never accepted, but
// an empty one is no body.
func (d *document) readRaw(body io.Reader) error {
	d.top.str.max = maxEcho
	if _, err := io.Copy(writerSink{&d.top.str}, body); err != nil {
		return err
	}
	if d.top.str.size > 0 {
		d.top.kind = text
	}
	return nil
}

type writerSink struct{ sink stringSink }

func (w writerSink) Write(p []byte) (int, error) {
	w.sink.add(p)
	return len(p), nil
}

var scanBuffers = sync.Pool{New: func() any { return new([scanBuffer]byte) }}

// readJSON reads a body of JSON to its end.
func (d *document) readJSON(body *bodyReader) error {
	buf := scanBuffers.Get().(*[scanBuffer]byte)
	defer scanBuffers.Put(buf)
	chars := newTextReader(body)
	s := &scanner{src: chars, buf: buf[:]}
	bad := d.scan(s)
	switch {
	case s.err != nil:
		return drain(body, s.err)
	case body.n == 0:
		return nil
	case bad != nil:
		return drain(chars, &validationError{[]*issue{{
			Type: "json_invalid", Loc: []any{"body", bad.pos}, Msg: "JSON decode error",
			Input: json.RawMessage("{}"), Ctx: map[string]any{"error": bad.msg},
		}}})
	}
	return nil
}

func (d *document) scan(s *scanner) *syntaxError {
	if s.next() != '{' {
		if bad := s.value(&field{keep: maxEcho}, &d.top); bad != nil {
			return bad
		}
		return s.end()
	}
	d.top.kind = object
	s.whole = &d.whole
	bad := s.object(func(key []byte) *syntaxError {
		for i := range d.fields {
			if f := &d.fields[i]; f.name == string(key) {
				return s.value(f, &d.values[i])
			}
		}
		return s.skip()
	})
	if bad != nil {
		return bad
	}
	return s.end()
}

// value reads the value that is next and keeps of it what the field wants. Of
// two values for one field the later counts.
func (s *scanner) value(f *field, v *value) *syntaxError {
	*v = value{}
	if f.sink != nil {
		f.sink.restart()
	}
	c := s.next()
	if c == '"' {
		v.kind = text
		if f.sink != nil {
			return s.str(f.sink)
		}
		v.str.max = f.keep
		return s.str(&v.str)
	}
	s.part = &v.echo
	defer func() { s.part = nil }()
	switch c {
	case '[':
		v.kind = array
		return s.skip()
	case '{':
		v.kind = object
		if f.dict {
			v.members = make(map[string]any)
			return s.object(func(key []byte) *syntaxError { return s.member(string(key), v) })
		}
		return s.skip()
	}
	var bad *syntaxError
	v.kind, v.flag, bad = s.scalar()
	if v.kind == integer || v.kind == float {
		v.num = string(s.num)
	}
	return bad
}

// member reads one member of an object whose strings are kept.
func (s *scanner) member(key string, v *value) *syntaxError {
	delete(v.members, key)
	if s.next() != '"' {
		return s.skip()
	}
	str := prefix{max: maxString - v.size}
	if bad := s.str(&str); bad != nil {
		return bad
	}
	v.size += len(key) + len(str.text)
	if !str.whole() || v.size > maxString {
		v.overflow = true
		return nil
	}
	v.members[key] = string(str.text)
	return nil
}

// check converts the values, in the order of the fields, and collects what is
// wrong with them.
func (d *document) check(mayLack bool) error {
	switch d.top.kind {
	case object:
	case absent, null:
		if mayLack {
			return nil
		}
		return &validationError{[]*issue{{Type: "missing", Loc: []any{"body"}, Msg: "Field required", Input: json.RawMessage("null")}}}
	default:
		i := newIssue("model_attributes_type", "Input should be a valid dictionary or object to extract fields from", d.top.input())
		i.Loc = []any{"body"}
		return &validationError{[]*issue{i}}
	}
	var issues []*issue
	for i := range d.fields {
		f, v := &d.fields[i], &d.values[i]
		var found *issue
		switch {
		case v.kind == absent && !f.optional:
			found = newIssue("missing", "Field required", d.whole.value())
		case v.kind == absent, v.kind == null && f.optional:
		default:
			found = f.set(v)
		}
		if found != nil {
			found.Loc = []any{"body", f.name}
			issues = append(issues, found)
		}
	}
	if issues != nil {
		return &validationError{issues}
	}
	return nil
}
