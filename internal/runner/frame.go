package runner

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// frameType is the first byte of a frame. agent/PROTOCOL.md describes them all.
type frameType byte

const (
	// From the service.
	frameSource  frameType = 0 // the agent itself
	frameRequest frameType = 1 // JSON
	frameData    frameType = 2 // part of a body, either way
	frameEnd     frameType = 3 // end of a body, either way
	frameCancel  frameType = 4 // end the run; with a byte, interrupt it
	// From the agent.
	frameHello  frameType = 16 // JSON
	frameStdout frameType = 17
	frameStderr frameType = 18
	frameResult frameType = 19 // JSON
	frameError  frameType = 20 // JSON
	frameBeat   frameType = 21 // nothing to say, still here
	frameFile   frameType = 22 // JSON: an artifact that follows
)

const (
	frameHeaderSize = 5
	// maxFrame bounds a payload in bytes. A longer one is a breach.
	maxFrame = 256 << 10
	// maxControl bounds a JSON payload from the agent in bytes.
	maxControl = 64 << 10
)

// appendFrame appends a frame's header and payload to b.
func appendFrame(b []byte, t frameType, payload []byte) []byte {
	b = append(b, byte(t))
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// putHeader writes a frame's header at the start of b.
func putHeader(b []byte, t frameType, length int) {
	b[0] = byte(t)
	binary.BigEndian.PutUint32(b[1:frameHeaderSize], uint32(length))
}

// readHeader reads the next frame's header and checks its length against what
// its type may have. The payload is the next length bytes of r. io.EOF is
// returned only where the stream ends between two frames.
func readHeader(r *bufio.Reader) (t frameType, length int, err error) {
	head, err := r.Peek(frameHeaderSize)
	if err != nil {
		if err == io.EOF && len(head) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return 0, 0, err
	}
	t = frameType(head[0])
	n := binary.BigEndian.Uint32(head[1:])
	limit := uint32(maxControl)
	switch t {
	case frameData, frameStdout, frameStderr:
		limit = maxFrame
	case frameEnd, frameBeat:
		limit = 0
	case frameHello, frameResult, frameError, frameFile:
	default:
		return 0, 0, fmt.Errorf("%w: frame of unknown type %d", ErrProtocol, head[0])
	}
	if n > limit {
		return 0, 0, fmt.Errorf("%w: frame of type %d with %d bytes, at most %d allowed", ErrProtocol, t, n, limit)
	}
	_, _ = r.Discard(frameHeaderSize) // peeked, cannot fail
	return t, int(n), nil
}
