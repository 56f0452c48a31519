package seal

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"
)

func TestValue(t *testing.T) {
	k := FromSecret("secret")
	for _, n := range []int{0, 1, 100} {
		value := bytes.Repeat([]byte{'x'}, n)
		sealed, err := k.Seal(value, "a")
		if err != nil {
			t.Fatal(err)
		}
		if len(sealed) != n+Overhead {
			t.Errorf("%d bytes became %d", n, len(sealed))
		}
		got, err := k.Open(sealed, "a")
		if err != nil || !bytes.Equal(got, value) {
			t.Errorf("%q, %v", got, err)
		}
		for name, open := range map[string]func() ([]byte, error){
			"other key":     func() ([]byte, error) { return FromSecret("other").Open(sealed, "a") },
			"other context": func() ([]byte, error) { return k.Open(sealed, "b") },
			"cut":           func() ([]byte, error) { return k.Open(sealed[:len(sealed)-1], "a") },
			"longer":        func() ([]byte, error) { return k.Open(append(bytes.Clone(sealed), 0), "a") },
			"empty":         func() ([]byte, error) { return k.Open(nil, "a") },
		} {
			if _, err := open(); !errors.Is(err, ErrUnreadable) {
				t.Errorf("%s: %v", name, err)
			}
		}
		for i := range sealed {
			bad := bytes.Clone(sealed)
			bad[i] ^= 1
			if _, err := k.Open(bad, "a"); !errors.Is(err, ErrUnreadable) {
				t.Errorf("byte %d changed: %v", i, err)
			}
		}
	}
	one, _ := k.Seal(nil, "a")
	two, _ := k.Seal(nil, "a")
	if bytes.Equal(one, two) {
		t.Error("the same twice")
	}
	if _, err := (Key{}).Seal(nil, "a"); err == nil {
		t.Error("sealed without a key")
	}
}

func seal(t testing.TB, k Key, plain []byte, step int) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := k.Writer(&out, "a")
	if err != nil {
		t.Fatal(err)
	}
	for p := plain; len(p) > 0; {
		n := min(step, len(p))
		if m, err := w.Write(p[:n]); err != nil || m != n {
			t.Fatal(m, err)
		}
		p = p[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func open(k Key, sealed io.Reader) ([]byte, error) {
	r, err := k.Reader(sealed, "a")
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

func TestStreamAtChunkEdges(t *testing.T) {
	k := FromSecret("secret")
	for _, n := range []int{0, 1, chunkSize - 1, chunkSize, chunkSize + 1, 2*chunkSize - 1, 2 * chunkSize, 2*chunkSize + 1} {
		plain := make([]byte, n)
		rand.Read(plain)
		for _, step := range []int{1 << 20, chunkSize - 1} {
			sealed := seal(t, k, plain, step)
			for name, r := range map[string]io.Reader{
				"whole": bytes.NewReader(sealed), "half": iotest.HalfReader(bytes.NewReader(sealed)),
				"data with err": iotest.DataErrReader(bytes.NewReader(sealed)),
			} {
				if got, err := open(k, r); err != nil || !bytes.Equal(got, plain) {
					t.Fatalf("%d bytes by %d, %s: %d bytes, %v", n, step, name, len(got), err)
				}
			}
		}
		sealed := seal(t, k, plain, 1<<20)
		// Cut, extended or changed anywhere interesting, what comes out is at most
		// the beginning of what went in, and never the end.
		checkBad(t, k, plain, map[string][]byte{
			"extended": append(bytes.Clone(sealed), 0), "doubled": append(bytes.Clone(sealed), sealed...),
		})
		for at := headerSize; at < len(sealed); at += chunkSize + tagSize {
			for _, d := range []int{-1, 0, 1, tagSize} {
				if cut := at + d; cut >= 0 && cut < len(sealed) {
					changed := bytes.Clone(sealed)
					changed[cut] ^= 0x80
					checkBad(t, k, plain, map[string][]byte{"cut": sealed[:cut], "changed": changed})
				}
			}
		}
		if n >= 2*chunkSize {
			swapped := bytes.Clone(sealed)
			a, b := swapped[headerSize:headerSize+chunkSize+tagSize], swapped[headerSize+chunkSize+tagSize:headerSize+2*(chunkSize+tagSize)]
			tmp := bytes.Clone(a)
			copy(a, b)
			copy(b, tmp)
			checkBad(t, k, plain, map[string][]byte{"swapped": swapped})
		}
	}
}

func checkBad(t *testing.T, k Key, plain []byte, bad map[string][]byte) {
	t.Helper()
	for name, sealed := range bad {
		got, err := open(k, bytes.NewReader(sealed))
		if !errors.Is(err, ErrUnreadable) || !bytes.HasPrefix(plain, got) {
			t.Errorf("%s of %d bytes: %d bytes, %v", name, len(plain), len(got), err)
		}
	}
}

func TestStreamErrors(t *testing.T) {
	k := FromSecret("secret")
	sealed := seal(t, k, make([]byte, 2*chunkSize), 1<<20)
	broken := errors.New("broken")
	for _, at := range []int{0, 5, headerSize, 100, headerSize + chunkSize + tagSize, len(sealed) - 1, len(sealed)} {
		r := io.MultiReader(bytes.NewReader(sealed[:at]), iotest.ErrReader(broken))
		if _, err := open(k, r); !errors.Is(err, broken) {
			t.Errorf("at %d: %v", at, err)
		}
	}
	w, err := k.Writer(&failing{after: 1}, "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 3*chunkSize)); !errors.Is(err, io.ErrShortWrite) {
		t.Error(err)
	}
	if err := w.Close(); !errors.Is(err, io.ErrShortWrite) {
		t.Error(err)
	}
	if _, err := k.Writer(&failing{}, "a"); !errors.Is(err, io.ErrShortWrite) {
		t.Error(err)
	}
	w, _ = k.Writer(io.Discard, "a")
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if _, err := w.Write([]byte("x")); err == nil {
		t.Error("written after Close")
	}
}

type failing struct{ after int }

func (f *failing) Write(p []byte) (int, error) {
	if f.after--; f.after < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, text := range []string{"one", "another"} {
		if err := WriteFile(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadFile(path, 7); err != nil || string(got) != text {
			t.Errorf("%q, %v", got, err)
		}
	}
	if _, err := ReadFile(path, 6); !errors.Is(err, ErrUnreadable) {
		t.Error(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	if err := SyncDir(dir); err != nil {
		t.Error(err)
	}
	if err := WriteFile(filepath.Join(dir, "none", "f"), nil); err == nil {
		t.Error("written into a directory that does not exist")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%v", entries)
	}
}

func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	k, err := FromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := k.Seal([]byte("x"), "a")
	if err != nil {
		t.Fatal(err)
	}
	again, err := FromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Open(sealed, "a"); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := FromFile(path); err == nil {
		t.Error("took a short key")
	}
	if _, err := FromFile(filepath.Dir(path)); err == nil {
		t.Error("took a directory")
	}
}

func FuzzOpen(f *testing.F) {
	k := FromSecret("secret")
	sealed, _ := k.Seal([]byte("value"), "a")
	f.Add(sealed)
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := k.Open(data, "a"); err == nil && string(got) != "value" {
			t.Errorf("opened %q", got)
		}
	})
}

func FuzzReader(f *testing.F) {
	k := FromSecret("secret")
	f.Add(seal(f, k, []byte("value"), 100))
	f.Add(seal(f, k, make([]byte, chunkSize+1), 100))
	f.Add([]byte(magic + "0123456789abcdef"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := open(k, bytes.NewReader(data)); err == nil && string(got) != "value" && !bytes.Equal(got, make([]byte, chunkSize+1)) {
			t.Errorf("opened %q", got)
		}
	})
}
