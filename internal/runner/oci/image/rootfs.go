package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
)

// rootfs is a tar file of a root file system, as it is or in gzip. Its digest is
// that of the tar.
type rootfs struct {
	ctx  context.Context
	path string
}

// digest reads the file once, which is much quicker than unpacking it.
func (r rootfs) digest() (string, error) {
	f, in, err := r.open()
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, bounded{&tree{ctx: r.ctx}, in}); err != nil {
		return "", fmt.Errorf("cannot read %s: %w", r.path, err)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

func (r rootfs) unpack(t *tree) (*Image, error) {
	f, in, err := r.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h, end := sha256.New(), &ending{}
	if err := t.apply(io.TeeReader(in, io.MultiWriter(h, end)), false); err != nil {
		return nil, err
	}
	switch {
	case t.entries == 0:
		return nil, fmt.Errorf("%s holds no files", r.path)
	case !end.whole():
		return nil, fmt.Errorf("%s was cut short", r.path)
	}
	return &Image{Digest: "sha256:" + hex.EncodeToString(h.Sum(nil))}, nil
}

func (r rootfs) open() (*os.File, io.Reader, error) {
	f, err := os.Open(r.path)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot open the image: %w", err)
	}
	in := bufio.NewReaderSize(f, 1<<20)
	if start, _ := in.Peek(2); !bytes.Equal(start, []byte{0x1f, 0x8b}) {
		return f, in, nil
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("cannot read %s: %w", r.path, err)
	}
	return f, z, nil
}

// ending keeps the end of a tar. A tar ends with zeros; readers do not mind if
// it does not, and take one that was cut between two files for whole.
type ending struct{ last []byte }

const tarBlock = 512

func (e *ending) Write(p []byte) (int, error) {
	e.last = append(e.last, p[max(0, len(p)-tarBlock):]...)
	e.last = append(e.last[:0], e.last[max(0, len(e.last)-tarBlock):]...)
	return len(p), nil
}

func (e *ending) whole() bool {
	return len(e.last) == tarBlock && bytes.Equal(e.last, make([]byte, tarBlock))
}
