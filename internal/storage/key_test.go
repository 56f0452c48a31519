package storage_test

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// bad stands for fault.Invalid.
const bad = "\x00"

func wantKey(t *testing.T, what, got string, err error, want string) {
	t.Helper()
	if want != bad {
		if err != nil || got != want {
			t.Errorf("%s = %q, %v, want %q", what, got, err, want)
		}
		return
	}
	var e *fault.Error
	if !errors.As(err, &e) || e.Kind != fault.Invalid || e.Detail != "invalid storage key" || got != "" {
		t.Errorf("%s = %q, %v, want invalid storage key", what, got, err)
	}
}

func TestKey(t *testing.T) {
	for _, c := range []struct{ prefix, key, put, del string }{
		{"aivory/", "a", "aivory/a", "aivory/a"},
		{"aivory", "a", "aivory/a", "aivory/a"},
		{"aivory///", "a", "aivory/a", "aivory/a"},
		{"a/b/", "c/d", "a/b/c/d", "a/b/c/d"},
		{"", "dp", "workspaces/dp", "workspaces/dp"},
		{"workspaces/", "dp", "workspaces/dp", "workspaces/dp"},
		{"aivory/", "文 件+&=.txt", "aivory/文 件+&=.txt", "aivory/文 件+&=.txt"},
		{"aivory/", "dir/", "aivory/dir/", "aivory/dir/"},
		{"aivory/", "a//b", "aivory/a//b", "aivory/a//b"},
		{"aivory/", ".", "aivory/.", "aivory/."},
		// A full key is one for deletion alone.
		{"aivory/", "aivory/d1", "aivory/aivory/d1", "aivory/d1"},
		{"aivory", "aivory/mineru/d.pdf", "aivory/aivory/mineru/d.pdf", "aivory/mineru/d.pdf"},
		{"aivory/", "other/x", "aivory/other/x", "aivory/other/x"},
		{"aivory/", "aivoryx/y", "aivory/aivoryx/y", "aivory/aivoryx/y"},
		{"aivory/", "aivory", "aivory/aivory", "aivory/aivory"},
		{"aivory/", "aivory/", "aivory/aivory/", bad},
		{"aivory/", "aivory//x", "aivory/aivory//x", bad},
		{"", "workspaces/dp", "workspaces/workspaces/dp", "workspaces/dp"},
		// What no key may be.
		{"aivory/", "", bad, bad},
		{"aivory/", "/abs", bad, bad},
		{"aivory/", "///", bad, bad},
		{"aivory/", "../b", bad, bad},
		{"aivory/", "a/../b", bad, bad},
		{"aivory/", "a..b", bad, bad},
		{"aivory/", "..", bad, bad},
		{"aivory/", "a\x00b", bad, bad},
		{"aivory/", "a\x00", bad, bad},
		{"../x", "a", bad, bad},
		{"a..b", "a", bad, bad},
		{"/", "a", bad, bad},
		{"///", "a", bad, bad},
		{"/abs/", "a", bad, bad},
		{"a\x00", "a", bad, bad},
		{"p", strings.Repeat("k", 1022), "p/" + strings.Repeat("k", 1022), "p/" + strings.Repeat("k", 1022)},
		{"p", strings.Repeat("k", 1023), bad, bad},
	} {
		cfg := storage.Config{Prefix: c.prefix}
		got, err := cfg.Key(c.key)
		wantKey(t, c.prefix+" Key "+c.key, got, err, c.put)
		got, err = cfg.FullKey(c.key)
		wantKey(t, c.prefix+" FullKey "+c.key, got, err, c.del)
	}
}

func TestArchiveKey(t *testing.T) {
	for prefix, want := range map[string]string{
		"":           "workspaces/workspaces/conv.tgz",
		"ws":         "ws/workspaces/conv.tgz",
		"aivory/":    "aivory/workspaces/conv.tgz",
		"../esc":     bad,
		"workspaces": "workspaces/workspaces/conv.tgz",
	} {
		got, err := storage.Config{Prefix: prefix}.ArchiveKey("conv")
		wantKey(t, prefix, got, err, want)
	}
}

func TestStem(t *testing.T) {
	long := strings.Repeat("K", 127) + "_"
	for key, valid := range map[string]bool{
		"conv_6211e497a1db": true, "A-z_09": true, long: true, "-": true,
		long + "x": false, "": false, "a/b": false, "conv.1": false, "键": false, "abc\n": false, " a": false, "a b": false, "a\x00": false, "ａ": false,
	} {
		want := "sid"
		if valid {
			want = key
		}
		if got := storage.Stem(key, "sid"); got != want || storage.ValidArchiveKey(key) != valid {
			t.Errorf("Stem(%q) = %q, want %q", key, got, want)
		}
	}
}

// Whatever the prefix and the key, what comes out lies under the prefix.
func TestKeysStayUnderPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.SampledFrom([]rune("ab./\x00 键")))
		cfg := storage.Config{Prefix: text.Draw(t, "prefix")}
		key := text.Draw(t, "key")
		base := strings.TrimRight(cfg.Prefix, "/") + "/"
		if cfg.Prefix == "" {
			base = storage.DefaultPrefix
		}
		for _, full := range []func(string) (string, error){cfg.Key, cfg.FullKey} {
			got, err := full(key)
			if err != nil {
				if !fault.Is(err, fault.Invalid) || got != "" {
					t.Fatalf("%q, %v", got, err)
				}
				continue
			}
			rest, under := strings.CutPrefix(got, base)
			if !under || rest == "" || rest[0] == '/' || strings.Contains(got, "..") || got[0] == '/' {
				t.Fatalf("prefix %q and key %q give %q", cfg.Prefix, key, got)
			}
		}
		// A key that was given out is taken back.
		if put, err := cfg.Key(key); err == nil {
			if again, err := cfg.FullKey(put); err != nil || again != put {
				t.Fatalf("the full key %q becomes %q, %v", put, again, err)
			}
		}
	})
}
