// Package filestore keeps session records in files, one for each session, in a
// directory that one process uses at a time.
package filestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/session"
	"github.com/hjxwz123/aivory-sandbox/internal/session/seal"
)

const (
	// completeName is the file whose presence says that the records are all.
	completeName = "complete"
	suffix       = ".session"
	// maxRecord is far beyond any record, bytes.
	maxRecord = 64 << 10
)

// Store is a session.Store in the directory <state>/sessions. Records that
// cannot be read are moved to <state>/kept.
type Store struct {
	dir, kept string
	key       seal.Key
	log       *slog.Logger

	// step is asked before anything durable is done, so that tests can cut a
	// process short.
	step func(what string) error
}

var _ session.Store = (*Store)(nil)

// Open returns the store of a state directory. Its own directories are made,
// mode 0700, where they are missing.
func Open(state string, key seal.Key, log *slog.Logger) (*Store, error) {
	s := &Store{
		dir: filepath.Join(state, "sessions"), kept: filepath.Join(state, "kept"),
		key: key, log: log, step: func(string) error { return nil },
	}
	for _, dir := range []string{s.dir, s.kept} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("cannot make the directory of session records: %w", err)
		}
	}
	if err := seal.SyncDir(state); err != nil {
		return nil, fmt.Errorf("cannot make the directory of session records: %w", err)
	}
	return s, nil
}

func (s *Store) path(id string) string { return filepath.Join(s.dir, id+suffix) }

// sealContext says what a sealed record is, so that no file passes for another.
func sealContext(id string) string { return "session record " + id }

// Load implements session.Store.
func (s *Store) Load(context.Context) (records []session.Record, complete bool, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, false, fmt.Errorf("cannot look for session records: %w", err)
	}
	var unreadable []string
	for _, e := range entries {
		name := e.Name()
		id, isRecord := strings.CutSuffix(name, suffix)
		switch {
		case name == completeName:
			complete = true
		case strings.HasPrefix(name, "."): // of a write that never ended
			if err := os.Remove(filepath.Join(s.dir, name)); err != nil {
				s.log.Warn("cannot remove a half-written session record", "file", name, "err", err)
			}
		case isRecord:
			r, err := s.read(id)
			if err != nil {
				s.log.Error("cannot read a session record; keeping it aside and adopting its runner instead",
					"file", name, "kept_in", s.kept, "err", err)
				unreadable = append(unreadable, name)
				continue
			}
			records = append(records, r)
		default:
			s.log.Warn("unknown file among the session records", "file", name)
		}
	}
	if len(unreadable) == 0 {
		return records, complete, nil
	}
	// What they say is lost, so the rest is not all. That must be known before
	// they are out of the way, or a crash would make leftovers of their runners.
	if err := s.setIncomplete(); err != nil {
		return nil, false, err
	}
	for _, name := range unreadable {
		if err := s.setAside(name); err != nil {
			return nil, false, err
		}
	}
	return records, false, nil
}

func (s *Store) read(id string) (session.Record, error) {
	sealed, err := seal.ReadFile(s.path(id), maxRecord)
	if err != nil {
		return session.Record{}, err
	}
	plain, err := s.key.Open(sealed, sealContext(id))
	if err != nil {
		return session.Record{}, err
	}
	return decode(id, plain)
}

// decode reads a record and checks what the rest of the service relies on.
func decode(id string, plain []byte) (session.Record, error) {
	var r session.Record
	if err := json.Unmarshal(plain, &r); err != nil {
		return session.Record{}, errors.New("not a record") // the error may quote a secret
	}
	switch {
	case r.ID != id:
		return session.Record{}, errors.New("the record of another session")
	case !session.ValidID(r.ID), r.Handle == "", r.IdleTTL <= 0,
		r.Phase == session.PhaseEnding && (r.Storage == nil || r.Ended.IsZero()):
		return session.Record{}, errors.New("an incomplete record")
	case r.Phase != session.PhaseLive && r.Phase != session.PhaseEnding && r.Phase != session.PhaseGone:
		return session.Record{}, fmt.Errorf("a record in the unknown phase %q", r.Phase)
	}
	return r, nil
}

func (s *Store) setIncomplete() error {
	if err := s.step("incomplete"); err != nil {
		return err
	}
	err := os.Remove(filepath.Join(s.dir, completeName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot note that session records are missing: %w", err)
	}
	return seal.SyncDir(s.dir)
}

func (s *Store) setAside(name string) error {
	if err := s.step("set aside"); err != nil {
		return err
	}
	to := filepath.Join(s.kept, fmt.Sprintf("%s.%d", name, time.Now().UnixNano()))
	if err := os.Rename(filepath.Join(s.dir, name), to); err != nil {
		return fmt.Errorf("cannot keep an unreadable session record aside: %w", err)
	}
	return errors.Join(seal.SyncDir(s.kept), seal.SyncDir(s.dir))
}

// Save implements session.Store.
func (s *Store) Save(_ context.Context, r session.Record) error {
	if err := s.step("save " + string(r.Phase)); err != nil {
		return err
	}
	plain, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("cannot encode a session record: %w", err)
	}
	sealed, err := s.key.Seal(plain, sealContext(r.ID))
	if err != nil {
		return err
	}
	if err := seal.WriteFile(s.path(r.ID), sealed); err != nil {
		return fmt.Errorf("cannot keep a session record: %w", err)
	}
	if err := seal.SyncDir(s.dir); err != nil {
		return fmt.Errorf("cannot keep a session record: %w", err)
	}
	return nil
}

// Delete implements session.Store.
func (s *Store) Delete(_ context.Context, id string) error {
	if err := s.step("delete"); err != nil {
		return err
	}
	if err := os.Remove(s.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove a session record: %w", err)
	}
	return nil
}

// SetComplete implements session.Store.
func (s *Store) SetComplete(context.Context) error {
	if err := s.step("complete"); err != nil {
		return err
	}
	if err := seal.WriteFile(filepath.Join(s.dir, completeName), nil); err != nil {
		return fmt.Errorf("cannot note that session records are complete: %w", err)
	}
	return seal.SyncDir(s.dir)
}
