package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// purgeTimeout bounds the first try to delete an archive; a client waits for it.
const purgeTimeout = 30 * time.Second

// discard deletes the archive with that stem, what was kept beside it and what
// the spool holds under it. Where the store fails, the deletion itself goes into
// the spool, so that nothing under the stem is restored from then on.
func (m *Manager) discard(stem string, blocks ...*storage.Config) {
	t := m.target(m.hard, stem, blocks...)
	if t == nil {
		for _, e := range m.deps.Spool.Entries() {
			if e.Stem == stem && !e.Purge {
				m.removePending(e)
			}
		}
		return
	}
	if err := m.purge(t); err != nil {
		m.log.Warn("cannot delete a discarded archive; trying again", "storage", t.storage, "key", t.key, "err", err)
		m.wakeDelivery()
	}
}

func (m *Manager) purge(t *target) error {
	unlock, err := m.keys.lock(m.hard, t.place())
	if err != nil {
		return err
	}
	defer unlock()
	m.mu.Lock()
	now := m.stampLocked()
	m.mu.Unlock()
	entry, err := m.deps.Spool.AddPurge(m.head(t, now))
	if err != nil { // nothing to fall back on, but it may still succeed
		m.log.Error("cannot keep a deletion in the spool", "storage", t.storage, "key", t.key, "err", err)
	}
	m.supersede(t, now, entry.Name)
	m.purgeBeside(t, now)
	ctx, cancel := context.WithTimeoutCause(m.hard, purgeTimeout, errTooSlow)
	defer cancel()
	if err := m.purgeBucket(ctx, t); err != nil {
		return err
	}
	if entry.Name != "" {
		m.removePending(entry)
	}
	return nil
}

// purgeBeside puts deletions in the place of archives in the spool that are to be
// kept beside t: one of them may be on its way to the store, in part or whole.
func (m *Manager) purgeBeside(t *target, at time.Time) {
	for _, e := range m.deps.Spool.Entries() {
		if e.Purge || store(e.Storage) != store(t.storage) || !strings.HasPrefix(e.Key, t.keptPrefix()) {
			continue
		}
		beside := &target{storage: e.Storage, bucket: t.bucket, stem: e.Stem, key: e.Key}
		if _, err := m.deps.Spool.AddPurge(m.head(beside, at)); err != nil {
			m.log.Error("cannot keep a deletion in the spool", "storage", beside.storage, "key", beside.key, "err", err)
		}
		m.removePending(e)
		m.wakeDelivery()
	}
}

// purgeBucket deletes an archive, its layers, and what was kept beside it.
func (m *Manager) purgeBucket(ctx context.Context, t *target) error {
	if err := t.bucket.Delete(ctx, t.key); err != nil {
		return err
	}
	m.clean(ctx, t)
	for n := 1; n <= maxLayers; n++ {
		obj, err := t.stat(ctx, t.layer(n))
		if err != nil {
			return err
		}
		if obj == nil {
			break
		}
		if err := t.bucket.Delete(ctx, t.layer(n)); err != nil {
			return err
		}
	}
	// Not every credential may list. Then what was kept beside stays, until it is
	// collected for its age.
	var beside []string
	errEnough := errors.New("enough")
	err := t.bucket.List(ctx, t.keptPrefix(), func(o storage.Object) error {
		beside = append(beside, o.Key)
		if len(beside) == 1000 {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		m.log.Warn("cannot look for what was kept beside a discarded archive", "storage", t.storage, "key", t.key, "err", err)
		return nil
	}
	for _, key := range beside {
		if err := t.bucket.Delete(ctx, key); err != nil {
			return fmt.Errorf("deleting what was kept beside: %w", err)
		}
	}
	return nil
}
