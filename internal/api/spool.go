package api

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

const (
	// spoolMemory is how much of an upload is held in memory, in bytes.
	spoolMemory = 1 << 20
	spoolPrefix = "body-"
	// Files are used again: to overwrite what is in the page cache costs a fraction
	// of bringing it there. So many are kept, of at most so many bytes, for so long.
	spareFiles    = 4
	spareBytes    = 64 << 20
	spareDuration = time.Minute
)

// spoolDir keeps uploads that are too big for memory. Its files are removed the
// moment they are open, so that they never outlive the process.
type spoolDir struct {
	dir  string
	max  int64 // bytes of all files together; 0 is no bound
	used atomic.Int64

	mu     sync.Mutex
	spares []*os.File
	expiry *time.Timer // of the spares
}

// newSpoolDir makes dir where it is missing and removes what a process that was
// killed between opening and removing a file left there.
func newSpoolDir(dir string, maxBytes int64) (*spoolDir, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the directory for request bodies: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, spoolPrefix+"*"))
	if err != nil {
		return nil, fmt.Errorf("cannot look for left-over request bodies: %w", err)
	}
	for _, name := range left {
		if err := os.Remove(name); err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("cannot remove a left-over request body: %w", err)
		}
	}
	return &spoolDir{dir: dir, max: maxBytes}, nil
}

// open returns a file that has no name any more, and what an earlier upload left
// in it. It goes back with release.
func (d *spoolDir) open() (*os.File, error) {
	d.mu.Lock()
	if n := len(d.spares); n > 0 {
		f := d.spares[n-1]
		d.spares = d.spares[:n-1]
		d.mu.Unlock()
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			_ = f.Close()
			return nil, err
		}
		return f, nil
	}
	d.mu.Unlock()
	f, err := os.CreateTemp(d.dir, spoolPrefix) // mode 0600
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// release takes back a file in which size bytes are in use.
func (d *spoolDir) release(f *os.File, size int64) {
	d.used.Add(-size)
	d.mu.Lock()
	defer d.mu.Unlock()
	if size > spareBytes || len(d.spares) == spareFiles {
		_ = f.Close() // it has no name, so that is the end of it
		return
	}
	d.spares = append(d.spares, f)
	if d.expiry == nil {
		d.expiry = time.AfterFunc(spareDuration, d.closeSpares)
	}
	d.expiry.Reset(spareDuration)
}

func (d *spoolDir) closeSpares() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.spares {
		_ = f.Close()
	}
	d.spares = nil
}

func (d *spoolDir) reserve(n int64) error {
	if used := d.used.Add(n); d.max > 0 && used > d.max {
		d.used.Add(-n)
		return fault.New(fault.Busy, "too many large uploads at once")
	}
	return nil
}

// spool holds one upload: in memory at first, in a file once it is bigger than
// spoolMemory. Not safe for concurrent use.
type spool struct {
	dir    *spoolDir
	mem    []byte
	file   *os.File
	inFile int64
}

// write adds p. On error the spool is of no further use but to be reset.
func (s *spool) write(p []byte) error {
	if s.file == nil {
		if len(s.mem)+len(p) <= spoolMemory {
			if need := len(s.mem) + len(p); need > cap(s.mem) {
				// append would grow in small steps, which costs more in all.
				s.mem = append(make([]byte, 0, max(need, min(2*cap(s.mem), spoolMemory))), s.mem...)
			}
			s.mem = append(s.mem, p...)
			return nil
		}
		f, err := s.dir.open()
		if err != nil {
			return fault.Wrap(fault.Internal, "cannot store the request body", err)
		}
		s.file = f
		if err := s.writeFile(s.mem); err != nil {
			return err
		}
		s.mem = nil
	}
	return s.writeFile(p)
}

func (s *spool) writeFile(p []byte) error {
	if err := s.dir.reserve(int64(len(p))); err != nil {
		return err
	}
	s.inFile += int64(len(p))
	if _, err := s.file.Write(p); err != nil {
		return fault.Wrap(fault.Internal, "cannot store the request body", err)
	}
	return nil
}

// open returns what was written, from its start. The reader is good until the
// next reset.
func (s *spool) open() io.ReadSeeker {
	if s.file != nil {
		return io.NewSectionReader(s.file, 0, s.inFile)
	}
	return bytes.NewReader(s.mem)
}

// reset throws away what was written and gives back its room.
func (s *spool) reset() {
	if s.file != nil {
		s.dir.release(s.file, s.inFile)
	}
	s.file, s.inFile = nil, 0
	s.mem = s.mem[:0]
}

// upload takes a base64 string while it is scanned.
type upload struct {
	spool spool
	max   int64 // decoded bytes that are kept; 0 is no bound
	size  int64 // decoded bytes
	dec   base64Decoder
	err   error // of the spool
}

// restart forgets a string that came under the same key before.
func (u *upload) restart() {
	u.spool.reset()
	u.size, u.err = 0, nil
	u.dec = base64Decoder{out: u.dec.out}
}

func (u *upload) add(p []byte) {
	if u.err == nil {
		u.dec.add(p, u)
	}
}

// keep stores decoded bytes. What is too large is decoded to its end, since
// only valid base64 can be too large, but no longer kept.
func (u *upload) keep(p []byte) {
	u.size += int64(len(p))
	if u.tooLarge() {
		u.spool.reset()
		return
	}
	if u.err == nil {
		u.err = u.spool.write(p)
	}
}

func (u *upload) tooLarge() bool { return u.max > 0 && u.size > u.max }

// valid tells, after the last part, whether all of it was base64.
func (u *upload) valid() bool { return u.dec.valid() }

// open returns the decoded bytes, size of them.
func (u *upload) open() io.ReadSeeker { return u.spool.open() }

// close frees what the upload holds.
func (u *upload) close() { u.spool.reset() }
