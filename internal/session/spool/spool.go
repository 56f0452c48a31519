// Package spool keeps what could not be done in an object store yet: archives
// that could not be uploaded, and deletions.
//
// An entry is a head, which says what is to be done, and, for an archive, a body
// beside it. Both are encrypted. The body is written and synced first and the
// head put in place last, so that an entry is there whole or not at all.
package spool

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hjxwz123/aivory-sandbox/internal/session/seal"
)

var (
	// ErrFull means that an archive does not fit into the spool any more.
	ErrFull = errors.New("spool is full")
	// ErrWrite means that the spool's own files could not be written.
	ErrWrite = errors.New("cannot write into the spool")
)

// Entry is something in the spool.
type Entry struct {
	Head
	// Name is unique and never used again.
	Name string
	// Size is what the body takes on disk, bytes.
	Size int64
}

const (
	headSuffix = ".head"
	bodySuffix = ".body"
)

// Spool is the directory <state>/spool, used by one process at a time. What
// cannot be read is moved to <state>/kept. Methods are safe for concurrent use;
// who changes an entry makes sure that nobody else uses it.
type Spool struct {
	dir, kept string
	key       seal.Key
	max       int64
	log       *slog.Logger
	// step is asked before anything durable is done, so that tests can cut a
	// process short.
	step func(what string) error

	mu      sync.Mutex
	entries map[string]Entry
	used    int64 // bytes of all bodies, those being written included
}

// Open reads the spool of a state directory, which holds at most max bytes of
// bodies. Its directories are made, mode 0700, where they are missing, and what
// was half-written is removed.
func Open(state string, key seal.Key, max int64, log *slog.Logger) (*Spool, error) {
	s := &Spool{
		dir: filepath.Join(state, "spool"), kept: filepath.Join(state, "kept"),
		key: key, max: max, log: log, step: func(string) error { return nil }, entries: map[string]Entry{},
	}
	for _, dir := range []string{s.dir, s.kept} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("cannot make the spool: %w", err)
		}
	}
	if err := seal.SyncDir(state); err != nil {
		return nil, fmt.Errorf("cannot make the spool: %w", err)
	}
	if err := s.load(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Spool) load() error {
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("cannot read the spool: %w", err)
	}
	for _, f := range files {
		name, isHead := strings.CutSuffix(f.Name(), headSuffix)
		if !isHead || strings.HasPrefix(name, ".") {
			continue
		}
		head, err := s.readHead(name)
		var size int64
		if err == nil && !head.Purge {
			size, err = s.bodySize(name)
		}
		if err != nil {
			s.log.Error("cannot read an entry of the spool; keeping it aside", "entry", name, "kept_in", s.kept, "err", err)
			if err := s.moveAside(name); err != nil {
				return err
			}
			continue
		}
		s.entries[name] = Entry{Head: head, Name: name, Size: size}
		s.used += size
	}
	for _, f := range files { // what no head names was never finished, or is done
		name, isBody := strings.CutSuffix(f.Name(), bodySuffix)
		_, known := s.entries[name]
		if (isBody && !known) || strings.HasPrefix(f.Name(), ".") {
			if err := os.Remove(filepath.Join(s.dir, f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("cannot remove a half-written entry of the spool: %w", err)
			}
		}
	}
	return nil
}

func (s *Spool) headPath(name string) string { return filepath.Join(s.dir, name+headSuffix) }
func (s *Spool) bodyPath(name string) string { return filepath.Join(s.dir, name+bodySuffix) }

func (s *Spool) bodySize(name string) (int64, error) {
	info, err := os.Stat(s.bodyPath(name))
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Add puts an archive into the spool: what write writes. It returns once that
// is safe. It fails with ErrFull where there is no room, with ErrWrite where the
// disk fails, with write's error where write fails, and leaves nothing then.
func (s *Spool) Add(h Head, write func(io.Writer) error) (Entry, error) {
	e := Entry{Head: h, Name: newName()}
	err := s.writeBody(&e, write)
	if err == nil {
		err = s.writeHead(e.Name, h)
	}
	if err != nil {
		s.free(e.Size)
		if rerr := s.removeFiles(e.Name); rerr != nil {
			s.log.Warn("cannot remove a half-written entry of the spool", "entry", e.Name, "err", rerr)
		}
		return Entry{}, err
	}
	s.mu.Lock()
	s.entries[e.Name] = e
	s.mu.Unlock()
	return e, nil
}

// AddPurge puts a deletion into the spool. It returns once that is safe.
func (s *Spool) AddPurge(h Head) (Entry, error) {
	h.Purge = true
	e := Entry{Head: h, Name: newName()}
	if err := s.writeHead(e.Name, h); err != nil {
		return Entry{}, err
	}
	s.mu.Lock()
	s.entries[e.Name] = e
	s.mu.Unlock()
	return e, nil
}

func newName() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// writeBody writes and syncs a body. e.Size is what was reserved for it, also
// where it fails.
func (s *Spool) writeBody(e *Entry, write func(io.Writer) error) (err error) {
	if err := s.step("body"); err != nil {
		return err
	}
	f, err := os.OpenFile(s.bodyPath(e.Name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrWrite, err)
	}
	defer func() {
		if cerr := f.Close(); cerr != nil && err == nil {
			err = fmt.Errorf("%w: %w", ErrWrite, cerr)
		}
	}()
	out := bufio.NewWriterSize(&budgeted{spool: s, entry: e, w: f}, 256<<10)
	w, err := s.key.Writer(out, "spool body "+e.Name)
	if err != nil {
		return err
	}
	if err := write(w); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("%w: %w", ErrWrite, err)
	}
	return nil
}

// budgeted reserves room for what it writes.
type budgeted struct {
	spool *Spool
	entry *Entry
	w     io.Writer
}

func (b *budgeted) Write(p []byte) (int, error) {
	if !b.spool.reserve(int64(len(p))) {
		return 0, ErrFull
	}
	b.entry.Size += int64(len(p))
	n, err := b.w.Write(p)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrWrite, err)
	}
	return n, err
}

func (s *Spool) reserve(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used+n > s.max {
		return false
	}
	s.used += n
	return true
}

func (s *Spool) free(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
}

// Entries returns all entries, the oldest first.
func (s *Spool) Entries() []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.entries), func(a, b Entry) int { return a.Time.Compare(b.Time) })
}

// Get returns an entry as it is now, if it is still there.
func (s *Spool) Get(name string) (e Entry, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok = s.entries[name]
	return e, ok
}

// Open opens an archive's body; the caller closes it. Reading fails with
// seal.ErrUnreadable where the body is damaged.
func (s *Spool) Open(name string) (io.ReadCloser, error) {
	f, err := os.Open(s.bodyPath(name))
	if err != nil {
		return nil, fmt.Errorf("cannot open an archive in the spool: %w", err)
	}
	r, err := s.key.Reader(f, "spool body "+name)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &body{r, f}, nil
}

type body struct {
	io.Reader
	io.Closer
}

// Update changes an entry's head. It returns once that is safe.
func (s *Spool) Update(name string, h Head) error {
	if err := s.writeHead(name, h); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[name]
	e.Head = h
	s.entries[name] = e
	return nil
}

// Remove removes an entry. Removing one that is not there succeeds. It returns
// once the entry cannot come back.
func (s *Spool) Remove(name string) error {
	if err := s.step("remove"); err != nil {
		return err
	}
	if err := s.removeFiles(name); err != nil {
		return err
	}
	s.forget(name)
	return nil
}

// removeFiles removes the head first: a body alone is nothing.
func (s *Spool) removeFiles(name string) error {
	for _, path := range []string{s.headPath(name), s.bodyPath(name)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot remove an entry of the spool: %w", err)
		}
	}
	return seal.SyncDir(s.dir)
}

func (s *Spool) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= s.entries[name].Size
	delete(s.entries, name)
}

// SetAside moves an entry that turned out to be damaged to where unreadable
// things are kept.
func (s *Spool) SetAside(name string) error {
	if err := s.step("set aside"); err != nil {
		return err
	}
	if err := s.moveAside(name); err != nil {
		return err
	}
	s.forget(name)
	return nil
}

func (s *Spool) moveAside(name string) error {
	for _, suffix := range []string{bodySuffix, headSuffix} {
		err := os.Rename(filepath.Join(s.dir, name+suffix), filepath.Join(s.kept, name+suffix))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot keep an unreadable entry of the spool aside: %w", err)
		}
	}
	return errors.Join(seal.SyncDir(s.kept), seal.SyncDir(s.dir))
}

// Usage returns how many entries there are and how many bytes bodies take.
func (s *Spool) Usage() (entries int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries), s.used
}
