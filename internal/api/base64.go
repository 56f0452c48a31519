package api

import (
	"bytes"

	"github.com/segmentio/asm/base64"
)

// base64Decoder decodes standard base64 that comes in parts. It is as strict as
// Python's b64decode(validate=True): the alphabet and padding at the end, no
// white space, no missing and no further padding.
type base64Decoder struct {
	quad  [4]byte // characters that do not make four yet
	n     int
	ended bool // padding was seen: nothing may follow
	bad   bool
	out   []byte // scratch
}

const base64Block = 128 << 10

// keeper gets decoded bytes; they are its own only for the time of the call.
type keeper interface{ keep(p []byte) }

// add decodes the next part and gives what comes out of it to k.
func (d *base64Decoder) add(p []byte, k keeper) {
	if len(p) == 0 || d.bad {
		return
	}
	// The library's decoder passes over line ends, wherever they are.
	if d.ended || bytes.IndexByte(p, '\n') >= 0 || bytes.IndexByte(p, '\r') >= 0 {
		d.bad = true
		return
	}
	if d.n > 0 {
		n := copy(d.quad[d.n:], p)
		d.n += n
		p = p[n:]
		if d.n < len(d.quad) {
			return
		}
		d.n = 0
		d.block(d.quad[:], k)
	}
	for len(p) >= 4 && !d.bad {
		n := min(len(p)&^3, base64Block)
		d.block(p[:n], k)
		p = p[n:]
	}
	d.n = copy(d.quad[:], p)
	if d.n > 0 && d.ended {
		d.bad = true
	}
}

// block decodes whole groups of four.
func (d *base64Decoder) block(p []byte, k keeper) {
	if d.ended || d.bad {
		d.bad = true
		return
	}
	if need := base64.StdEncoding.DecodedLen(len(p)); cap(d.out) < need {
		d.out = make([]byte, need)
	}
	n, err := base64.StdEncoding.Decode(d.out[:cap(d.out)], p)
	if err != nil {
		d.bad = true
		return
	}
	d.ended = p[len(p)-1] == '='
	k.keep(d.out[:n])
}

// valid tells, after the last part, whether all of it was base64.
func (d *base64Decoder) valid() bool { return !d.bad && d.n == 0 }
