package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/session/seal"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// restore fills the workspace of a session that nobody knows yet with the archive
// at t. An archive that cannot be restored costs its files and a line in the
// log, and is then kept from being overwritten. It fails where ctx ends, and
// with runner.ErrNotFound where the archive took the runner down.
func (m *Manager) restore(ctx context.Context, s *session, t *target) error {
	log := m.log.With("session", s.id, "storage", t.storage, "key", t.key)
	s.restored = true // unless it turns out that there is nothing
	m.waitForEndings(ctx, t.stem)
	err := m.restoreWithin(ctx, log, s, t)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("restoring a workspace: %w", context.Cause(ctx))
	}
	log.Error("cannot restore a workspace; the session goes on with what there is", "err", err)
	if err := s.runner.ResetInputs(ctx); err != nil {
		if errors.Is(err, runner.ErrNotFound) {
			return err
		}
		log.Warn("cannot empty the inputs of a half-restored workspace", "err", err)
	}
	return nil
}

func (m *Manager) restoreWithin(ctx context.Context, log *slog.Logger, s *session, t *target) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.cfg.ArchiveTimeout, errTooSlow)
	defer cancel()
	unlock, err := m.keys.lock(ctx, t.place())
	if err != nil {
		s.keepExisting, s.keepPending = true, true
		return err
	}
	defer unlock()
	found, err := m.restorePending(ctx, log, s, t)
	if found || err != nil {
		return err
	}
	body, _, err := storage.GetLimit(ctx, t.bucket, t.key, m.cfg.MaxArchiveBytes)
	if errors.Is(err, storage.ErrNotExist) {
		s.restored = false
		return nil
	}
	if err == nil {
		var stats runner.PackStats
		stats, err = s.runner.Unpack(ctx, body)
		if err = errors.Join(err, body.Close()); err == nil {
			logStats(log, "workspace restored", stats)
			return nil
		}
	}
	s.keepExisting = true
	return err
}

// restorePending restores from the spool. Found means that it knew better than
// the bucket, be it that the archive was discarded.
func (m *Manager) restorePending(ctx context.Context, log *slog.Logger, s *session, t *target) (found bool, err error) {
	pending := m.pending(t)
	for i := len(pending) - 1; i >= 0; i-- {
		e := pending[i]
		if e.Purge {
			return true, nil
		}
		body, err := m.deps.Spool.Open(e.Name)
		if errors.Is(err, seal.ErrUnreadable) {
			log.Error("an archive in the spool is damaged; keeping it aside", "entry", e.Name)
			if err := m.deps.Spool.SetAside(e.Name); err != nil {
				return false, err
			}
			continue
		}
		// Whatever comes of it, the bucket still holds what it was to keep.
		s.keepExisting = e.KeepExisting
		if err == nil {
			var stats runner.PackStats
			stats, err = s.runner.Unpack(ctx, body)
			if err = errors.Join(err, body.Close()); err == nil {
				logStats(log, "workspace restored from the spool", stats)
				return true, nil
			}
		}
		s.keepExisting, s.keepPending = true, true
		return true, err
	}
	return false, nil
}

// waitForEndings waits for sessions that are just being archived under a stem, so
// that a conversation that comes back in this moment finds its files.
func (m *Manager) waitForEndings(ctx context.Context, stem string) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.QueueTimeout)
	defer cancel()
	for {
		var settled <-chan struct{}
		m.mu.Lock()
		for _, s := range m.sessions {
			if s.state == terminating && s.stem() == stem {
				settled = s.settled
			}
		}
		m.mu.Unlock()
		if settled == nil || wait(ctx, noTimeout, settled, nil, m.stopping) != nil {
			return
		}
	}
}

// stem names the session's archive.
func (s *session) stem() string { return storage.Stem(s.archiveKey, s.id) }
