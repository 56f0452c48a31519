// Package osstest is a server that speaks as much of the Object Storage Service
// as the driver uses, for tests. It checks every signature by a computation of
// its own, and is strict where the real service is: about part sizes, tags,
// lengths and digests. Objects lie on the disk, so that a test's memory is that
// of the driver.
package osstest

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"hash/crc64"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Server is a running server with one bucket.
type Server struct {
	URL                           string
	Bucket, Region, KeyID, Secret string

	dir string

	mu       sync.Mutex
	objects  map[string]object
	uploads  map[string]*multipart
	next     int
	requests []string
}

// object is a file on the disk with what the service tells of it.
type object struct {
	file        string
	size        int64
	contentType string
	etag        string
	crc         uint64
	modified    time.Time
}

// New starts a server on loopback, with an empty bucket. It ends with the test.
func New(t testing.TB) *Server {
	return NewBehind(t, func(s http.Handler) http.Handler { return s })
}

// NewBehind is New with a front that answers itself or passes on.
func NewBehind(t testing.TB, front func(http.Handler) http.Handler) *Server {
	s := &Server{
		Bucket: "test-bucket", Region: "cn-hangzhou", KeyID: "LTAItest", Secret: "a-secret+that/nobody=sees",
		dir: t.TempDir(), objects: map[string]object{}, uploads: map[string]*multipart{},
	}
	server := httptest.NewServer(front(s))
	s.URL = server.URL
	t.Cleanup(server.Close)
	return s
}

// Uploads names the unfinished multipart uploads, as "key id".
func (s *Server) Uploads() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for id, u := range s.uploads {
		all = append(all, u.key+" "+id)
	}
	return all
}

// Requests returns the requests so far, each as method, bucket, key and the
// names of its query parameters.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, key := s.address(r)
	query, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		fail(w, 400, "InvalidArgument", err.Error())
		return
	}
	q := map[string]string{}
	var names []string
	for _, p := range query {
		q[p.name] = p.value
		names = append(names, p.name)
	}
	slices.Sort(names)
	s.mu.Lock()
	s.requests = append(s.requests, fmt.Sprint(r.Method, " ", bucket, " ", key, " ", strings.Join(names, "&")))
	s.mu.Unlock()
	if err := s.verify(r, "/"+bucket+"/"+key, query); err != nil {
		fail(w, 403, "SignatureDoesNotMatch", err.Error())
		return
	}
	if bucket != s.Bucket {
		fail(w, 404, "NoSuchBucket", "The specified bucket does not exist.")
		return
	}
	_, uploads := q["uploads"]
	id, inParts := q["uploadId"]
	switch {
	case key == "" && r.Method == "GET" && q["list-type"] == "2":
		s.list(w, q)
	case key == "" && r.Method == "GET" && uploads:
		s.listUploads(w, q)
	case key == "":
		fail(w, 405, "MethodNotAllowed", "no such operation on a bucket")
	case r.Method == "POST" && uploads:
		s.initiate(w, r, key)
	case r.Method == "PUT" && inParts:
		s.putPart(w, r, key, id, q["partNumber"])
	case r.Method == "POST" && inParts:
		s.complete(w, r, key, id)
	case r.Method == "DELETE" && inParts:
		s.abort(w, key, id)
	case r.Method == "PUT":
		s.put(w, r, key)
	case r.Method == "GET":
		s.get(w, key)
	case r.Method == "DELETE":
		s.mu.Lock()
		delete(s.objects, key)
		s.mu.Unlock()
		w.WriteHeader(204)
	default:
		fail(w, 405, "MethodNotAllowed", "no such operation on an object")
	}
}

// address finds bucket and key: in the path where the host is an address, else
// the bucket is the first label of the host.
func (s *Server) address(r *http.Request) (bucket, key string) {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	path := strings.TrimPrefix(r.URL.Path, "/")
	if net.ParseIP(host) != nil {
		bucket, key, _ = strings.Cut(path, "/")
		return bucket, key
	}
	bucket, _, _ = strings.Cut(host, ".")
	return bucket, path
}

func parseQuery(raw string) ([]param, error) {
	var all []param
	for part := range strings.SplitSeq(raw, "&") {
		if part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		n, err := url.QueryUnescape(name)
		if err != nil {
			return nil, err
		}
		v, err := url.QueryUnescape(value)
		if err != nil {
			return nil, err
		}
		all = append(all, param{n, v})
	}
	return all, nil
}

func fail(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("X-Oss-Request-Id", "000000000000000000000000")
	reply(w, status, struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
		Message string
	}{Code: code, Message: message})
}

func reply(w http.ResponseWriter, status int, body any) {
	text, err := xml.Marshal(body)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = w.Write(append([]byte(xml.Header), text...))
}

// receive stores a request's body, all of it or nothing.
func (s *Server) receive(r *http.Request) (object, string) {
	if r.ContentLength < 0 {
		return object{}, "MissingContentLength"
	}
	f, err := os.CreateTemp(s.dir, "")
	if err != nil {
		panic(err)
	}
	defer f.Close()
	sum, crc := md5.New(), crc64.New(crc64.MakeTable(crc64.ECMA))
	n, err := io.Copy(io.MultiWriter(f, sum, crc), r.Body)
	if err != nil || n != r.ContentLength {
		_ = os.Remove(f.Name())
		return object{}, "IncompleteBody"
	}
	if want := r.Header.Get("Content-Md5"); want != "" && want != base64.StdEncoding.EncodeToString(sum.Sum(nil)) {
		return object{}, "InvalidDigest"
	}
	return object{
		file: f.Name(), size: n, contentType: r.Header.Get("Content-Type"),
		etag: `"` + strings.ToUpper(hex.EncodeToString(sum.Sum(nil))) + `"`, crc: crc.Sum64(), modified: time.Now().UTC(),
	}, ""
}

func (s *Server) put(w http.ResponseWriter, r *http.Request, key string) {
	o, code := s.receive(r)
	if code != "" {
		fail(w, 400, code, "body")
		return
	}
	s.mu.Lock()
	s.objects[key] = o
	s.mu.Unlock()
	w.Header().Set("ETag", o.etag)
	w.Header().Set("X-Oss-Hash-Crc64ecma", strconv.FormatUint(o.crc, 10))
}

func (s *Server) get(w http.ResponseWriter, key string) {
	s.mu.Lock()
	o, ok := s.objects[key]
	s.mu.Unlock()
	if !ok {
		fail(w, 404, "NoSuchKey", "The specified key does not exist.")
		return
	}
	f, err := os.Open(o.file)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	w.Header().Set("Content-Type", o.contentType)
	w.Header().Set("Content-Length", strconv.FormatInt(o.size, 10))
	w.Header().Set("ETag", o.etag)
	w.Header().Set("Last-Modified", o.modified.Format(http.TimeFormat))
	_, _ = io.Copy(w, f)
}

func (s *Server) list(w http.ResponseWriter, q map[string]string) {
	limit := 100
	if text, ok := q["max-keys"]; ok {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 1000 {
			fail(w, 400, "InvalidArgument", "max-keys")
			return
		}
		limit = n
	}
	encode := func(s string) string { return s }
	if q["encoding-type"] == "url" {
		encode = url.QueryEscape
	}
	type content struct {
		Key, LastModified, ETag, Type string
		Size                          int64
		StorageClass                  string
	}
	result := struct {
		XMLName                                     xml.Name `xml:"ListBucketResult"`
		Name, Prefix, ContinuationToken, StartAfter string
		MaxKeys                                     int
		EncodingType                                string
		IsTruncated                                 bool
		NextContinuationToken                       string
		Contents                                    []content
		KeyCount                                    int
	}{
		Name: s.Bucket, Prefix: encode(q["prefix"]), ContinuationToken: encode(q["continuation-token"]),
		MaxKeys: limit, EncodingType: q["encoding-type"],
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for key := range s.objects {
		if strings.HasPrefix(key, q["prefix"]) && key > decodeToken(q["continuation-token"]) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	if len(keys) > limit {
		keys, result.IsTruncated = keys[:limit], true
		result.NextContinuationToken = encode(encodeToken(keys[limit-1]))
	}
	for _, key := range keys {
		o := s.objects[key]
		result.Contents = append(result.Contents, content{
			Key: encode(key), LastModified: o.modified.Format("2006-01-02T15:04:05.000Z"), ETag: o.etag,
			Type: "Normal", Size: o.size, StorageClass: "Standard",
		})
	}
	result.KeyCount = len(keys)
	reply(w, 200, result)
}

// Tokens are opaque to clients.
func encodeToken(key string) string { return base64.StdEncoding.EncodeToString([]byte(key)) }

func decodeToken(token string) string {
	key, err := base64.StdEncoding.DecodeString(token)
	if err != nil {
		panic(err)
	}
	return string(key)
}

// concat makes one file of several.
func (s *Server) concat(parts []object) (string, uint64) {
	f, err := os.Create(filepath.Join(s.dir, fmt.Sprintf("whole-%d", s.next)))
	if err != nil {
		panic(err)
	}
	defer f.Close()
	crc := crc64.New(crc64.MakeTable(crc64.ECMA))
	for _, p := range parts {
		in, err := os.Open(p.file)
		if err != nil {
			panic(err)
		}
		if _, err := io.Copy(io.MultiWriter(f, crc), in); err != nil {
			panic(err)
		}
		_ = in.Close()
	}
	return f.Name(), crc.Sum64()
}
