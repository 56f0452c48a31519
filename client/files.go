package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"strings"
	"syscall"
)

// FileInfo is one entry of a listing.
type FileInfo struct {
	Path string `json:"path"` // relative to /workspace
	Size int64  `json:"size"` // bytes
}

// ListFiles lists the regular files of the workspace, 500 at most.
func (s *Session) ListFiles(ctx context.Context) (files []FileInfo, err error) {
	err = s.do(ctx, nil, func(id string) error {
		var list struct {
			Files []FileInfo `json:"files"`
		}
		err := s.client.call(ctx, http.MethodPost, "/files/list", map[string]any{"session_id": id}, &list)
		files = list.Files
		return markLost(err)
	})
	return files, err
}

// ResetInputs empties /workspace/uploads and /workspace/skills.
func (s *Session) ResetInputs(ctx context.Context) error {
	return s.do(ctx, nil, func(id string) error {
		var done struct {
			Gone bool `json:"session_gone"`
		}
		err := s.client.call(ctx, http.MethodPost, "/files/reset-inputs", map[string]any{"session_id": id}, &done)
		if err == nil && done.Gone {
			err = &Error{Status: http.StatusNotFound, Detail: "session is gone", lost: true}
		}
		return err
	})
}

// WriteFile writes what body gives to a workspace path. It is encoded while it is
// sent, so memory does not grow with it. A file that was there is replaced as a
// whole or not at all. A body that can seek is read from where it stands.
func (s *Session) WriteFile(ctx context.Context, path string, body io.Reader) error {
	sent, err := newUpload(body)
	if err != nil {
		return err
	}
	return s.do(ctx, sent.again, func(id string) error {
		return markLost(sent.send(ctx, s.client, "/files", map[string]any{"session_id": id, "path": path}, nil))
	})
}

// upload is a body that is sent in the field data_base64 of a request.
type upload struct {
	body   io.Reader
	seeker io.Seeker // the same, where its size is known
	start  int64
	size   int64 // -1 where it is not known
}

// newUpload refuses a directory, which opens as a file does.
func newUpload(body io.Reader) (*upload, error) {
	if f, ok := body.(interface{ Stat() (fs.FileInfo, error) }); ok {
		info, err := f.Stat()
		if err != nil {
			return nil, fmt.Errorf("cannot read what is to be sent: %w", err)
		}
		if info.IsDir() {
			name := info.Name()
			if f, ok := body.(interface{ Name() string }); ok {
				name = f.Name()
			}
			return nil, fmt.Errorf("cannot read what is to be sent: %w", &fs.PathError{Op: "read", Path: name, Err: syscall.EISDIR})
		}
	}
	u := &upload{body: body, size: -1}
	if seeker, ok := body.(io.Seeker); ok {
		// A pipe that is a file cannot.
		if start, size, err := measure(seeker); err == nil {
			u.seeker, u.start, u.size = seeker, start, size
		}
	}
	return u, nil
}

// again makes ready to send the body once more.
func (u *upload) again() error {
	if u.seeker == nil {
		return errors.New("the body cannot be read twice")
	}
	_, err := u.seeker.Seek(u.start, io.SeekStart)
	return err
}

// send makes a request of other fields and the body, and decodes the answer into
// out, unless that is nil.
func (u *upload) send(ctx context.Context, c *Client, path string, fields map[string]any, out any) error {
	head, err := encode(fields)
	if err != nil {
		return err
	}
	before, after := strings.TrimSuffix(string(head), "}")+`,"data_base64":"`, `"}`
	length, src := int64(-1), u.body
	if u.size >= 0 {
		src = io.LimitReader(u.body, u.size)
		length = int64(len(before)+len(after)) + (u.size+2)/3*4
	}
	sent := &encoder{src: src}
	resp, err := c.send(ctx, http.MethodPost, path, io.MultiReader(strings.NewReader(before), sent, strings.NewReader(after)), length)
	if err != nil {
		if sent.err != nil {
			err = fmt.Errorf("cannot read what is to be sent: %w", sent.err)
		}
		return err
	}
	return decode(resp, out)
}

// measure tells where a body stands and how much is left of it.
func measure(s io.Seeker) (start, size int64, err error) {
	if start, err = s.Seek(0, io.SeekCurrent); err != nil {
		return 0, 0, err
	}
	end, err := s.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, 0, err
	}
	if _, err = s.Seek(start, io.SeekStart); err == nil && end > math.MaxInt64/2 {
		err = errors.New("there is no end") // of a directory, say
	}
	return start, max(end-start, 0), err
}

// encodeBlock is a multiple of three, so that base64 of blocks is base64 of the
// whole.
const encodeBlock = 24 << 10

// encoder gives base64 of what src gives.
type encoder struct {
	src  io.Reader
	in   [encodeBlock]byte
	out  [encodeBlock / 3 * 4]byte
	left []byte // of out
	end  bool
	err  error // of src
}

func (e *encoder) Read(p []byte) (int, error) {
	if len(e.left) == 0 {
		if e.err != nil {
			return 0, e.err
		}
		if e.end {
			return 0, io.EOF
		}
		n, err := io.ReadFull(e.src, e.in[:])
		switch {
		case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
			e.end = true
		case err != nil:
			e.err = err
			return 0, err
		}
		base64.StdEncoding.Encode(e.out[:], e.in[:n])
		e.left = e.out[:base64.StdEncoding.EncodedLen(n)]
		if n == 0 {
			return 0, io.EOF
		}
	}
	n := copy(p, e.left)
	e.left = e.left[n:]
	return n, nil
}

// ReadFile opens a file of the workspace. It is decoded while it is read, so
// memory does not grow with it. The caller closes it; until then the service
// keeps the session for it. An answer that breaks off is io.ErrUnexpectedEOF.
func (s *Session) ReadFile(ctx context.Context, path string) (file io.ReadCloser, err error) {
	err = s.do(ctx, nil, func(id string) error {
		body, err := encode(map[string]any{"session_id": id, "path": path})
		if err != nil {
			return err
		}
		resp, err := s.client.send(ctx, http.MethodPost, "/files/get", bytes.NewReader(body), int64(len(body)))
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return s.findLost(ctx, id, readError(resp))
		}
		if file, err = openData(resp.Body); err != nil {
			return errors.Join(err, resp.Body.Close())
		}
		return nil
	})
	return file, err
}

// data is the content of an answer's one field.
type data struct {
	io.Reader
	body io.ReadCloser
}

func (d *data) Close() error { return d.body.Close() }

// openData reads up to the content of {"data_base64":"…"}.
func openData(body io.ReadCloser) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(body, 32<<10)
	for _, want := range []string{"{", `"data_base64"`, ":", `"`} {
		if err := expect(in, want); err != nil {
			return nil, fmt.Errorf("cannot read the answer: %w", err)
		}
	}
	quoted := &untilQuote{in: in}
	return &data{Reader: base64.NewDecoder(base64.StdEncoding, quoted), body: body}, nil
}

// expect reads white space and then the text.
func expect(in *bufio.Reader, text string) error {
	for {
		c, err := in.ReadByte()
		if err != nil {
			return noEOF(err)
		}
		if strings.IndexByte(" \t\r\n", c) >= 0 {
			continue
		}
		if err := in.UnreadByte(); err != nil {
			return err
		}
		got := make([]byte, len(text))
		if _, err := io.ReadFull(in, got); err != nil {
			return noEOF(err)
		}
		if string(got) != text {
			return fmt.Errorf("%q in place of %q", got, text)
		}
		return nil
	}
}

// untilQuote reads up to the quote that ends a string without escapes, which
// must come.
type untilQuote struct {
	in   *bufio.Reader
	done bool
}

func (u *untilQuote) Read(p []byte) (int, error) {
	if u.done || len(p) == 0 {
		return 0, io.EOF
	}
	if _, err := u.in.Peek(1); err != nil {
		return 0, noEOF(err)
	}
	buffered, _ := u.in.Peek(min(u.in.Buffered(), len(p)))
	n := len(buffered)
	if i := bytes.IndexByte(buffered, '"'); i >= 0 {
		n, u.done = i, true
	}
	n = copy(p, buffered[:n])
	_, _ = u.in.Discard(n)
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}
