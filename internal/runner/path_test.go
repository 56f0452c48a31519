package runner

import (
	"strings"
	"testing"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

func TestCheckPath(t *testing.T) {
	for _, c := range []struct {
		path        string
		read, write bool
	}{
		{"a", true, true},
		{"a/b c/数据/😀.csv", true, true},
		{"a b .txt ", true, true},
		{"/workspace/a", true, true},
		{"./a/../b", true, true},
		{"/workspace/../workspace/a", true, true},
		{"...", true, true},
		{"a/..b", true, true},
		{"\xff", true, true},
		{"a\nb", true, true},
		{".", true, false},
		{"/workspace", true, false},
		{"/workspace/", true, false},
		{"a/", true, false},
		{"a/.", true, false},
		{"a/b/..", true, true}, // names a; the agent sees whether that is a file
		{"a/..", true, false},
		{"", false, false},
		{"a\x00b", false, false},
		{"..", false, false},
		{"../a", false, false},
		{"a/../../b", false, false},
		{"/", false, false},
		{"/etc/passwd", false, false},
		{"/workspacefoo/x", false, false},
		{"/workspace/../etc/x", false, false},
		{"//workspace/a", false, false},
		{"/workspace//a", true, true},
		{strings.Repeat("a/", 5000) + "b", true, true},
	} {
		for _, write := range []bool{false, true} {
			err := CheckPath(c.path, write)
			want := c.read && (!write || c.write)
			if (err == nil) != want || err != nil && !fault.Is(err, fault.Invalid) {
				t.Errorf("%.40q, write %v: %v", c.path, write, err)
			}
		}
	}
	r, d := fakeRunner(t, tidy)
	if err := r.Write(t.Context(), "../x", strings.NewReader(""), 0); !fault.Is(err, fault.Invalid) {
		t.Errorf("write: %v", err)
	}
	if _, _, err := r.Read(t.Context(), ""); !fault.Is(err, fault.Invalid) {
		t.Errorf("read: %v", err)
	}
	if d.dials != 0 {
		t.Error("dialled for a path that is no path")
	}
}
