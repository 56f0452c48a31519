package osstest

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// minPart is the least size of a part that is not the last.
const minPart = 100 << 10

// multipart is an upload that is not finished.
type multipart struct {
	key, contentType string
	parts            map[int]object
}

func (s *Server) initiate(w http.ResponseWriter, r *http.Request, key string) {
	s.mu.Lock()
	s.next++
	id := fmt.Sprintf("upload-%d", s.next)
	s.uploads[id] = &multipart{key: key, contentType: r.Header.Get("Content-Type"), parts: map[int]object{}}
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
