package docker

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"testing/iotest"
)

// readerConn is a connection with a reader for what comes in.
type readerConn struct {
	net.Conn
	r io.Reader
}

func (c readerConn) Read(p []byte) (int, error) { return c.r.Read(p) }

func streamOf(r io.Reader, buffer int) *stream {
	c := readerConn{r: r}
	return newStream(c, bufio.NewReaderSize(c, buffer))
}

func header(kind byte, length uint32) []byte {
	b := make([]byte, chunkHeader)
	b[0] = kind
	binary.BigEndian.PutUint32(b[4:], length)
	return b
}

func chunkOf(kind byte, payload string) []byte {
	return append(header(kind, uint32(len(payload))), payload...)
}

func join(chunks ...[]byte) []byte { return bytes.Join(chunks, nil) }

// TestStreamAtEveryEdge cuts a stream of chunks at every byte, and delivers it in
// several ways.
func TestStreamAtEveryEdge(t *testing.T) {
	whole := join(
		chunkOf(1, "ab"), chunkOf(2, "x"), chunkOf(1, ""), chunkOf(2, ""), chunkOf(1, "cde"),
		chunkOf(3, "yz"), chunkOf(1, "f"),
	)
	// Where the stream may end: behind each chunk.
	ends := map[int]string{0: "", 10: "ab", 19: "ab", 27: "ab", 35: "ab", 46: "abcde", 56: "abcde", 65: "abcdef"}
	if len(whole) != 65 {
		t.Fatalf("%d bytes", len(whole))
	}
	for cut := range len(whole) + 1 {
		for name, deliver := range map[string]func(io.Reader) io.Reader{
			"at once": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader,
			"halves": iotest.HalfReader, "with EOF": iotest.DataErrReader,
		} {
			for _, size := range []int{1, 2, 3, 64} {
				s := streamOf(deliver(bytes.NewReader(whole[:cut])), 16)
				var got []byte
				var err error
				for p := make([]byte, size); err == nil; {
					var n int
					n, err = s.Read(p)
					got = append(got, p[:n]...)
				}
				want, proper := ends[cut]
				switch {
				case proper && (err != io.EOF || string(got) != want):
					t.Errorf("cut %d, %s, %d: read %q, %v; want %q, EOF", cut, name, size, got, err, want)
				case !proper && !errors.Is(err, io.ErrUnexpectedEOF):
					t.Errorf("cut %d, %s, %d: read %q, %v; want an unexpected EOF", cut, name, size, got, err)
				}
				if cut == len(whole) && s.Diagnostics() != "xyz" {
					t.Errorf("diagnostics %q", s.Diagnostics())
				}
			}
		}
	}
}

func TestStreamIsAReader(t *testing.T) {
	payload := strings.Repeat("0123456789", 20_000)
	raw := join(chunkOf(1, payload[:7]), chunkOf(2, "noise"), chunkOf(1, payload[7:70_000]), chunkOf(1, payload[70_000:]))
	if err := iotest.TestReader(streamOf(bytes.NewReader(raw), readBuffer), []byte(payload)); err != nil {
		t.Error(err)
	}
}

func TestStreamOutOfStep(t *testing.T) {
	for name, raw := range map[string][]byte{
		"kind 0":       header(0, 1),
		"kind 4":       header(4, 1),
		"padding":      {1, 0, 1, 0, 0, 0, 0, 1},
		"plain text":   []byte("OCI runtime exec failed"),
		"in the midst": join(chunkOf(1, "ok"), []byte("HTTP/1.1")),
	} {
		_, err := io.ReadAll(streamOf(bytes.NewReader(raw), readBuffer))
		if !errors.Is(err, errChunk) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := streamOf(iotest.ErrReader(io.ErrClosedPipe), 16).Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a connection's error: %v", err)
	}
}

// TestStreamLengthsAreNotTrusted: chunks that claim 4 GiB cost no memory, and
// standard error without end neither memory nor the output's way.
func TestStreamLengthsAreNotTrusted(t *testing.T) {
	const flood = 64 << 20
	for name, raw := range map[string]io.Reader{
		"output":      io.MultiReader(bytes.NewReader(header(1, math.MaxUint32)), io.LimitReader(zeros{}, flood)),
		"diagnostics": io.MultiReader(bytes.NewReader(header(2, math.MaxUint32)), io.LimitReader(zeros{}, flood)),
	} {
		p := make([]byte, 32<<10)
		s := streamOf(raw, readBuffer)
		allocs := testing.AllocsPerRun(1, func() {
			for {
				if _, err := s.Read(p); err != nil {
					if !errors.Is(err, io.ErrUnexpectedEOF) {
						t.Errorf("%s: %v", name, err)
					}
					return
				}
			}
		})
		if allocs > 10 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
		if n := cap(s.tail); n > 2*maxDiagnostics {
			t.Errorf("%s: the tail holds %d bytes", name, n)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestDiagnosticsAreTheTail(t *testing.T) {
	for _, size := range []int{1, 100, maxDiagnostics - 1, maxDiagnostics, maxDiagnostics + 1, 3*maxDiagnostics + 5} {
		for _, piece := range []int{1, 7, 4095, 4096, 4097} {
			text := make([]byte, size)
			for i := range text {
				text[i] = byte('a' + i%26)
			}
			var raw []byte
			for rest := text; len(rest) > 0; {
				n := min(piece, len(rest))
				raw = append(raw, chunkOf(2, string(rest[:n]))...)
				rest = rest[n:]
			}
			s := streamOf(bytes.NewReader(raw), readBuffer)
			if _, err := io.ReadAll(s); err != nil {
				t.Fatal(err)
			}
			if want := string(text[max(0, size-maxDiagnostics):]); s.Diagnostics() != want {
				t.Errorf("%d bytes in pieces of %d: %d bytes, not the tail", size, piece, len(s.Diagnostics()))
			}
		}
	}
}

// FuzzStream compares with a plain decoder that holds everything.
func FuzzStream(f *testing.F) {
	f.Add(join(chunkOf(1, "ab"), chunkOf(2, "x"), chunkOf(1, "c")), uint8(3))
	f.Add(header(1, math.MaxUint32), uint8(1))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0}, uint8(0))
	f.Fuzz(func(t *testing.T, raw []byte, size uint8) {
		var want []byte
		rest, proper := raw, true
		for len(rest) > 0 {
			if len(rest) < chunkHeader || rest[0] < 1 || rest[0] > 3 || rest[1]|rest[2]|rest[3] != 0 {
				proper = false
				break
			}
			kind, n := rest[0], int(binary.BigEndian.Uint32(rest[4:]))
			rest = rest[chunkHeader:]
			if n > len(rest) {
				n, proper = len(rest), false
			}
			if kind == 1 {
				want = append(want, rest[:n]...)
			}
			rest = rest[n:]
			if !proper {
				break
			}
		}
		s := streamOf(bytes.NewReader(raw), 16)
		var got []byte
		var err error
		for p := make([]byte, int(size)+1); err == nil; {
			var n int
			n, err = s.Read(p)
			got = append(got, p[:n]...)
		}
		if !bytes.Equal(got, want) || (err == io.EOF) != proper {
			t.Errorf("read %q, %v; want %q, proper end %v", got, err, want, proper)
		}
	})
}
