package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/session/seal"
	"github.com/hjxwz123/aivory-sandbox/internal/session/spool"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// restore fills the workspace of a session that nobody knows yet with what is
// kept at t. What cannot be restored costs its files and a line in the log, and
// is then kept from being overwritten. It fails where ctx ends, and with
// runner.ErrNotFound where an archive took the runner down: that one is passed
// over by the session's successor.
func (m *Manager) restore(ctx context.Context, s *session, t *target) error {
	log := m.log.With("session", s.id, "storage", t.storage)
	m.waitForEndings(ctx, t.stem)
	err := m.restoreWithin(ctx, log, s, t)
	if ctx.Err() != nil {
		return fmt.Errorf("restoring a workspace: %w", context.Cause(ctx))
	}
	if err != nil && errors.Is(err, runner.ErrNotFound) {
		return err
	}
	whole := err == nil && len(s.lineage.Bad) == 0 && !s.keepPending
	if err != nil {
		log.Error("cannot restore a workspace; the session goes on with what there is", "key", t.key, "err", err)
	}
	if whole {
		return nil
	}
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
		s.restored, s.lineage.Partial = true, true
		return err
	}
	defer unlock()
	e, found := m.newestPending(log, t)
	switch {
	case !found:
		return m.restoreStored(ctx, log, s, t)
	case e.Purge: // it was discarded, though the store does not know yet
		s.restored = true
		return nil
	}
	// The spool knows better than the store, but for an archive whose session could
	// not see what is stored: that lies on top.
	s.restored = true
	var below error
	if e.Lineage.Partial {
		below = m.restoreStored(ctx, log, s, t)
		if errors.Is(below, runner.ErrNotFound) {
			return below
		}
	} else {
		s.lineage = spool.Lineage{Layers: e.Lineage.Layers, Bad: union(s.lineage.Bad, e.Lineage.Bad)}
	}
	if s.keepPending { // it took the runner down before
		s.lineage.Partial = true
		return below
	}
	return errors.Join(below, m.restorePending(ctx, log, s, e))
}

// newestPending returns the youngest entry of the spool for t that can be read.
// The caller holds the lock of t.
func (m *Manager) newestPending(log *slog.Logger, t *target) (spool.Entry, bool) {
	pending := m.pending(t)
	for _, e := range slices.Backward(pending) {
		if e.Purge {
			return e, true
		}
		body, err := m.deps.Spool.Open(e.Name)
		if err == nil {
			err = body.Close()
		}
		if err == nil {
			return e, true
		}
		log.Error("cannot read an archive in the spool; keeping it aside", "entry", e.Name, "err", err)
		if err := m.deps.Spool.SetAside(e.Name); err != nil {
			log.Error("cannot keep a damaged archive aside", "entry", e.Name, "err", err)
		}
	}
	return spool.Entry{}, false
}

// restorePending unpacks an archive from the spool.
func (m *Manager) restorePending(ctx context.Context, log *slog.Logger, s *session, e spool.Entry) error {
	body, err := m.deps.Spool.Open(e.Name)
	if err == nil {
		var stats runner.PackStats
		stats, err = s.runner.Unpack(ctx, body)
		if err = errors.Join(err, body.Close()); err == nil {
			logStats(log.With("key", e.Key), "workspace restored from the spool", stats)
			return nil
		}
	}
	// What is stored was not looked at, or lies below.
	s.keepPending, s.lineage.Partial = true, true
	if errors.Is(err, seal.ErrUnreadable) {
		log.Error("an archive in the spool is damaged; keeping it aside", "entry", e.Name)
		err = errors.Join(err, m.deps.Spool.SetAside(e.Name))
	}
	return err
}

// restoreStored unpacks what the store holds at t, layer upon layer. It fails
// where the store cannot be read.
func (m *Manager) restoreStored(ctx context.Context, log *slog.Logger, s *session, t *target) error {
	var base time.Time
	for n := 0; n <= maxLayers; n++ {
		key := t.layer(n)
		body, obj, err := storage.GetLimit(ctx, t.bucket, key, m.cfg.MaxArchiveBytes)
		switch {
		case errors.Is(err, storage.ErrNotExist):
			if n == 0 {
				continue // layers may have outlived it
			}
			return nil
		case errors.Is(err, storage.ErrTooLarge):
			s.restored, s.lineage.Layers = true, n
			s.setBad(log, key, err)
			continue
		case err != nil:
			s.restored, s.lineage.Partial = true, true
			return err
		}
		s.restored, s.lineage.Layers = true, n
		if n == 0 {
			base = obj.ModTime
		}
		// A layer is stored a while after its base: see freeLayer. One that is not was
		// replaced by that base, and could not be removed.
		stale := n > 0 && !obj.ModTime.IsZero() && !obj.ModTime.After(base)
		if stale || slices.Contains(s.lineage.Bad, key) {
			err = nil
		} else {
			err = m.unpack(ctx, log, s, key, body)
		}
		if cerr := body.Close(); cerr != nil {
			log.Debug("cannot close an archive", "key", key, "err", cerr)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unpack unpacks an archive from the store. An archive that is to blame costs no
// more than itself, unless it takes the runner or all the time there is.
func (m *Manager) unpack(ctx context.Context, log *slog.Logger, s *session, key string, body io.Reader) error {
	watched := &bodyWatch{r: body}
	stats, err := s.runner.Unpack(ctx, watched)
	switch {
	case err == nil:
		logStats(log.With("key", key), "workspace restored", stats)
		return nil
	case watched.err != nil && !errors.Is(watched.err, storage.ErrTooLarge):
		s.lineage.Partial = true
		return err
	}
	s.setBad(log, key, err)
	if errors.Is(err, runner.ErrNotFound) || ctx.Err() != nil {
		return err
	}
	return nil
}

// setBad notes that an archive cannot be restored.
func (s *session) setBad(log *slog.Logger, key string, err error) {
	log.Error("cannot restore a workspace from an archive; the session goes on without it", "key", key, "err", err)
	s.lineage.Bad = union(s.lineage.Bad, []string{key})
}

func union(a, b []string) []string {
	a = slices.Clone(a)
	for _, x := range b {
		if !slices.Contains(a, x) {
			a = append(a, x)
		}
	}
	return a
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
