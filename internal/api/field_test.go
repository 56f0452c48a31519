package api

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
)

// convert reads {"f": doc} into one field and returns its issue.
func convert(t *testing.T, doc string, f field) *issue {
	t.Helper()
	d, err := readDoc(strings.NewReader(`{"f":`+doc+`}`), f)
	if err == nil {
		err = d.check(false)
	}
	var v *validationError
	if errors.As(err, &v) && len(v.issues) == 1 {
		return v.issues[0]
	}
	if err != nil {
		t.Fatalf("%.60s: %v", doc, err)
	}
	return nil
}

// like tells whether an issue has that type and shows that input.
func (i *issue) like(typ, input string) bool {
	return i != nil && i.Type == typ && string(i.Input) == input && i.Loc[0] == "body" && i.Loc[1] == "f"
}

func TestIntField(t *testing.T) {
	for doc, want := range map[string]int64{
		`5000`: 5000, `-5`: -5, `0`: 0, `-0`: 0, `5000.0`: 5000, `5e3`: 5000, `-0.0`: 0, `true`: 1, `false`: 0,
		`"5000"`: 5000, `" 5000 "`: 5000, `"\t5\n"`: 5, `"5_000"`: 5000, `"5000.0"`: 5000, `"5."`: 5, `"+5"`: 5, `"-5"`: -5, `"007"`: 7,
		`10000000000000000000000000`: math.MaxInt64, `-10000000000000000000000000`: math.MinInt64, `"10000000000000000000000000"`: math.MaxInt64,
		`"` + strings.Repeat("9", maxDigits) + `"`: math.MaxInt64, `9223372036854775807`: math.MaxInt64,
	} {
		var got *int64
		if i := convert(t, doc, intField("f", &got)); i != nil || *got != want {
			t.Errorf("%.40s: %v %+v, want %d", doc, got, i, want)
		}
	}
	for doc, typ := range map[string]string{
		`5000.5`: "int_from_float", `1e-3`: "int_from_float",
		`1e25`: "int_parsing_size", `"` + strings.Repeat("9", maxDigits+1) + `"`: "int_parsing_size", `"` + strings.Repeat("x", 1<<20) + `"`: "int_parsing_size",
		`NaN`: "finite_number", `Infinity`: "finite_number", `-Infinity`: "finite_number", `1e999`: "finite_number",
		`""`: "int_parsing", `" "`: "int_parsing", `"x"`: "int_parsing", `"0x10"`: "int_parsing", `"5000.5"`: "int_parsing", `"1e3"`: "int_parsing",
		`"_5"`: "int_parsing", `"5_"`: "int_parsing", `"5__0"`: "int_parsing", `"+-5"`: "int_parsing", `"."`: "int_parsing", `"٣"`: "int_parsing", `"\ud800"`: "int_parsing",
		`[]`: "int_type", `{}`: "int_type", `null`: "int_type",
	} {
		var got *int64
		i := convert(t, doc, intField("f", &got))
		if i == nil || i.Type != typ || got != nil || !json.Valid(i.Input) {
			t.Errorf("%.40s: %+v, want %s", doc, i, typ)
		}
	}
	var got *int64
	if i := convert(t, `null`, intField("f", &got).orNull()); i != nil || got != nil {
		t.Errorf("null: %+v, %v", i, got)
	}
	for doc, input := range map[string]string{`NaN`: `null`, `1e999`: `null`, `5000.5`: `5000.5`, `"x"`: `"x"`, `[ 1, {"a" :"é\u00e9"} ]`: `[1,{"a":"éé"}]`, `"\ud800"`: `"���"`} {
		if i := convert(t, doc, intField("f", &got)); string(i.Input) != input {
			t.Errorf("%s is shown as %s", doc, i.Input)
		}
	}
}

func TestBoolField(t *testing.T) {
	for doc, want := range map[string]bool{
		`true`: true, `1`: true, `1.0`: true, `"1"`: true, `"t"`: true, `"T"`: true, `"y"`: true, `"on"`: true, `"YES"`: true, `"True"`: true,
		`false`: false, `0`: false, `-0.0`: false, `"0"`: false, `"f"`: false, `"n"`: false, `"off"`: false, `"No"`: false, `"FALSE"`: false,
	} {
		got := !want
		if i := convert(t, doc, boolField("f", &got)); i != nil || got != want {
			t.Errorf("%s: %t, %+v", doc, got, i)
		}
	}
	for doc, typ := range map[string]string{
		`2`: "bool_parsing", `-1`: "bool_parsing", `2.0`: "bool_parsing", `10000000000000000000000000`: "bool_parsing",
		`""`: "bool_parsing", `"maybe"`: "bool_parsing", `" true"`: "bool_parsing", `"2"`: "bool_parsing",
		`[]`: "bool_type", `{}`: "bool_type", `null`: "bool_type", `0.5`: "bool_type", `NaN`: "bool_type", `1e999`: "bool_parsing",
	} {
		var got bool
		if i := convert(t, doc, boolField("f", &got)); i == nil || i.Type != typ {
			t.Errorf("%s: %+v, want %s", doc, i, typ)
		}
	}
}

func TestStringField(t *testing.T) {
	var got string
	if i := convert(t, `"a\u00e9\ud83d\ude00\u0000"`, stringField("f", &got)); i != nil || got != "aé😀\x00" {
		t.Errorf("%q, %+v", got, i)
	}
	// Not Unicode, and left for whoever uses it to refuse.
	if i := convert(t, `"\ud800"`, stringField("f", &got)); i != nil || got != "\xed\xa0\x80" {
		t.Errorf("%q, %+v", got, i)
	}
	for doc, input := range map[string]string{`1`: `1`, `true`: `true`, `null`: `null`, `{}`: `{}`, `["a"]`: `["a"]`} {
		if i := convert(t, doc, stringField("f", &got)); !i.like("string_type", input) {
			t.Errorf("%s: %+v", doc, i)
		}
	}
	got = "default"
	if i := convert(t, `null`, stringField("f", &got).orNull()); i != nil || got != "default" {
		t.Errorf("null: %q, %+v", got, i)
	}
}

func TestCodeField(t *testing.T) {
	const limit = 10
	for doc, want := range map[string]struct {
		size int64
		typ  string
	}{
		`""`: {0, ""}, `"0123456789"`: {10, ""}, `"01234567890"`: {0, "string_too_long"},
		`"éééééééééé"`: {20, ""}, `"ééééééééééé"`: {0, "string_too_long"}, `"中中中中中中中中中中"`: {30, ""},
		`"\ud83d\ude00"`: {4, ""}, `"\ud800"`: {0, "string_unicode"}, `1`: {0, "string_type"},
	} {
		var code []byte
		var size int64
		i := convert(t, doc, codeField("f", limit, &code, &size))
		if typ := want.typ; (typ == "") != (i == nil) || i != nil && i.Type != typ || size != want.size || len(code) > limit {
			t.Errorf("%s: %d bytes, kept %d, %+v", doc, size, len(code), i)
		}
		if i != nil && i.Type == "string_too_long" && (i.Ctx["max_length"] != int64(limit) || i.Msg != "String should have at most 10 characters") {
			t.Errorf("%s: %+v", doc, i)
		}
	}
}

func TestDictField(t *testing.T) {
	var got map[string]any
	doc := `{"a":"1","b":[1,{"c":"x"}],"d":null,"a":"2","e":"x","e":5,"f":""}`
	if i := convert(t, doc, dictField("f", &got)); i != nil || len(got) != 2 || got["a"] != "2" || got["f"] != "" {
		t.Errorf("%v, %+v", got, i)
	}
	if i := convert(t, `{}`, dictField("f", &got)); i != nil || got == nil || len(got) != 0 {
		t.Errorf("an empty object: %v, %+v", got, i)
	}
	for doc, input := range map[string]string{`[]`: `[]`, `"x"`: `"x"`, `1`: `1`, `null`: `null`} {
		if i := convert(t, doc, dictField("f", &got)); !i.like("dict_type", input) {
			t.Errorf("%s: %+v", doc, i)
		}
	}
	// Bounded, whatever is in it.
	for _, doc := range []string{
		`{"a":"` + strings.Repeat("x", maxString) + `"}`,
		`{` + strings.Repeat(`"key":"`+strings.Repeat("x", 1000)+`",`, 100) + `"a":""}`,
	} {
		if i := convert(t, doc, dictField("f", &got)); i == nil || i.Type != "value_error" {
			t.Errorf("%d bytes: %+v", len(doc), i)
		}
	}
	if i := convert(t, `{"x":[`+strings.Repeat(`"`+strings.Repeat("x", 1000)+`",`, 100)+`""]}`, dictField("f", &got)); i != nil {
		t.Errorf("what is not kept counts: %+v", i)
	}
}

func TestMissingFields(t *testing.T) {
	var a, b string
	d, err := readDoc(strings.NewReader(`{"x":[1,{"y":null}],"c":true}`), stringField("a", &a), stringField("b", &b).orNull(), stringField("c", &b))
	if err != nil {
		t.Fatal(err)
	}
	var v *validationError
	if !errors.As(d.check(false), &v) || len(v.issues) != 2 {
		t.Fatalf("got %v", v)
	}
	got, err := json.Marshal(v.issues)
	want := `[{"type":"missing","loc":["body","a"],"msg":"Field required","input":{"x":[1,{"y":null}],"c":true}},` +
		`{"type":"string_type","loc":["body","c"],"msg":"Input should be a valid string","input":true}]`
	if err != nil || string(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestLastOfTwoCounts(t *testing.T) {
	var s string
	d, err := readDoc(strings.NewReader(`{"a":1,"\u0061":"x","a":"y","aa":"z"}`), stringField("a", &s))
	if err == nil {
		err = d.check(false)
	}
	if err != nil || s != "y" {
		t.Errorf("%q, %v", s, err)
	}
}
