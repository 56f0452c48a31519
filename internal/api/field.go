package api

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxString bounds, in bytes, the strings of a request that have no limit of
// their own, and all strings of a storage block together.
const maxString = 64 << 10

// value is what a field of a request body was given.
type value struct {
	kind     kind
	flag     bool           // of a boolean
	num      string         // of a number, as written
	str      prefix         // of a string
	members  map[string]any // of an object: its strings, where the field wants them
	size     int            // bytes of members
	overflow bool           // members are not complete
	echo     echo           // of anything but a string
}

// input is the value as a validation error shows it.
func (v *value) input() json.RawMessage {
	if v.kind == text {
		return echoString(v.str.text, !v.str.whole())
	}
	return v.echo.value()
}

// issue is one entry of a 422, as pydantic 2 writes it.
type issue struct {
	Type  string          `json:"type"`
	Loc   []any           `json:"loc"`
	Msg   string          `json:"msg"`
	Input json.RawMessage `json:"input"`
	Ctx   map[string]any  `json:"ctx,omitempty"`
}

func newIssue(typ, msg string, input json.RawMessage) *issue {
	return &issue{Type: typ, Msg: msg, Input: input}
}

// field is one field of a request body: how its value is read and where it
// goes. The conversions are those of pydantic 2 in lax mode.
type field struct {
	name     string
	optional bool    // it may be missing, or null
	keep     int     // bytes of a string that are kept
	sink     *upload // takes a string instead
	dict     bool    // the string members of an object are kept
	set      func(*value) *issue
}

// orNull makes a field optional.
func (f field) orNull() field {
	f.optional = true
	return f
}

// stringField takes a string. What is longer than maxString comes cut; no such
// string is good for anything.
func stringField(name string, dst *string) field {
	return field{name: name, keep: maxString, set: func(v *value) *issue {
		if v.kind != text {
			return newIssue("string_type", "Input should be a valid string", v.input())
		}
		*dst = string(v.str.text)
		return nil
	}}
}

// codeField takes a string of at most limit characters. One that has more bytes
// than that comes cut; size tells.
func codeField(name string, limit int64, dst *[]byte, size *int64) field {
	return field{name: name, keep: int(limit), set: func(v *value) *issue {
		if v.kind != text {
			return newIssue("string_type", "Input should be a valid string", v.input())
		}
		if v.str.runes > limit {
			i := newIssue("string_too_long", "String should have at most "+strconv.FormatInt(limit, 10)+" characters", v.input())
			i.Ctx = map[string]any{"max_length": limit}
			return i
		}
		if v.str.whole() && !utf8.Valid(v.str.text) { // a lone surrogate: the rest was checked
			return newIssue("string_unicode", "Input should be a valid string, unable to parse raw data as a unicode string", v.input())
		}
		*dst, *size = v.str.text, v.str.size
		return nil
	}}
}

// uploadField takes a base64 string.
func uploadField(name string, dst *upload) field {
	return field{name: name, sink: dst, set: func(v *value) *issue {
		if v.kind != text {
			return newIssue("string_type", "Input should be a valid string", v.input())
		}
		return nil
	}}
}

// dictField takes an object, of which it keeps the members that are strings.
func dictField(name string, dst *map[string]any) field {
	return field{name: name, dict: true, keep: maxEcho + 1, set: func(v *value) *issue {
		switch {
		case v.kind != object:
			return newIssue("dict_type", "Input should be a valid dictionary", v.input())
		case v.overflow:
			return newIssue("value_error", "Value error, the strings of a storage block should have at most "+strconv.Itoa(maxString)+" bytes", v.input())
		}
		*dst = v.members
		return nil
	}}
}

// intField takes an integer; one beyond 64 bits is taken as the nearest.
func intField(name string, dst **int64) field {
	return field{name: name, keep: maxDigits + 1, set: func(v *value) *issue {
		n, i := v.int()
		if i == nil {
			*dst = &n
		}
		return i
	}}
}

func (v *value) int() (int64, *issue) {
	switch v.kind {
	case integer:
		n, _ := clamp(v.num)
		return n, nil
	case boolean:
		if v.flag {
			return 1, nil
		}
		return 0, nil
	case float:
		switch f := v.float(); {
		case math.IsInf(f, 0) || math.IsNaN(f):
			return 0, newIssue("finite_number", "Input should be a finite number", v.input())
		case f != math.Trunc(f):
			return 0, newIssue("int_from_float", "Input should be a valid integer, got a number with a fractional part", v.input())
		case f <= math.MinInt64 || f >= math.MaxInt64:
			return 0, v.intTooLong()
		default:
			return int64(f), nil
		}
	case text:
		if v.str.size > maxDigits {
			return 0, v.intTooLong()
		}
		if n, ok := parseInt(string(v.str.text)); ok {
			return n, nil
		}
		return 0, newIssue("int_parsing", "Input should be a valid integer, unable to parse string as an integer", v.input())
	}
	return 0, newIssue("int_type", "Input should be a valid integer", v.input())
}

func (v *value) intTooLong() *issue {
	return newIssue("int_parsing_size", "Unable to parse input string as an integer, exceeded maximum size", v.input())
}

func (v *value) float() float64 {
	switch v.num {
	case "NaN", "Infinity", "-Infinity":
		return math.NaN()
	}
	f, _ := strconv.ParseFloat(v.num, 64) // out of range is infinite
	return f
}

// parseInt reads what pydantic takes for an integer in a string: white space
// around it, single underscores between digits, a fraction of zeros.
func parseInt(s string) (int64, bool) {
	s = strings.TrimFunc(s, unicode.IsSpace)
	if whole, fraction, ok := strings.Cut(s, "."); ok && strings.Trim(fraction, "0") == "" {
		s = whole
	}
	if strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") || strings.Contains(s, "__") {
		return 0, false
	}
	return clamp(strings.ReplaceAll(s, "_", ""))
}

// clamp reads a decimal integer of any length.
func clamp(s string) (int64, bool) {
	digits := strings.TrimLeft(s, "+-")
	if digits == "" || len(s)-len(digits) > 1 || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, true
	}
	n, ok := new(big.Int).SetString(s, 10)
	if !ok {
		return 0, false
	}
	if n.Sign() < 0 {
		return math.MinInt64, true
	}
	return math.MaxInt64, true
}

// boolField takes a boolean.
func boolField(name string, dst *bool) field {
	return field{name: name, keep: maxEcho + 1, set: func(v *value) *issue {
		b, i := v.bool()
		if i == nil {
			*dst = b
		}
		return i
	}}
}

func (v *value) bool() (bool, *issue) {
	switch v.kind {
	case boolean:
		return v.flag, nil
	case text:
		switch strings.ToLower(string(v.str.text)) {
		case "0", "f", "n", "no", "off", "false":
			return false, nil
		case "1", "t", "y", "on", "yes", "true":
			return true, nil
		}
		return false, v.boolParsing()
	case integer, float:
		if v.kind == float && v.float() != math.Trunc(v.float()) {
			break
		}
		switch f, _ := strconv.ParseFloat(v.num, 64); f {
		case 0:
			return false, nil
		case 1:
			return true, nil
		}
		return false, v.boolParsing()
	}
	return false, newIssue("bool_type", "Input should be a valid boolean", v.input())
}

func (v *value) boolParsing() *issue {
	return newIssue("bool_parsing", "Input should be a valid boolean, unable to interpret input", v.input())
}
