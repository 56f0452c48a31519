package osstest

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// minPart is the least size of a part that is not the last.
const minPart = 100 << 10

// multipart is an upload that is not finished.
type multipart struct {
	key, contentType string
	initiated        time.Time
	parts            map[int]object
}

// BeginUpload begins an upload to a key, at some time, that nobody finishes.
func (s *Server) BeginUpload(key string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	s.uploads[fmt.Sprintf("upload-%d", s.next)] = &multipart{key: key, initiated: at, parts: map[int]object{}}
}

func (s *Server) listUploads(w http.ResponseWriter, q map[string]string) {
	encode := func(s string) string { return s }
	if q["encoding-type"] == "url" {
		encode = url.QueryEscape
	}
	type entry struct{ Key, UploadId, Initiated string }
	result := struct {
		XMLName              xml.Name `xml:"ListMultipartUploadsResult"`
		Bucket, EncodingType string
		IsTruncated          bool
		Upload               []entry
	}{Bucket: s.Bucket, EncodingType: q["encoding-type"]}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, u := range s.uploads {
		if strings.HasPrefix(u.key, q["prefix"]) {
			result.Upload = append(result.Upload, entry{encode(u.key), id, u.initiated.UTC().Format("2006-01-02T15:04:05.000Z")})
		}
	}
	reply(w, 200, result)
}

func (s *Server) initiate(w http.ResponseWriter, r *http.Request, key string) {
	s.mu.Lock()
	s.next++
	id := fmt.Sprintf("upload-%d", s.next)
	s.uploads[id] = &multipart{key: key, contentType: r.Header.Get("Content-Type"), initiated: time.Now(), parts: map[int]object{}}
	s.mu.Unlock()
	reply(w, 200, struct {
		XMLName               xml.Name `xml:"InitiateMultipartUploadResult"`
		Bucket, Key, UploadId string
	}{Bucket: s.Bucket, Key: key, UploadId: id})
}

func (s *Server) putPart(w http.ResponseWriter, r *http.Request, key, id, number string) {
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > 10000 {
		fail(w, 400, "InvalidArgument", "partNumber")
		return
	}
	o, code := s.receive(r)
	if code != "" {
		fail(w, 400, code, "body")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.uploads[id]
	if u == nil || u.key != key {
		fail(w, 404, "NoSuchUpload", "The specified upload does not exist.")
		return
	}
	u.parts[n] = o
	w.Header().Set("ETag", o.etag)
	w.Header().Set("X-Oss-Hash-Crc64ecma", strconv.FormatUint(o.crc, 10))
}

func (s *Server) complete(w http.ResponseWriter, r *http.Request, key, id string) {
	var list struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Part    []struct {
			PartNumber int
			ETag       string
		}
	}
	if err := xml.NewDecoder(r.Body).Decode(&list); err != nil || len(list.Part) == 0 {
		fail(w, 400, "MalformedXML", "list of parts")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.uploads[id]
	if u == nil || u.key != key {
		fail(w, 404, "NoSuchUpload", "The specified upload does not exist.")
		return
	}
	var parts []object
	whole := object{contentType: u.contentType, modified: time.Now().UTC()}
	for i, p := range list.Part {
		o, ok := u.parts[p.PartNumber]
		switch {
		case i > 0 && p.PartNumber <= list.Part[i-1].PartNumber:
			fail(w, 400, "InvalidPartOrder", "parts")
			return
		case !ok || o.etag != p.ETag:
			fail(w, 400, "InvalidPart", "parts")
			return
		case i < len(list.Part)-1 && o.size < minPart:
			fail(w, 400, "EntityTooSmall", "parts")
			return
		}
		parts = append(parts, o)
		whole.size += o.size
	}
	whole.file, whole.crc = s.concat(parts)
	whole.etag = fmt.Sprintf(`"%X-%d"`, whole.crc, len(parts))
	s.objects[key] = whole
	delete(s.uploads, id)
	w.Header().Set("X-Oss-Hash-Crc64ecma", strconv.FormatUint(whole.crc, 10))
	reply(w, 200, struct {
		XMLName                     xml.Name `xml:"CompleteMultipartUploadResult"`
		Location, Bucket, Key, ETag string
	}{Bucket: s.Bucket, Key: key, ETag: whole.etag})
}

func (s *Server) abort(w http.ResponseWriter, key, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.uploads[id]
	if u == nil || u.key != key {
		fail(w, 404, "NoSuchUpload", "The specified upload does not exist.")
		return
	}
	delete(s.uploads, id)
	w.WriteHeader(204)
}
