package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

func newTestSpool(t testing.TB, maxBytes int64) *spoolDir {
	t.Helper()
	d, err := newSpoolDir(filepath.Join(t.TempDir(), "a", "b"), maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestSpool(t *testing.T) {
	d := newTestSpool(t, 0)
	for _, size := range []int{0, 1, spoolMemory, spoolMemory + 1, 3*spoolMemory + 5} {
		for _, part := range []int{64 << 10, spoolMemory + 1} {
			data := bytes.Repeat([]byte("0123456789abcde"), size/15+1)[:size]
			s := spool{dir: d}
			for rest := data; len(rest) > 0; rest = rest[min(part, len(rest)):] {
				if err := s.write(rest[:min(part, len(rest))]); err != nil {
					t.Fatal(err)
				}
			}
			if inFile := size > spoolMemory; (s.file != nil) != inFile || (d.used.Load() > 0) != inFile {
				t.Errorf("%d bytes by %d: file %v, %d bytes used", size, part, s.file, d.used.Load())
			}
			noFiles(t, d.dir) // its name is gone already
			for range 2 {
				if got, err := io.ReadAll(s.open()); err != nil || !bytes.Equal(got, data) {
					t.Errorf("%d bytes by %d: read %d, %v", size, part, len(got), err)
				}
			}
			s.reset()
			if got, _ := io.ReadAll(s.open()); len(got) > 0 || d.used.Load() != 0 {
				t.Errorf("%d bytes by %d: %d left, %d used", size, part, len(got), d.used.Load())
			}
		}
	}
}

// TestSpoolFilesAreUsedAgain looks that nobody sees what an earlier upload left.
func TestSpoolFilesAreUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestSpool(t, 0)
		var first *os.File
		for i, size := range []int{3 * spoolMemory, spoolMemory + 1, 2 * spoolMemory} {
			s := spool{dir: d}
			data := bytes.Repeat([]byte{byte(i)}, size)
			for _, part := range [][]byte{data[:spoolMemory], data[spoolMemory:]} {
				if err := s.write(part); err != nil {
					t.Fatal(err)
				}
			}
			if first == nil {
				first = s.file
			}
			if s.file != first {
				t.Error("another file")
			}
			if got, err := io.ReadAll(s.open()); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes: read %d, %v", size, len(got), err)
			}
			s.reset()
		}
		var many []spool
		for range 2 * spareFiles {
			s := spool{dir: d}
			if err := s.write(make([]byte, spoolMemory+1)); err != nil {
				t.Fatal(err)
			}
			many = append(many, s)
		}
		for _, s := range many {
			s.reset()
		}
		spares := func() int {
			d.mu.Lock()
			defer d.mu.Unlock()
			return len(d.spares)
		}
		if n := spares(); n != spareFiles {
			t.Errorf("%d spare files", n)
		}
		time.Sleep(spareDuration + time.Second)
		if _, err := first.Stat(); spares() != 0 || !errors.Is(err, os.ErrClosed) {
			t.Errorf("%d spare files are still open: %v", spares(), err)
		}
	})
}

func TestSpoolBound(t *testing.T) {
	d := newTestSpool(t, 3*spoolMemory)
	big := make([]byte, spoolMemory+1)
	a, b := spool{dir: d}, spool{dir: d}
	defer b.reset()
	for range 2 {
		if err := a.write(big); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.write(big); !fault.Is(err, fault.Busy) {
		t.Errorf("beyond the bound: %v", err)
	}
	a.reset()
	b.reset()
	if err := b.write(big); err != nil {
		t.Errorf("with room again: %v", err)
	}
	b.reset()
	if n := d.used.Load(); n != 0 {
		t.Errorf("%d bytes are lost", n)
	}
}

func TestSpoolDirStartsEmpty(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{spoolPrefix + "1", spoolPrefix + "2", "another's"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := newSpoolDir(dir, 0); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "another's" {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestSpoolWithoutDirectory(t *testing.T) {
	s := start(t, bigLimits)
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatal(err)
	}
	data := strings.Repeat("A", 2*spoolMemory)
	got := s.do(t, "POST", "/files", `{"session_id":"`+live+`","path":"f","data_base64":"`+data+`"}`)
	if got.status != 500 || got.body != `{"detail":"cannot store the request body"}` {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// bigLimits are the contract's.
func bigLimits(c *Config) {
	c.MaxBody, c.MaxStorageBody, c.MaxUpload = 58720256, 314572800, 41943040
}

// uploadBody is a request body whose file is made while it is read.
func uploadBody(size int64) (io.Reader, int64) {
	head := `{"data_base64":"`
	end := `","path":"big.bin","session_id":"` + live + `"}`
	return io.MultiReader(strings.NewReader(head), io.LimitReader(letters{}, encodedLen(size)), strings.NewReader(end)), int64(len(head)) + encodedLen(size) + int64(len(end))
}

// letters is base64 without end.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'Q'
	}
	return len(p), nil
}

// The contract's largest upload and download cost memory that does not depend
// on their size.
func TestMemoryOfLargeFiles(t *testing.T) {
	s := start(t, bigLimits)
	const size = 39 << 20
	var stored int64
	s.sessions.write = func(body io.Reader, n int64) error {
		got, err := io.Copy(io.Discard, body)
		stored = got
		if got != n {
			return fmt.Errorf("%d bytes, said to be %d", got, n)
		}
		return err
	}
	allocated, peak := measure(t, func() {
		body, length := uploadBody(size)
		r, err := http.NewRequest("POST", s.url+"/files", body)
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = length
		r.Header.Set("Authorization", "Bearer "+testKey)
		resp, err := noRedirect.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 || stored != size {
			t.Fatalf("%d %s, %v; stored %d bytes", resp.StatusCode, text, err, stored)
		}
	})
	t.Logf("upload: %d KiB allocated, heap at most %d KiB higher", allocated>>10, peak>>10)
	if allocated > 8<<20 {
		t.Errorf("an upload of %d bytes allocates %d", size, allocated)
	}
	noFiles(t, s.dir)
	if n := s.handler.spool.used.Load(); n != 0 {
		t.Errorf("%d bytes are still reserved", n)
	}

	s.sessions.read = func(ctx context.Context) (io.ReadCloser, int64, error) {
		return io.NopCloser(io.LimitReader(zeros{}, size)), size, nil
	}
	allocated, peak = measure(t, func() {
		r, err := http.NewRequest("POST", s.url+"/files/get", strings.NewReader(`{"session_id":"`+live+`","path":"f"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+testKey)
		resp, err := noRedirect.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != resp.ContentLength || n < size/3*4 {
			t.Fatalf("%d bytes of %d, %v", n, resp.ContentLength, err)
		}
	})
	t.Logf("download: %d KiB allocated, heap at most %d KiB higher", allocated>>10, peak>>10)
	if allocated > 2<<20 {
		t.Errorf("a download of %d bytes allocates %d", size, allocated)
	}
}

// measure returns how much f allocated in all, and how much the heap grew at
// most meanwhile.
func measure(t *testing.T, f func()) (allocated, peak uint64) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var highest atomic.Uint64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			highest.Store(max(highest.Load(), now.HeapAlloc))
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	f()
	close(stop)
	<-stopped
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, max(highest.Load(), before.HeapAlloc) - before.HeapAlloc
}

func TestRejectedUploadsLeaveNothing(t *testing.T) {
	s := start(t, bigLimits, func(c *Config) { c.MaxUpload = 4 << 20 })
	data := strings.Repeat("A", 2*spoolMemory)
	head := `{"session_id":"` + live + `","path":"f","data_base64":"` + data
	for name, test := range map[string]struct {
		body   string
		status int
	}{
		"invalid JSON":   {head + `",}`, 422},
		"invalid text":   {head + "\xff\"}", 400},
		"invalid base64": {head + `!"}`, 400},
		"another id":     {head + `","session_id":"nope"}`, 400},
		"another path":   {head + `","path":"/etc/x"}`, 400},
		"overwritten":    {head + `","data_base64":null}`, 422},
		"no session":     {head + `","session_id":"` + gone + `"}`, 404},
		"too large":      {head + strings.Repeat("A", 6<<20) + `"}`, 413},
	} {
		if got := s.do(t, "POST", "/files", test.body); got.status != test.status {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		if n := s.handler.spool.used.Load(); n != 0 {
			t.Errorf("%s: %d bytes are still reserved", name, n)
		}
		noFiles(t, s.dir)
	}
}

func BenchmarkUploadDecode(b *testing.B) {
	const size = 32 << 20
	d := newTestSpool(b, 0)
	text := base64.StdEncoding.EncodeToString(make([]byte, size))
	body := `{"session_id":"` + live + `","path":"f","data_base64":"` + text + `"}`
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		u := upload{spool: spool{dir: d}, max: size}
		if _, err := readDoc(strings.NewReader(body), uploadField("data_base64", &u)); err != nil || !u.valid() || u.size != size {
			b.Fatal(err, u.size)
		}
		u.close()
	}
}

func BenchmarkDownloadEncode(b *testing.B) {
	const size = 32 << 20
	data := make([]byte, size)
	out := bufio.NewWriterSize(io.Discard, streamBuffer)
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		if err := encodeBase64(out, bytes.NewReader(data), size); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSmallRequest(b *testing.B) {
	body := `{"session_id":"` + live + `","code":"print(1)","timeout_ms":30000}`
	b.ReportAllocs()
	for b.Loop() {
		var id string
		var code []byte
		var size int64
		var timeout *int64
		d, err := readDoc(strings.NewReader(body), stringField("session_id", &id), codeField("code", 1<<20, &code, &size), intField("timeout_ms", &timeout).orNull())
		if err == nil {
			err = d.check(false)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
