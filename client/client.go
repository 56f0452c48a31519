// Package client calls an Aivory sandbox from Go. It needs nothing but the
// standard library.
//
//	c, err := client.New("http://127.0.0.1:48217", key)
//	session, err := c.CreateSession(ctx, client.CreateOptions{})
//	defer session.Delete(ctx, client.DeleteOptions{})
//	result, err := session.Exec(ctx, client.Run{Code: "print(2 + 2)"})
//
// Errors of the service are *Error; errors.Is tells their kind: see ErrBusy and
// the others. A context that ends ends the request, and with it a run in hand.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"strings"
	"unicode/utf8"
)

// Client calls one service. It is safe for concurrent use.
type Client struct {
	base *url.URL
	key  string
	http *http.Client
}

// Option changes how a Client calls.
type Option func(*Client)

// WithHTTPClient makes the calls with another HTTP client. A timeout of its own
// bounds whole requests, runs and transfers included. A transport of its own should
// have an ExpectContinueTimeout, as the default one does, for uploads that the
// service refuses. Redirects are errors, for the service has none and what follows
// one is another request, unless a CheckRedirect of its own follows them.
func WithHTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// New returns a client of the service at a URL such as http://127.0.0.1:48217. It
// makes no request. The key may be empty for a service without authentication.
func New(baseURL, key string, options ...Option) (*Client, error) {
	base, err := url.Parse(strings.TrimRight(baseURL, "/"))
	if err != nil {
		return nil, fmt.Errorf("bad URL of the service: %w", err)
	}
	if base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("bad URL of the service: %q is not http://host:port", baseURL)
	}
	c := &Client{base: base, key: key, http: http.DefaultClient}
	for _, o := range options {
		o(c)
	}
	if c.http.CheckRedirect == nil {
		h := *c.http // others may use it
		h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		c.http = &h
	}
	return c, nil
}

// FromEnv is New with SANDBOX_URL, by default http://127.0.0.1:48217, and
// SANDBOX_API_KEY.
func FromEnv(options ...Option) (*Client, error) {
	base := os.Getenv("SANDBOX_URL")
	if base == "" {
		base = "http://127.0.0.1:48217"
	}
	return New(base, os.Getenv("SANDBOX_API_KEY"), options...)
}

// Health is how the service is.
type Health struct {
	OK bool `json:"ok"` // the engine answers
	// Engine is the engine's version, Image the runner image.
	Engine     string `json:"docker"`
	Image      string `json:"image"`
	ImageReady bool   `json:"image_ready"`
	Driver     string `json:"driver"`
	Runtime    string `json:"runtime"`
}

// Health asks the service how it is. A service whose engine does not answer is no
// error: its OK is false.
func (c *Client) Health(ctx context.Context) (h Health, err error) {
	resp, err := c.send(ctx, http.MethodGet, "/healthz", nil, 0)
	if err != nil {
		return h, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusServiceUnavailable {
		return h, readError(resp)
	}
	if err := json.NewDecoder(resp.Body).Decode(&h); err != nil {
		return h, fmt.Errorf("cannot read the answer: %w", err)
	}
	return h, nil
}

// largeBody is the size from which on a body is announced before it is sent, in
// bytes.
const largeBody = 256 << 10

// send makes a request. Size is the body's length in bytes, -1 where it is not
// known. One that is large, or may be, is sent when the service says that it wants
// it: a service that refuses it closes the connection, and what is in the middle of
// being sent then may fail before the answer is seen.
func (c *Client) send(ctx context.Context, method, path string, body io.Reader, size int64) (*http.Response, error) {
	if size == 0 {
		body = nil
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+path, body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = size
	if size < 0 || size >= largeBody {
		req.Header.Set("Expect", "100-continue")
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the service: %w", err)
	}
	return resp, nil
}

// call makes a request with a JSON body, unless in is nil, and decodes the answer
// into out, unless that is nil.
func (c *Client) call(ctx context.Context, method, path string, in map[string]any, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = encode(in); err != nil {
			return err
		}
	}
	resp, err := c.send(ctx, method, path, bytes.NewReader(body), int64(len(body)))
	if err != nil {
		return err
	}
	return decode(resp, out)
}

// encode makes JSON of a request. Strings that are not Unicode would be sent with
// other characters in them: they are refused.
func encode(fields map[string]any) ([]byte, error) {
	for name, value := range fields {
		if bad := notUnicode(reflect.Indirect(reflect.ValueOf(value))); bad {
			return nil, fmt.Errorf("cannot encode the request: %s is not valid UTF-8", name)
		}
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the request: %w", err)
	}
	return body, nil
}

// notUnicode looks at a string, or at those of a struct.
func notUnicode(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		return !utf8.ValidString(v.String())
	case reflect.Struct:
		for i := range v.NumField() {
			if notUnicode(v.Field(i)) {
				return true
			}
		}
	}
	return false
}

// decode reads an answer to its end, so that the connection can be used again.
func decode(resp *http.Response, out any) error {
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return readError(resp)
	}
	if out != nil {
		if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
			return fmt.Errorf("cannot read the answer: %w", err)
		}
	}
	_, err := io.Copy(io.Discard, resp.Body)
	return err
}
