package storage_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// service returns one whose provider "mem" is m and whose "broken" has a
// configuration that cannot be.
func service(m *memory) *storage.Service {
	return storage.NewService(storage.NewOpener(map[string]storage.Driver{
		"mem": func(context.Context, storage.Config) (storage.Bucket, bool, error) { return m, true, nil },
		"broken": func(context.Context, storage.Config) (storage.Bucket, bool, error) {
			return nil, false, storage.BadConfig("endpoint is no URL")
		},
		"chain": func(context.Context, storage.Config) (storage.Bucket, bool, error) {
			return nil, false, errors.New("no credentials")
		},
		"none": func(context.Context, storage.Config) (storage.Bucket, bool, error) { return nil, false, nil },
	}), time.Hour, 24*time.Hour)
}

func mem(prefix string) storage.Config { return storage.Config{Provider: "mem", Prefix: prefix} }

func wantFault(t *testing.T, err error, kind fault.Kind, detail string) {
	t.Helper()
	var e *fault.Error
	if !errors.As(err, &e) || e.Kind != kind || e.Detail != detail {
		t.Errorf("error is %v, want kind %d with %q", err, kind, detail)
	}
}

func TestPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		start := time.Now().Unix()
		slow := iotest.OneByteReader(readerFunc(func(p []byte) (int, error) {
			time.Sleep(90 * time.Second)
			return copy(p, "x"), io.EOF
		}))
		got, err := service(m).Put(t.Context(), mem("aivory/"), "mineru/doc.pdf", " application/pdf ", slow, nil)
		if err != nil {
			t.Fatal(err)
		}
		want := storage.PutResult{Provider: "mem", Key: "aivory/mineru/doc.pdf", ExpiresIn: 3600}
		url := got.URL
		got.URL = ""
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if !strings.HasPrefix(url, "https://store.test/aivory/mineru/doc.pdf?ttl=1h0m0s") {
			t.Errorf("URL is %s", url)
		}
		// The URL's time begins when the document is there.
		if !strings.HasSuffix(url, fmt.Sprintf("&at=%d", start+90)) {
			t.Errorf("URL is %s, signed before the upload at %d was through", url, start)
		}
		if m.types[want.Key] != "application/pdf" || m.content[want.Key] != "x" {
			t.Errorf("stored %q as %q", m.content, m.types)
		}
	})
}

func TestPutTTL(t *testing.T) {
	s := service(newMemory())
	ptr := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		ask  *int64
		want int64
	}{
		{nil, 3600}, {ptr(0), 3600}, {ptr(-5), 3600}, {ptr(math.MinInt64), 3600}, {ptr(1), 1}, {ptr(600), 600},
		{ptr(86400), 86400}, {ptr(86401), 86400}, {ptr(math.MaxInt64), 86400},
	} {
		got, err := s.Put(t.Context(), mem("p"), "k", "", strings.NewReader(""), c.ask)
		if err != nil || got.ExpiresIn != c.want || !strings.Contains(got.URL, "ttl="+(time.Duration(c.want)*time.Second).String()) {
			t.Errorf("asked for %v: %+v, %v", c.ask, got, err)
		}
	}
	// The operator's limits: a default beyond the most is the most, and V4
	// signatures hold for a week.
	for _, c := range []struct {
		def, most time.Duration
		ask       *int64
		want      int64
	}{
		{time.Hour, time.Minute, nil, 60},
		{time.Hour, 30 * 24 * time.Hour, ptr(math.MaxInt64), 7 * 24 * 3600},
	} {
		m := newMemory()
		s := storage.NewService(storage.NewOpener(map[string]storage.Driver{
			"mem": func(context.Context, storage.Config) (storage.Bucket, bool, error) { return m, true, nil },
		}), c.def, c.most)
		got, err := s.Put(t.Context(), mem("p"), "k", "", strings.NewReader(""), c.ask)
		if err != nil || got.ExpiresIn != c.want {
			t.Errorf("with default %v and most %v: %+v, %v", c.def, c.most, got, err)
		}
	}
}

func TestPutContentType(t *testing.T) {
	m := newMemory()
	s := service(m)
	for give, want := range map[string]string{
		"": "application/octet-stream", "  ": "application/octet-stream", "text/plain; charset=utf-8": "text/plain; charset=utf-8",
	} {
		if _, err := s.Put(t.Context(), mem("p"), "k", give, strings.NewReader(""), nil); err != nil || m.types["p/k"] != want {
			t.Errorf("type %q becomes %q, %v", give, m.types["p/k"], err)
		}
	}
	before := len(m.called())
	for _, give := range []string{"a\r\nX-Evil: 1", "a\x00", "a\tb", strings.Repeat("x", 2000)} {
		_, err := s.Put(t.Context(), mem("p"), "k", give, strings.NewReader(""), nil)
		wantFault(t, err, fault.Invalid, "invalid content_type")
	}
	if after := m.called(); len(after) != before {
		t.Errorf("the store was asked: %q", after[before:])
	}
}

// The order of the checks, and that none of them touches the store.
func TestInvalid(t *testing.T) {
	m := newMemory()
	s := service(m)
	const notConfigured, invalidKey = "storage backend not configured", "invalid storage key"
	for _, c := range []struct {
		cfg    storage.Config
		key    string
		kind   fault.Kind
		detail string
	}{
		{storage.Config{}, "", fault.Invalid, notConfigured},
		{storage.Config{Provider: "Mem"}, "a", fault.Invalid, notConfigured},
		{storage.Config{Provider: "none"}, "../a", fault.Invalid, notConfigured},
		{storage.Config{Provider: "broken"}, "a", fault.Invalid, "invalid storage configuration"},
		{mem("p"), "", fault.Invalid, invalidKey},
		{mem("p"), "/a", fault.Invalid, invalidKey},
		{mem("../p"), "a", fault.Invalid, invalidKey},
	} {
		wantFault(t, s.Check(t.Context(), c.cfg, c.key), c.kind, c.detail)
		_, err := s.Put(t.Context(), c.cfg, c.key, "", strings.NewReader("x"), nil)
		wantFault(t, err, c.kind, c.detail)
		_, err = s.Delete(t.Context(), c.cfg, c.key)
		wantFault(t, err, c.kind, c.detail)
	}
	if err := s.Check(t.Context(), mem("p"), "a"); err != nil {
		t.Errorf("Check of a good request: %v", err)
	}
	if calls := m.called(); len(calls) > 0 {
		t.Errorf("the store was asked: %q", calls)
	}
	_, err := s.Delete(t.Context(), storage.Config{Provider: "chain"}, "a")
	wantFault(t, err, fault.Upstream, "storage delete failed: the store failed")
}

// A bucket without URLs stores nothing.
func TestPutWithoutURL(t *testing.T) {
	m := newMemory()
	m.noURL = true
	_, err := service(m).Put(t.Context(), mem("p"), "m/doc.pdf", "", readerFunc(func([]byte) (int, error) {
		t.Error("the body is read")
		return 0, io.EOF
	}), nil)
	wantFault(t, err, fault.Invalid, "presigned URLs are unsupported for local storage")
	if calls := m.called(); len(calls) > 0 {
		t.Errorf("the store was asked: %q", calls)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestDelete(t *testing.T) {
	m := newMemory()
	s := service(m)
	for _, key := range []string{"aivory/d1", "aivory/d2", "other/x", "aivoryx/y"} {
		m.plant(key, "1", time.Now())
	}
	for _, c := range []struct{ key, full string }{
		{"aivory/d1", "aivory/d1"}, {"d2", "aivory/d2"}, {"d2", "aivory/d2"}, {"other/x", "aivory/other/x"}, {"aivoryx/y", "aivory/aivoryx/y"},
	} {
		if got, err := s.Delete(t.Context(), mem("aivory/"), c.key); err != nil || got != c.full {
			t.Errorf("Delete(%q) = %q, %v, want %q", c.key, got, err, c.full)
		}
	}
	if left := m.keys(); !slices.Equal(left, []string{"aivoryx/y", "other/x"}) {
		t.Errorf("left: %q", left)
	}
}

// What a store says becomes one of a few sentences for the client and the cause
// for the log.
func TestUpstream(t *testing.T) {
	said := errors.New("dial tcp 10.0.0.1:9000: no such thing")
	for _, c := range []struct {
		err  error
		want string
	}{
		{storage.NewError("x", "k", said, "", 0), "the store failed"},
		{storage.NewError("x", "k", context.DeadlineExceeded, "", 0), "the store did not answer in time"},
		{storage.NewError("x", "k", said, "NoSuchBucket", 404), "the bucket does not exist"},
		{storage.NewError("x", "k", said, "SignatureDoesNotMatch", 403), "the store refused the credentials"},
		{storage.NewError("x", "k", said, "InternalError", 500), "the store is out of order"},
		{storage.NewError("x", "k", said, "SlowDown", 429), "the store is out of order"},
		{storage.NewError("x", "k", said, "InvalidRequest", 400), "the store refused the request"},
		{said, "the store failed"},
	} {
		m := newMemory()
		m.fail = func(string) error { return c.err }
		s := service(m)
		_, err := s.Put(t.Context(), mem("p"), "k", "", strings.NewReader("x"), nil)
		wantFault(t, err, fault.Upstream, "storage put failed: "+c.want)
		if !errors.Is(err, c.err) {
			t.Errorf("the cause is not in %v", err)
		}
		_, err = s.Delete(t.Context(), mem("p"), "k")
		wantFault(t, err, fault.Upstream, "storage delete failed: "+c.want)
		_, err = s.GC(t.Context(), mem("p"), 5)
		wantFault(t, err, fault.Upstream, "storage gc failed: "+c.want)
	}
}

// The store is not to blame for a body that breaks.
func TestPutBodyFails(t *testing.T) {
	s := service(newMemory())
	tooLarge := fault.New(fault.TooLarge, "too large")
	_, err := s.Put(t.Context(), mem("p"), "k", "", iotest.ErrReader(tooLarge), nil)
	wantFault(t, err, fault.TooLarge, "too large")
	_, err = s.Put(t.Context(), mem("p"), "k", "", iotest.ErrReader(io.ErrUnexpectedEOF), nil)
	if !errors.Is(err, io.ErrUnexpectedEOF) || fault.Is(err, fault.Upstream) {
		t.Errorf("a body that breaks off: %v", err)
	}
}
