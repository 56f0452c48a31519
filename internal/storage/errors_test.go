package storage_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

func TestErrorText(t *testing.T) {
	const secret = "wJalr+XUtn/FEMI"
	signature := strings.Repeat("0123456789abcdef", 4)
	for _, said := range []string{
		"key is " + secret, "escaped wJalr%2BXUtn%2FFEMI",
		"GET https://h/b/k?X-Amz-Credential=SEEN&X-Amz-Signature=" + signature + "&X-Amz-Security-Token=SEEN failed",
		"x-oss-signature=" + signature, "x-oss-security-token=SEEN", "Signature=SEEN",
		"Authorization: AWS4-HMAC-SHA256 Credential=SEEN, SignedHeaders=host, Signature=" + signature,
		`{"signature": "SEEN"}`, "<SecurityToken>SEEN</SecurityToken>", "signature%3DSEEN", "bare " + signature,
		strings.Repeat("x", 5000) + secret, secret + strings.Repeat("x", 5000),
	} {
		text := storage.NewError("put object", "a\nb", errors.New(said), "", 0, secret, "wJalr%2BXUtn%2FFEMI").Error()
		for _, hidden := range []string{secret, "wJalr%2B", "SEEN", signature} {
			if strings.Contains(text, hidden) {
				t.Errorf("%q gives %q", said, text)
			}
		}
		if len(text) > 1100 || !strings.HasPrefix(text, `cannot put object "a\nb": `) {
			t.Errorf("%q gives %d bytes: %q", said, len(text), text)
		}
	}
	text := storage.NewError("list objects under", "p/", errors.New("line\r\nline \xff\x1b[31m"), "", 0, "").Error()
	if want := "cannot list objects under \"p/\": line  line \uFFFD [31m"; text != want {
		t.Errorf("got %q, want %q", text, want)
	}
}

func TestErrorIs(t *testing.T) {
	cause := fmt.Errorf("secret: %w", context.Canceled)
	var err error = storage.NewError("get object", "k", cause, "", 0)
	if !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is not what its cause is", err)
	}
	if errors.Unwrap(err) != nil {
		t.Error("the cause can be unwrapped")
	}
	if !errors.Is(storage.NotExist("get object", "k"), storage.ErrNotExist) {
		t.Error("NotExist is not ErrNotExist")
	}
}

func TestReason(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	slow := &net.OpError{Op: "read", Net: "tcp", Err: errSlow{}}
	unknown := &net.DNSError{Name: "nowhere.test", IsNotFound: true}
	for _, c := range []struct {
		cause  error
		code   string
		status int
		want   storage.Reason
	}{
		{refused, "", 0, storage.ReasonUnreachable},
		{fmt.Errorf("request: %w", unknown), "", 0, storage.ReasonUnreachable},
		{slow, "", 0, storage.ReasonTimeout},
		{errors.New("x"), "AccessDenied", 403, storage.ReasonDenied},
		{errors.New("x"), "", 401, storage.ReasonDenied},
		{errors.New("x"), "", 503, storage.ReasonUnavailable},
		{errors.New("x"), "InvalidPart", 400, storage.ReasonRefused},
		{errors.New("x"), "", 301, storage.ReasonRefused},
		{errors.New("x"), "", 0, storage.ReasonFailed},
	} {
		if got := storage.NewError("put object", "k", c.cause, c.code, c.status).Reason; got != c.want {
			t.Errorf("%v, %q, %d: %q, want %q", c.cause, c.code, c.status, got, c.want)
		}
	}
}

type errSlow struct{}

func (errSlow) Error() string   { return "i/o timeout" }
func (errSlow) Timeout() bool   { return true }
func (errSlow) Temporary() bool { return true }
