//go:build integration

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/storage/s3/s3test"
)

// mostMemory is what the service may take above its idle memory, however large
// what passes through it.
const mostMemory = 64 << 20

// buildService builds the service as it is shipped: the test binary is larger, and
// the race detector takes memory of its own.
func buildService(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "aivory-sandbox")
	cmd := exec.Command("go", "build", "-o", path, ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the service: %v\n%s", err, out)
	}
	return path
}

// status reads a line of the process's memory, in bytes.
func (p *process) status(t *testing.T, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			var kib int64
			if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("no %s", name)
	return 0
}

// forgetPeak makes the peak of the process's memory what it is now.
func (p *process) forgetPeak(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.cmd.Process.Pid), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
}

// bounded runs something and fails the test where the service takes too much
// memory for it. Idle is what it had before all.
func (p *process) bounded(t *testing.T, what string, idle int64, run func()) {
	t.Helper()
	p.forgetPeak(t)
	began := time.Now()
	run()
	peak := p.status(t, "VmHWM")
	t.Logf("%s: peak %.1f MiB, %.1f MiB above idle, %v", what, float64(peak)/(1<<20), float64(peak-idle)/(1<<20), time.Since(began).Round(100*time.Millisecond))
	if peak-idle >= mostMemory {
		t.Errorf("%s: %d MiB above idle", what, (peak-idle)>>20)
	}
}

// TestMemoryOfLargeThings sends through the service what is larger than the
// memory that it may take.
func TestMemoryOfLargeThings(t *testing.T) {
	store := openStore(t, "", s3Block(s3test.Start(t, "versitygw").NewBucket(t), ""))
	s := newState(t)
	p := s.fork(t, buildService(t), "SANDBOX_ARCHIVE_TIMEOUT_S=600", "SANDBOX_MAX_STORAGE_BODY_BYTES=320m")
	p.healthy(t)
	warm := p.open(t, "warm", 600, store.block) // what is needed once
	warm.store(t, "small.txt", "small")
	warm.close(t, "{}")
	idle := p.status(t, "VmRSS")
	t.Logf("idle: %.1f MiB", float64(idle)/(1<<20))

	const workspace = 150 << 20
	large := p.open(t, "large", 600, store.block)
	r := large.run(t, fmt.Sprintf(`
import hashlib, os
h = hashlib.sha256()
with open("/workspace/large.bin", "wb") as f:
    for _ in range(%d):
        b = os.urandom(1 << 20); h.update(b); f.write(b)
print(h.hexdigest())`, workspace>>20), time.Minute)
	if r.Exit != 0 {
		t.Fatal(r)
	}
	p.bounded(t, "archiving 150 MiB", idle, func() { large.close(t, "{}") })
	p.bounded(t, "restoring 150 MiB", idle, func() { large = p.open(t, "large", 600, store.block) })
	large.prints(t, `import hashlib; print(hashlib.file_digest(open("/workspace/large.bin", "rb"), "sha256").hexdigest())`, r.Stdout)
	large.close(t, `{"discard":true}`)

	const document = 225 << 20
	var put answer
	sum := sha256.New()
	p.bounded(t, "storing a document of 225 MiB", idle, func() {
		content := io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{}), document), sum)
		put = p.stream("/storage/put", `{"key":"mineru/large.pdf","content_type":"application/pdf","data_base64":"`, content,
			`","storage":`+string(must(json.Marshal(store.block)))+`}`)
	})
	var stored struct{ URL string }
	if err := json.Unmarshal(put.body, &stored); put.status != 200 || err != nil {
		t.Fatalf("put: %v", put)
	}
	got := sha256.New()
	resp, err := p.http.Get(stored.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(got, resp.Body); n != document || err != nil || !bytes.Equal(got.Sum(nil), sum.Sum(nil)) {
		t.Errorf("the document has %d bytes and is %s: %v", n, hex.EncodeToString(got.Sum(nil)), err)
	}
	p.terminate(t)
}

// stream posts a body that holds content in Base64 without holding it in memory.
func (s *testService) stream(path, before string, content io.Reader, after string) answer {
	r, w := io.Pipe()
	go func() {
		_, err := io.WriteString(w, before)
		encoder := base64.NewEncoder(base64.StdEncoding, w)
		if err == nil {
			_, err = io.Copy(encoder, content)
		}
		if err == nil {
			err = encoder.Close()
		}
		if err == nil {
			_, err = io.WriteString(w, after)
		}
		w.CloseWithError(err)
	}()
	req, err := http.NewRequest(http.MethodPost, s.url+path, r)
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.http.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, body: text, err: err}
}
