package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/session/seal"
	"github.com/hjxwz123/aivory-sandbox/internal/session/spool"
)

// firstDelivery and lastDelivery bound the pause before a store that failed is
// tried again.
const (
	firstDelivery = 2 * time.Second
	lastDelivery  = 10 * time.Minute
)

var (
	errIneffective = errors.New("the storage block is not effective at present")
	// errWaits is no failure, but nothing can be done yet.
	errWaits = errors.New("a younger archive is still to come")
)

// wakeDelivery lets each store that has something in the spool be served, one
// thing at a time, so that a store that hangs holds up no other.
func (m *Manager) wakeDelivery() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing {
		return
	}
	for _, e := range m.deps.Spool.Entries() {
		id := store(e.Storage)
		if m.delivering[id] {
			continue
		}
		m.delivering[id] = true
		m.work.Go(func() { m.deliverTo(id) })
	}
}

// deliverTo does what the spool holds for a store until nothing is left.
func (m *Manager) deliverTo(id string) {
	pause := firstDelivery
	tried := map[string]int{}
	for {
		e, ok := m.nextDelivery(id, tried)
		if !ok {
			return
		}
		ctx, cancel := context.WithTimeoutCause(m.soft, m.cfg.ArchiveTimeout, errTooSlow)
		err := m.deliver(ctx, e)
		cancel()
		if err == nil {
			pause = firstDelivery
			continue
		}
		if m.soft.Err() != nil {
			return
		}
		tried[e.Name]++
		if errors.Is(err, errWaits) {
			if !m.sleep(firstDelivery) {
				return
			}
			continue
		}
		m.log.Warn("cannot do in a store what the spool holds; trying again", "storage", e.Storage, "key", e.Key,
			"purge", e.Purge, "since", e.Time, "in", pause, "err", err)
		if !m.sleep(pause) {
			return
		}
		pause = min(2*pause, lastDelivery)
	}
}

// nextDelivery returns what was tried least often, of that the oldest, so that
// something that can never be done holds up nothing else. Where nothing is left
// the store counts as served no longer, in the same moment.
func (m *Manager) nextDelivery(id string, tried map[string]int) (next spool.Entry, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.deps.Spool.Entries() {
		if store(e.Storage) == id && (!ok || tried[e.Name] < tried[next.Name]) {
			next, ok = e, true
		}
	}
	if !ok {
		delete(m.delivering, id)
	}
	return next, ok
}

// deliver does in the store what an entry of the spool says, and removes it.
func (m *Manager) deliver(ctx context.Context, e spool.Entry) error {
	b, effective, err := m.deps.Buckets.Open(ctx, e.Storage)
	if err != nil {
		return err
	}
	if !effective {
		return errIneffective
	}
	t := &target{storage: e.Storage, bucket: b, stem: e.Stem, key: e.Key}
	unlock, err := m.keys.lock(ctx, t.place())
	if err != nil {
		return err
	}
	defer unlock()
	e, ok := m.deps.Spool.Get(e.Name)
	if !ok || e.Key != t.key {
		return nil // superseded, or moved: then it comes again under its new key
	}
	if m.waitsFor(t, e) {
		return errWaits
	}
	if e.Purge {
		err = m.purgeBucket(ctx, t)
	} else {
		err = m.putPending(ctx, t, e)
	}
	damaged := errors.Is(err, seal.ErrUnreadable)
	if err != nil && !damaged {
		return err
	}
	m.clean(ctx, t) // while the entry is there to remind the next process of it
	if damaged {
		m.log.Error("an archive in the spool is damaged; keeping it aside", "entry", e.Name, "key", e.Key)
		return m.deps.Spool.SetAside(e.Name)
	}
	if _, wanted := m.deps.Spool.Get(e.Name); !wanted {
		return nil // discarded on its way; where it can be deleted the spool says so
	}
	if !e.Purge {
		m.log.Info("archive stored from the spool", "storage", t.storage, "key", t.key, "since", e.Time)
	}
	return m.deps.Spool.Remove(e.Name)
}

// putPending stores an archive from the spool, unless a younger one is there.
func (m *Manager) putPending(ctx context.Context, t *target, e spool.Entry) error {
	if err := m.uploads.acquire(ctx, noTimeout, nil); err != nil {
		return err
	}
	defer m.uploads.release()
	base, err := t.stat(ctx, t.key)
	if err != nil {
		return err
	}
	var beside string
	if base != nil && base.ModTime.After(e.Time) {
		// Somebody stored a younger one, or the store's clock runs ahead. Stored
		// beside, this one is safe, and its date tells which.
		beside = t.keptKey(e.Time, e.Name)
		ahead, err := m.putAndDate(ctx, t, beside, e.Name)
		if err != nil {
			return err
		}
		if base.ModTime.Add(-ahead).After(e.Time) {
			m.log.Warn("a younger archive is stored already; keeping an older one beside it", "storage", t.storage, "key", beside)
			return nil
		}
	}
	key, err := m.makeRoom(ctx, t, e.Lineage)
	if err != nil {
		return err
	}
	if err := m.putFromSpool(ctx, t, key, e.Name); err != nil {
		m.soil(t, e.Lineage)
		return err
	}
	m.dropLayers(ctx, t, e.Lineage)
	if beside != "" {
		return t.bucket.Delete(ctx, beside)
	}
	return nil
}

// putAndDate stores an archive and returns how far the store's clock runs ahead.
func (m *Manager) putAndDate(ctx context.Context, t *target, key, name string) (ahead time.Duration, err error) {
	if err := m.putFromSpool(ctx, t, key, name); err != nil {
		return 0, err
	}
	now := time.Now()
	// It has the same name each time it is tried, by whatever process.
	if err := t.bucket.RemoveLeftovers(ctx, key); err != nil {
		m.log.Warn("cannot remove what an unfinished upload may have left", "storage", t.storage, "key", key, "err", err)
	}
	obj, err := t.stat(ctx, key)
	if err != nil {
		return 0, err
	}
	if obj == nil {
		return 0, errors.New("what was stored cannot be found")
	}
	return obj.ModTime.Sub(now), nil
}

func (m *Manager) putFromSpool(ctx context.Context, t *target, key, name string) error {
	body, err := m.deps.Spool.Open(name)
	if err != nil {
		return err
	}
	watched := &bodyWatch{r: body}
	_, err = t.bucket.Put(ctx, key, watched, archiveType)
	if err = errors.Join(err, watched.err, body.Close()); err != nil {
		return fmt.Errorf("storing an archive from the spool: %w", err)
	}
	return nil
}

// bodyWatch remembers why reading failed: who reads need not say.
type bodyWatch struct {
	r   io.Reader
	err error
}

func (w *bodyWatch) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if err != nil && err != io.EOF {
		w.err = err
	}
	return n, err
}
