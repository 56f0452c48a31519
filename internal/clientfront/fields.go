package clientfront

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hjxwz123/aivory-sandbox/client"
)

// fields are the members of a JSON object, each of which has to be asked for.
type fields struct {
	values map[string]json.RawMessage
	bad    *untyped // the first reason
}

// object reads a JSON object as a client could have written it: UTF-8, no name
// twice, nothing after it.
func object(body []byte) (*fields, *untyped) {
	malformed := &untyped{"malformed JSON"}
	if !utf8.Valid(body) || !json.Valid(body) {
		return nil, malformed
	}
	in := json.NewDecoder(bytes.NewReader(body))
	if first, err := in.Token(); err != nil || first != json.Delim('{') {
		return nil, &untyped{"no object"}
	}
	o := &fields{values: make(map[string]json.RawMessage)}
	for in.More() {
		name, err := in.Token()
		if err != nil {
			return nil, malformed
		}
		var value json.RawMessage
		if err := in.Decode(&value); err != nil {
			return nil, malformed
		}
		if _, twice := o.values[name.(string)]; twice {
			return nil, &untyped{"name that is there twice"}
		}
		o.values[name.(string)] = value
	}
	if _, err := in.Token(); err != nil {
		return nil, malformed
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return nil, malformed
	}
	return o, nil
}

func (o *fields) fail(reason string) {
	if o.bad == nil {
		o.bad = &untyped{reason}
	}
}

// done says why the object cannot be sent, also for members that nobody asked for.
func (o *fields) done() *untyped {
	if len(o.values) > 0 {
		o.fail("field that the client does not send")
	}
	return o.bad
}

// need asks for a member to be there and not to be null.
func (o *fields) need(name string) {
	switch value, ok := o.values[name]; {
	case !ok:
		o.fail("missing field")
	case string(value) == "null":
		o.fail(wrongType)
	}
}

// take returns a member's value; false where it is missing or null.
func (o *fields) take(name string) (json.RawMessage, bool) {
	value, ok := o.values[name]
	delete(o.values, name)
	return value, ok && string(value) != "null"
}

const wrongType = "type of a field"

// text is a string, empty where it is missing.
func (o *fields) text(name string) string {
	value, ok := o.take(name)
	if !ok {
		return ""
	}
	var s string
	if value[0] != '"' || json.Unmarshal(value, &s) != nil {
		o.fail(wrongType)
	} else if !whole(string(value)) {
		o.fail("string that is no Unicode")
	}
	return s
}

// must is text that cannot be missing.
func (o *fields) must(name string) string {
	o.need(name)
	return o.text(name)
}

// whole tells whether the surrogates among a JSON string's escapes are all in
// pairs. Go strings hold no others.
func whole(quoted string) bool {
	unit := func(s string) (uint64, bool) {
		if len(s) < 6 || s[:2] != `\u` {
			return 0, false
		}
		n, err := strconv.ParseUint(s[2:6], 16, 16)
		return n, err == nil
	}
	for i := strings.IndexByte(quoted, '\\'); i >= 0; {
		step := 2
		if n, ok := unit(quoted[i:]); ok {
			step = 6
			if n >= 0xd800 && n < 0xe000 {
				low, ok := unit(quoted[i+6:])
				if n >= 0xdc00 || !ok || low < 0xdc00 || low >= 0xe000 {
					return false
				}
				step = 12
			}
		}
		next := strings.IndexByte(quoted[i+step:], '\\')
		if next < 0 {
			return true
		}
		i += step + next
	}
	return true
}

func (o *fields) flag(name string) (b bool) {
	if value, ok := o.take(name); ok && json.Unmarshal(value, &b) != nil {
		o.fail(wrongType)
	}
	return b
}

// duration is a whole number of units, 0 where it is missing.
func (o *fields) duration(name string, unit time.Duration, least int64) time.Duration {
	value, ok := o.take(name)
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		o.fail(wrongType)
	} else if err != nil || n < least || n > math.MaxInt64/int64(unit) || n < math.MinInt64/int64(unit) {
		o.fail("number that is no duration")
	}
	return time.Duration(n) * unit
}

// bytes are a string of Base64 in the one form that an encoder gives.
func (o *fields) bytes(name string) []byte {
	text := o.must(name)
	data, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || strings.ContainsAny(text, "\r\n") {
		o.fail("Base64 that no encoder gives")
	}
	return data
}

// storage is a storage block, nil where it is missing.
func (o *fields) storage(name string) *client.Storage {
	value, ok := o.take(name)
	if !ok {
		return nil
	}
	block, bad := object(value)
	if bad != nil {
		o.fail(wrongType)
		return nil
	}
	var storage client.Storage
	v := reflect.ValueOf(&storage).Elem()
	for i := range v.NumField() {
		member, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		v.Field(i).SetString(block.text(member))
	}
	if bad := block.done(); bad != nil {
		o.fail("storage block: " + bad.reason)
	}
	return &storage
}

// mustStorage is a storage block of a call that always has one.
func (o *fields) mustStorage(name string) client.Storage {
	if storage := o.storage(name); storage != nil {
		return *storage
	}
	return client.Storage{} // which is sent, and is as ineffective as none
}
