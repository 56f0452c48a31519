package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/session/spool"
)

// outcome is what became of a workspace that was to be kept.
type outcome uint8

const (
	kept        outcome = iota // in the store or safe in the spool, or there is nothing to keep
	lost                       // too large, too slow, or the runner is gone; the log says so
	refused                    // by the store, and then by the spool for want of room
	failed                     // to be had from the runner; worth another try
	interrupted                // by a shutdown; the next process does it
)

const (
	archiveType = "application/gzip"
	// maxUploads bounds concurrent uploads: each holds a few MiB of its stream.
	maxUploads = 4
	// maxExamples and exampleBytes bound what the log says of what was left out.
	maxExamples, exampleBytes = 10, 200
)

var (
	// errTooSlow is the cause of what took its whole time.
	errTooSlow = errors.New("took longer than allowed")
	// errUploadEnded is what a pack sees of an upload that failed.
	errUploadEnded = errors.New("upload has ended")
)

// archive keeps the workspace of a session that ends at t, in the bucket or else
// in the spool. The caller holds the session's lock, or the session is buried. Of
// archives under one key the one that ended later stays. A late one is tried
// again: something younger may be stored by now, so it goes by way of the spool,
// where that is looked for.
func (m *Manager) archive(s *session, t *target, e ending) outcome {
	unlock, err := m.keys.lock(m.hard, t.place())
	if err != nil {
		return interrupted
	}
	defer unlock()
	log := m.log.With("session", s.id, "storage", t.storage, "key", t.key)
	m.mu.Lock()
	unwanted, unused := s.unwanted, !s.used
	if !e.late {
		// Not before the lock is held: what the store dates later than this is either
		// this archive or a younger one.
		s.phase, s.storage, s.ended, s.reaped = PhaseEnding, &t.storage, m.stampLocked(), e.reaped
		s.provider = t.storage.Provider
	}
	ended := s.ended
	m.mu.Unlock()
	if !unwanted && unused && !m.isFirst(s, t) {
		log.Info("workspace is not archived: nothing was done in it")
		unwanted = true
	}
	if unwanted {
		m.cleanSoon(t)
		return kept
	}
	m.trySave(s)
	if s.keepPending {
		m.setPendingBeside(t)
	}
	if !e.late {
		err := m.upload(log, s, t)
		if err == nil {
			m.supersede(t, ended, "")
			return kept
		}
		if o := m.hopeless(log, err); o != failed {
			return o
		}
		log.Warn("cannot store an archive; trying the spool", "err", err)
	}
	err = m.intoSpool(log, s, t, ended)
	switch {
	case err == nil:
		m.wakeDelivery()
		return kept
	case errors.Is(err, spool.ErrFull), errors.Is(err, spool.ErrWrite):
		log.Error("cannot keep an archive in the spool either", "err", err)
		return refused
	case errors.Is(err, errTooSlow) && m.hard.Err() == nil:
		log.Error("workspace is not archived: packing it takes too long", "timeout", m.cfg.ArchiveTimeout)
		return lost
	}
	o := m.hopeless(log, err)
	if o == failed {
		log.Warn("cannot pack a workspace", "err", err)
	}
	return o
}

// isFirst tells whether nothing was ever kept at t, so that even the workspace of
// a session that was never used is better than none. Else that may be older than
// what is kept, or what a client has discarded. A session that a client never
// knew of, for its creation was not answered, must not do harm when it expires.
func (m *Manager) isFirst(s *session, t *target) bool {
	if s.restored || len(m.pending(t)) > 0 {
		return false
	}
	for _, other := range m.endingAt(t) {
		m.mu.Lock()
		worthMore := other != s && other.used
		m.mu.Unlock()
		if worthMore {
			return false
		}
	}
	ctx, cancel := context.WithTimeoutCause(m.hard, m.cfg.ArchiveTimeout, errTooSlow)
	defer cancel()
	obj, err := t.stat(ctx, t.key)
	return obj == nil && err == nil
}

// hopeless sorts out errors that no other place to put the archive would cure.
// All others are failed.
func (m *Manager) hopeless(log *slog.Logger, err error) outcome {
	switch {
	case m.hard.Err() != nil:
		return interrupted
	case errors.Is(err, runner.ErrNotFound):
		log.Warn("runner is gone and its workspace with it", "err", err)
		return lost
	case errors.Is(err, runner.ErrTooLarge):
		log.Error("workspace is not archived: it is too large", "max_bytes", m.cfg.MaxArchiveBytes)
		return lost
	}
	return failed
}

// upload streams a workspace from its runner into the bucket.
func (m *Manager) upload(log *slog.Logger, s *session, t *target) error {
	if err := m.uploads.acquire(m.hard, noTimeout, nil); err != nil {
		return err
	}
	defer m.uploads.release()
	ctx, cancel := context.WithTimeoutCause(m.hard, m.cfg.ArchiveTimeout, errTooSlow)
	defer cancel()
	key, err := m.makeRoom(ctx, t, s.lineage)
	if err != nil {
		return err
	}
	// The pack ends when the upload does and the upload when the pack does: each
	// sees the other's error through the pipe. The pack's own counts first.
	pr, pw := io.Pipe()
	var stats runner.PackStats
	packed := make(chan error, 1)
	m.work.Go(func() {
		var err error
		stats, err = s.runner.Pack(ctx, pw, m.cfg.MaxArchiveBytes)
		pw.CloseWithError(err)
		packed <- err
	})
	size, err := t.bucket.Put(ctx, key, pr, archiveType)
	pr.CloseWithError(errUploadEnded)
	packErr := <-packed
	if err != nil {
		m.soil(t, s.lineage)
	}
	switch {
	case packErr != nil && (err == nil || !errors.Is(packErr, errUploadEnded)):
		return fmt.Errorf("packing the workspace: %w", packErr)
	case err != nil:
		return err
	}
	logStats(log.With("bytes", size), "workspace archived", stats)
	m.clean(ctx, t)
	m.dropLayers(ctx, t, s.lineage)
	return nil
}

// intoSpool packs a workspace into the spool and takes older entries of its key
// out of it. It fails with errTooSlow where that takes too long.
func (m *Manager) intoSpool(log *slog.Logger, s *session, t *target, ended time.Time) error {
	ctx, cancel := context.WithTimeoutCause(m.hard, m.cfg.ArchiveTimeout, errTooSlow)
	defer cancel()
	head := m.head(t, ended)
	head.Lineage = s.lineage
	var stats runner.PackStats
	e, err := m.deps.Spool.Add(head, func(w io.Writer) (err error) {
		stats, err = s.runner.Pack(ctx, w, m.cfg.MaxArchiveBytes)
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return err
	})
	if err != nil {
		return err
	}
	logStats(log.With("bytes", e.Size), "workspace kept in the spool", stats)
	m.supersede(t, ended, e.Name)
	return nil
}

// makeRoom returns the key for a new archive at t, where it replaces nothing that
// is neither in it nor copied.
func (m *Manager) makeRoom(ctx context.Context, t *target, l spool.Lineage) (key string, err error) {
	if l.Partial {
		return m.freeLayer(ctx, t)
	}
	for _, bad := range l.Bad {
		to, err := t.copyBeside(ctx, bad)
		if err != nil {
			return "", err
		}
		m.log.Warn("keeping an archive that could not be restored beside its successor", "storage", t.storage, "key", to)
	}
	return t.key, nil
}

// layerPause is more than the grain of any store's clock, so that a layer is dated
// later than its base.
const layerPause = 1100 * time.Millisecond

// freeLayer returns the key on top of what is kept at t: the base where there is
// nothing yet.
func (m *Manager) freeLayer(ctx context.Context, t *target) (key string, err error) {
	base, err := t.stat(ctx, t.key)
	if err != nil {
		return "", err
	}
	for n := 1; n <= maxLayers; n++ {
		obj, err := t.stat(ctx, t.layer(n))
		switch {
		case err != nil:
			return "", err
		case obj == nil && base == nil && n == 1:
			return t.key, nil
		case obj == nil:
			if base != nil {
				if err := wait(ctx, layerPause, nil, nil, nil); !errors.Is(err, errQueueTimeout) {
					return "", err
				}
			}
			m.log.Warn("storing a workspace on top of what could not be restored into it", "storage", t.storage, "key", t.layer(n))
			return t.layer(n), nil
		}
	}
	return "", fmt.Errorf("there are %d layers at %q already", maxLayers, t.key)
}

// dropLayers removes the layers that a new base has replaced. One that it does
// not know of is copied first. Where that fails, what stays is no younger than
// its base, so that nobody takes it for a layer of it.
func (m *Manager) dropLayers(ctx context.Context, t *target, l spool.Lineage) {
	if l.Partial {
		return
	}
	for n := 1; n <= maxLayers; n++ {
		obj, err := t.stat(ctx, t.layer(n))
		if err == nil && obj == nil {
			return
		}
		if err == nil && n > l.Layers {
			_, err = t.copyBeside(ctx, t.layer(n))
		}
		if err == nil {
			err = t.bucket.Delete(ctx, t.layer(n))
		}
		if err != nil {
			m.log.Warn("cannot remove a layer that was replaced", "storage", t.storage, "key", t.layer(n), "err", err)
			return
		}
	}
}

// logStats says what was packed or unpacked, and what was left out of it.
func logStats(log *slog.Logger, what string, stats runner.PackStats) {
	log.Info(what, "files", stats.Files, "dirs", stats.Dirs, "content_bytes", stats.Bytes)
	if stats.Left == 0 {
		return
	}
	var examples []string
	for _, e := range stats.Examples[:min(len(stats.Examples), maxExamples)] {
		examples = append(examples, fmt.Sprintf("%q", e[:min(len(e), exampleBytes)]))
	}
	log.Warn("what could not be carried was left out", "entries", stats.Left, "for_example", examples)
}
