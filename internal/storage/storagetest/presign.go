package storagetest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

func testPresign(t *testing.T, s Store) {
	put(t, s.Bucket, "doc/a b.txt", "hello")
	signed, err := s.Bucket.PresignGet(t.Context(), "doc/a b.txt", time.Hour)
	if !s.Presigns {
		if !errors.Is(err, storage.ErrNoPresign) {
			t.Errorf("PresignGet = %q, %v, want ErrNoPresign", signed, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	status, header, body := fetch(t, signed)
	if status != 200 || body != "hello" {
		t.Errorf("GET of a signed URL: %d %q", status, body)
	}
	if got := header.Get("Content-Type"); got != "text/plain" {
		t.Errorf("GET of a signed URL has type %q", got)
	}
	if got := curl(t, signed); got != "200 hello" {
		t.Errorf("curl of a signed URL: %q", got)
	}
	for what, url := range touched(t, signed) {
		if status, _, body := fetch(t, url); status/100 != 4 || strings.Contains(body, "hello") {
			t.Errorf("GET with %s: %d %q", what, status, body)
		}
		if got := curl(t, url); !strings.HasPrefix(got, "4") {
			t.Errorf("curl with %s: %q", what, got)
		}
	}
	brief, err := s.Bucket.PresignGet(t.Context(), "doc/a b.txt", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	// Servers count whole seconds.
	time.Sleep(2500 * time.Millisecond)
	if status, _, body := fetch(t, brief); status/100 != 4 || strings.Contains(body, "hello") {
		t.Errorf("GET of a URL that expired: %d %q", status, body)
	}
	missing, err := s.Bucket.PresignGet(t.Context(), "doc/none", time.Hour)
	if err != nil {
		t.Fatalf("PresignGet of what does not exist: %v", err)
	}
	if status, _, _ := fetch(t, missing); status != 404 {
		t.Errorf("GET of what does not exist: %d", status)
	}
}

// touched returns URLs that nobody signed.
func touched(t *testing.T, signed string) map[string]string {
	t.Helper()
	u, err := url.Parse(signed)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?i)(signature=)([0-9a-f])`).FindStringSubmatchIndex(u.RawQuery)
	if m == nil {
		t.Fatalf("no signature in %s", u.Redacted())
	}
	flip := "0"
	if u.RawQuery[m[4]:m[5]] == "0" {
		flip = "1"
	}
	with := func(path, query string) string {
		v := *u
		v.Path, v.RawPath, v.RawQuery = path, "", query
		return v.String()
	}
	longer := regexp.MustCompile(`(?i)(expires=)3600`).ReplaceAllString(u.RawQuery, "${1}36000")
	if longer == u.RawQuery {
		t.Fatalf("no time of expiry in %s", u.Redacted())
	}
	return map[string]string{
		"a touched signature":  with(u.Path, u.RawQuery[:m[4]]+flip+u.RawQuery[m[5]:]),
		"a longer life":        with(u.Path, longer),
		"another key":          with(u.Path+"x", u.RawQuery),
		"no signature":         with(u.Path, u.RawQuery[:m[2]]+"gone="+u.RawQuery[m[4]:]),
		"no query, no nothing": with(u.Path, ""),
	}
}

func wantFetched(t *testing.T, s Store, key, want string) {
	t.Helper()
	signed, err := s.Bucket.PresignGet(t.Context(), key, time.Hour)
	if err != nil {
		t.Errorf("PresignGet(%q): %v", key, err)
		return
	}
	if status, _, body := fetch(t, signed); status != 200 || body != want {
		t.Errorf("GET of the signed URL of %q: %d %q", key, status, body)
	}
}

// fetch gets a URL as a stranger does: with a plain client, without redirects.
func fetch(t *testing.T, url string) (int, http.Header, string) {
	t.Helper()
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       30 * time.Second,
	}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatalf("GET: %v", err)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatalf("GET: %v", err)
	}
	return resp.StatusCode, resp.Header, string(body)
}

// curl gets a URL with the program and returns status and body.
func curl(t *testing.T, url string) string {
	t.Helper()
	out, err := exec.Command("curl", "-sS", "-m", "30", "-w", "\n%{http_code}", url).Output()
	if err != nil {
		t.Fatalf("curl: %v", err)
	}
	text := string(out)
	i := strings.LastIndexByte(text, '\n')
	return fmt.Sprintf("%s %s", text[i+1:], text[:i])
}
