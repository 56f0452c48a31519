//go:build integration

package main

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// shown is what all services of these tests have shown to whoever watches them,
// and all that they must not have.
var shown = newSecretScan()

// What is looked at.
const (
	inLogs    = "logs"
	inErrors  = "error bodies"
	inMetrics = "metrics"
	inTraces  = "traces"
)

// presigned is what makes a URL a key.
var presigned = regexp.MustCompile(`(?i)(X-Amz-Signature|X-Amz-Credential|X-Amz-Security-Token|x-oss-signature|x-oss-credential|OSSAccessKeyId|AWSAccessKeyId|[?&]Signature)(=|%3D)`)

// secretScan looks for secrets in what passes by, and counts what it has seen.
type secretScan struct {
	mu    sync.Mutex
	words map[string]string // in any of their spellings, and what they are
	seen  map[string]int
	found []string
}

func newSecretScan() *secretScan {
	return &secretScan{words: map[string]string{}, seen: map[string]int{}}
}

// add has it look for a secret from now on.
func (s *secretScan) add(what, secret string) {
	if len(secret) < 8 {
		panic(what + " is too short to be told from other text")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, spelling := range []string{secret, hex.EncodeToString([]byte(secret)), base64.StdEncoding.EncodeToString([]byte(secret)), fmt.Sprintf("%q", secret)} {
		s.words[strings.TrimRight(strings.Trim(spelling, `"`), "=")] = what
	}
}

// look looks at text, the last bytes of which are new.
func (s *secretScan) look(where string, text []byte, fresh int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[where] += fresh
	report := func(what string, at int) {
		if len(s.found) < 20 {
			s.found = append(s.found, fmt.Sprintf("%s give %s away: %.400q", where, what, text[max(at-150, 0):]))
		}
	}
	for word, what := range s.words {
		if at := bytes.Index(text, []byte(word)); at >= 0 {
			report(what, at)
		}
	}
	if at := presigned.FindIndex(text); at != nil {
		report("a presigned URL", at[0])
	}
}

func (s *secretScan) verdict() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.found) > 0 {
		return errors.New(strings.Join(s.found, "\n"))
	}
	return nil
}

// lookAtMetrics looks at what a service that is about to end has counted.
func (s *testService) lookAtMetrics() {
	req, err := http.NewRequest(http.MethodGet, s.url+"/metrics", nil)
	if err != nil {
		return
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	resp, err := s.http.Do(req)
	if err != nil {
		return // it may have ended already
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	shown.look(inMetrics, text, len(text))
}

// traced are the settings by which all services send traces to the scan.
var traced []string

func init() {
	traces := newCollector()
	traces.took = func(b []byte) { shown.look(inTraces, b, len(b)) }
	traced = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + traces.URL, "OTEL_EXPORTER_OTLP_COMPRESSION=none"}
	for _, setting := range traced {
		name, value, _ := strings.Cut(setting, "=")
		os.Setenv(name, value)
	}
	judge = func() error {
		traces.Close()
		fmt.Fprintf(os.Stderr, "looked for %d spellings of secrets in this many bytes: %v\n", len(shown.words), shown.seen)
		return shown.verdict()
	}
}

// TestSecretsAreFound: the scan is worth something.
func TestSecretsAreFound(t *testing.T) {
	const secret = "s3cr3t/with+signs"
	for name, text := range map[string]string{
		"as it is": "before " + secret + " after", "in hex": hex.EncodeToString([]byte(secret)),
		"in Base64": base64.StdEncoding.EncodeToString([]byte(secret)),
		"S3's URL":  "GET https://s3.example/b/k?X-Amz-Date=1&X-Amz-Signature=00", "OSS's URL": "https://oss.example/k?Expires=1&Signature=ab%3D",
		"an escaped URL": "url=https%3A%2F%2Fs3.example%3FX-Amz-Signature%3D00",
	} {
		s := newSecretScan()
		s.add("a test's secret", secret)
		s.look(inLogs, []byte("nothing to see"), 14)
		if err := s.verdict(); err != nil {
			t.Errorf("found what is not there: %v", err)
		}
		if s.look(inLogs, []byte(text), len(text)); s.verdict() == nil {
			t.Errorf("%s: not found", name)
		}
	}
	w := &tailWriter{scan: newSecretScan()}
	w.scan.add("a test's secret", secret)
	for part := range slices.Chunk([]byte("some text and "+secret+"\n"), 5) {
		if _, err := w.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	if w.scan.verdict() == nil {
		t.Error("not found in pieces")
	}
}
