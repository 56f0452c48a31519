package s3_test

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/s3"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/storagetest"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/upload"
)

// fake is a healthy server in memory that stands behind one that fails. It
// checks no signature: the real servers do, in the tests that need them.
type fake struct {
	mu      sync.Mutex
	objects map[string][]byte
	uploads map[string]map[string][]byte
	next    int
}

func newFake() *fake {
	return &fake{objects: map[string][]byte{}, uploads: map[string]map[string][]byte{}}
}

func tagOf(data []byte) string {
	sum := md5.Sum(data)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

func sendXML(w http.ResponseWriter, status int, format string, args ...any) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, format, args...)
}

func (s *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	q := r.URL.Query()
	id := q.Get("uploadId")
	if parts, ok := s.uploads[id]; id != "" && !ok {
		sendXML(w, 404, `<Error><Code>NoSuchUpload</Code></Error>`)
		return
	} else if ok {
		s.inParts(w, r.Method, key, id, q.Get("partNumber"), parts, body)
		return
	}
	switch {
	case r.Method == "GET" && key == "":
		s.list(w, q.Get("prefix"))
	case r.Method == "POST" && q.Has("uploads"):
		s.next++
		id := fmt.Sprint("id", s.next)
		s.uploads[id] = map[string][]byte{}
		sendXML(w, 200, `<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>`, id)
	case r.Method == "PUT":
		s.objects[key] = body
		w.Header().Set("ETag", tagOf(body))
	case r.Method == "DELETE":
		delete(s.objects, key)
		w.WriteHeader(204)
	case s.objects[key] == nil:
		sendXML(w, 404, `<Error><Code>NoSuchKey</Code></Error>`)
	default:
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		_, _ = w.Write(s.objects[key])
	}
}

func (s *fake) inParts(w http.ResponseWriter, method, key, id, number string, parts map[string][]byte, body []byte) {
	switch method {
	case "PUT":
		parts[number] = body
		w.Header().Set("ETag", tagOf(body))
	case "DELETE":
		delete(s.uploads, id)
		w.WriteHeader(204)
	case "POST":
		var list struct {
			Part []struct{ PartNumber, ETag string }
		}
		if err := xml.Unmarshal(body, &list); err != nil {
			sendXML(w, 400, `<Error><Code>MalformedXML</Code></Error>`)
			return
		}
		var whole []byte
		for _, p := range list.Part {
			data, ok := parts[p.PartNumber]
			if !ok || tagOf(data) != p.ETag {
				sendXML(w, 400, `<Error><Code>InvalidPart</Code></Error>`)
				return
			}
			whole = append(whole, data...)
		}
		s.objects[key] = whole
		delete(s.uploads, id)
		sendXML(w, 200, `<CompleteMultipartUploadResult><Key>%s</Key></CompleteMultipartUploadResult>`, key)
	}
}

func (s *fake) list(w http.ResponseWriter, prefix string) {
	var keys []string
	for key := range s.objects {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	var b strings.Builder
	for _, key := range keys {
		fmt.Fprintf(&b, "<Contents><Key>%s</Key><Size>%d</Size><LastModified>%s</LastModified></Contents>",
			key, len(s.objects[key]), time.Now().UTC().Format("2006-01-02T15:04:05.000Z"))
	}
	sendXML(w, 200, "<ListBucketResult>%s</ListBucketResult>", b.String())
}

// page is a listing without times, as no store should send it.
func page(next string, keys ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "<ListBucketResult><IsTruncated>%v</IsTruncated><NextContinuationToken>%s</NextContinuationToken>", next != "", next)
	for _, key := range keys {
		fmt.Fprintf(&b, "<Contents><Key>%s</Key><Size>1</Size></Contents>", key)
	}
	return b.String() + "</ListBucketResult>"
}

func behind(t *testing.T, read time.Duration, front storagetest.Front) (storage.Bucket, *fake) {
	t.Helper()
	server := newFake()
	h := httptest.NewServer(front(server))
	t.Cleanup(h.Close)
	return openWith(t, s3.Options{
		MaxAttempts: storagetest.FaultAttempts, ConnectTimeout: 10 * time.Second, ReadTimeout: read, Parts: upload.NewParts(4),
	}, storage.Config{S3Bucket: "bkt", S3Endpoint: h.URL, S3AccessKey: "AKTEST", S3SecretKey: storagetest.FaultSecret}), server
}

func TestFaults(t *testing.T) {
	storagetest.RunFaults(t, func(t *testing.T, read time.Duration, front storagetest.Front) storagetest.Faulty {
		b, server := behind(t, read, front)
		return storagetest.Faulty{Bucket: b, Page: page, Uploads: func() []string {
			server.mu.Lock()
			defer server.mu.Unlock()
			var all []string
			for id := range server.uploads {
				all = append(all, id)
			}
			return all
		}}
	})
}

// S3 may answer a completion that fails with 200 and an error.
func TestCompleteFailsWith200(t *testing.T) {
	b, server := behind(t, time.Minute, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "POST" && r.URL.Query().Has("uploadId") {
				sendXML(w, 200, `<?xml version="1.0"?><Error><Code>InvalidPart</Code><Message>no</Message></Error>`)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	if _, err := b.Put(t.Context(), "k", storagetest.Content(6<<20, 1), ""); err == nil {
		t.Error("Put succeeds")
	}
	if len(server.uploads) > 0 || len(server.objects) > 0 {
		t.Errorf("left: %d uploads, %d objects", len(server.uploads), len(server.objects))
	}
}
