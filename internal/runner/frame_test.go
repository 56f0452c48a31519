package runner

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"testing/iotest"
)

// pieces are bytes in a vector: hexadecimal strings, or [string, count].
type pieces []byte

func (p *pieces) UnmarshalJSON(b []byte) error {
	var list []json.RawMessage
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	*p = nil
	for _, item := range list {
		var text string
		count := 1
		if err := json.Unmarshal(item, &text); err != nil {
			if err := json.Unmarshal(item, &[]any{&text, &count}); err != nil {
				return err
			}
		}
		raw, err := hex.DecodeString(text)
		if err != nil {
			return err
		}
		*p = append(*p, bytes.Repeat(raw, count)...)
	}
	return nil
}

type frame struct {
	Type    frameType `json:"type"`
	Payload pieces    `json:"payload"`
}

// vector is a line of testdata/vectors/frames.jsonl, which the agent's tests
// read as well. Then is "end" for a stream that ends between two frames, "cut"
// for one that ends within, "breach" for one that must be given up.
type vector struct {
	Name    string   `json:"name"`
	Readers []string `json:"readers"`
	Stream  pieces   `json:"stream"`
	Frames  []frame  `json:"frames"`
	Then    string   `json:"then"`
}

func vectors(t testing.TB) (all []vector) {
	t.Helper()
	b, err := os.ReadFile("testdata/vectors/frames.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var v vector
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatalf("%v in %.100s", err, line)
		}
		all = append(all, v)
	}
	return all
}

// readFrames reads a stream to its end or first fault.
func readFrames(r *bufio.Reader) (frames []frame, err error) {
	for {
		t, n, err := readHeader(r)
		if err != nil {
			return frames, err
		}
		payload := make([]byte, n)
		if _, err := io.ReadFull(r, payload); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return frames, err
		}
		frames = append(frames, frame{t, payload})
	}
}

func TestVectors(t *testing.T) {
	for _, v := range vectors(t) {
		if !slices.Contains(v.Readers, "service") {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			for _, source := range []io.Reader{bytes.NewReader(v.Stream), iotest.OneByteReader(bytes.NewReader(v.Stream)), iotest.DataErrReader(bytes.NewReader(v.Stream))} {
				got, err := readFrames(bufio.NewReader(source))
				if !slices.EqualFunc(got, v.Frames, func(a, b frame) bool { return a.Type == b.Type && bytes.Equal(a.Payload, b.Payload) }) {
					t.Errorf("read %d frames, want %d", len(got), len(v.Frames))
				}
				if want := map[string]error{"end": io.EOF, "cut": io.ErrUnexpectedEOF, "breach": ErrProtocol}[v.Then]; !errors.Is(err, want) {
					t.Errorf("ended with %v, want %v", err, want)
				}
			}
		})
		if v.Then == "end" {
			var encoded []byte
			for _, f := range v.Frames {
				encoded = appendFrame(encoded, f.Type, f.Payload)
			}
			if !bytes.Equal(encoded, v.Stream) {
				t.Errorf("%s: encoded as %.40x", v.Name, encoded)
			}
		}
	}
}

func TestPutHeader(t *testing.T) {
	for _, n := range []int{0, 1, maxFrame} {
		b := make([]byte, frameHeaderSize)
		putHeader(b, frameData, n)
		if want := appendFrame(nil, frameData, make([]byte, n))[:frameHeaderSize]; !bytes.Equal(b, want) {
			t.Errorf("%d: %x, want %x", n, b, want)
		}
	}
}

// FuzzReadHeader checks that no bytes make a header that is out of bounds, and
// that what was read is what was written.
func FuzzReadHeader(f *testing.F) {
	for _, v := range vectors(f) {
		if len(v.Stream) < 1<<10 {
			f.Add([]byte(v.Stream))
		}
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		frames, err := readFrames(bufio.NewReaderSize(bytes.NewReader(stream), readBuffer))
		var again []byte
		for _, f := range frames {
			switch n := len(f.Payload); f.Type {
			case frameData, frameStdout, frameStderr:
				if n > maxFrame {
					t.Errorf("type %d with %d bytes", f.Type, n)
				}
			case frameHello, frameResult, frameError, frameFile:
				if n > maxControl {
					t.Errorf("type %d with %d bytes", f.Type, n)
				}
			case frameEnd, frameBeat:
				if n > 0 {
					t.Errorf("type %d with %d bytes", f.Type, n)
				}
			default:
				t.Errorf("type %d", f.Type)
			}
			again = appendFrame(again, f.Type, f.Payload)
		}
		if !bytes.HasPrefix(stream, again) || err == io.EOF && len(again) != len(stream) {
			t.Errorf("%d bytes read as %d, %v", len(stream), len(again), err)
		}
	})
}
