package api

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestEchoCut(t *testing.T) {
	for _, n := range []int{0, 1, maxEcho - 3, maxEcho - 2, maxEcho - 1, maxEcho, maxEcho + 1, 2 * maxEcho, 3 * scanBuffer} {
		for _, c := range []string{"x", "é", "中", "😀", `\n`, `\ud800`} {
			doc := `{"a":["` + strings.Repeat(c, n) + `"],"b":1}`
			var b value
			d, err := readDoc(strings.NewReader(doc), field{name: "a", set: func(v *value) *issue { b = *v; return nil }}, field{name: "c"})
			if err != nil {
				t.Fatal(err)
			}
			if err := d.check(false); err == nil {
				t.Fatal("the missing field is not missed")
			}
			for what, echoed := range map[string]json.RawMessage{"whole": d.whole.value(), "part": b.input()} {
				if !json.Valid(echoed) || !utf8.Valid(echoed) {
					t.Errorf("%d of %q: %s is not JSON: %.80q", n, c, what, echoed)
				}
				// A cut value is a string, in which every character may take two.
				if len(echoed) > 2*maxEcho+8 {
					t.Errorf("%d of %q: %s has %d bytes", n, c, what, len(echoed))
				}
				if small := len(doc) < maxEcho; small != (echoed[0] != '"') {
					t.Errorf("%d of %q: %s is %.20q", n, c, what, echoed)
				}
			}
		}
	}
}
