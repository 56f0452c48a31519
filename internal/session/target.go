package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/session/spool"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// Buckets finds the bucket that a storage block means. Effective is false, and
// there is no error, where the block means none that this service can use.
type Buckets interface {
	Open(ctx context.Context, cfg storage.Config) (b storage.Bucket, effective bool, err error)
}

// target is where one archive is kept.
type target struct {
	storage storage.Config
	bucket  storage.Bucket
	stem    string
	key     string
}

// target returns where the archive with that stem is kept, in the first of the
// blocks that is effective, or nil where none is. A block that can never work is
// as good as none, but the log says so.
func (m *Manager) target(ctx context.Context, stem string, blocks ...*storage.Config) *target {
	for _, cfg := range blocks {
		if cfg == nil {
			continue
		}
		b, effective, err := m.deps.Buckets.Open(ctx, *cfg)
		if err != nil {
			m.log.Warn("cannot use a storage block", "storage", *cfg, "err", err)
			continue
		}
		if !effective {
			continue
		}
		key, err := cfg.ArchiveKey(stem)
		if err != nil {
			m.log.Warn("cannot archive under the prefix of a storage block", "storage", *cfg, "err", err)
			continue
		}
		return &target{storage: *cfg, bucket: b, stem: stem, key: key}
	}
	return nil
}

// provider returns the provider of a block that is effective, and nothing of others.
// It says nothing to the log: target does, when an archive is wanted.
func (m *Manager) provider(ctx context.Context, cfg *storage.Config) string {
	if cfg == nil {
		return ""
	}
	if _, effective, err := m.deps.Buckets.Open(ctx, *cfg); err != nil || !effective {
		return ""
	}
	if _, err := cfg.ArchiveKey("any"); err != nil {
		return ""
	}
	return cfg.Provider
}

// store identifies a bucket, whatever the credentials.
func store(cfg storage.Config) string {
	switch cfg.Provider {
	case "s3":
		return strings.Join([]string{cfg.Provider, cfg.S3Endpoint, cfg.S3Bucket}, "\x00")
	case "aliyun_oss":
		return strings.Join([]string{cfg.Provider, cfg.OSSEndpoint, cfg.OSSBucket}, "\x00")
	}
	return cfg.Provider
}

// place identifies an object among all stores.
func place(cfg storage.Config, key string) string { return store(cfg) + "\x00" + key }

func (t *target) place() string { return place(t.storage, t.key) }

// head describes a job for t in the spool. It takes over what older jobs for t,
// which it may supersede, know of parts that were left.
func (m *Manager) head(t *target, at time.Time) spool.Head {
	m.mu.Lock()
	defer m.mu.Unlock()
	return spool.Head{Storage: t.storage, Key: t.key, Stem: t.stem, Time: at.Round(0), Untidy: m.untidy[t.place()]}
}

// soilLocked notes that some of an upload may be left at t, or in a layer on it.
func (m *Manager) soilLocked(t *target, l spool.Lineage) {
	keys := 1
	if l.Partial {
		keys += maxLayers
	}
	m.untidy[t.place()] = max(m.untidy[t.place()], keys)
}

func (m *Manager) soil(t *target, l spool.Lineage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.soilLocked(t, l)
}

// clean removes what uploads to t that did not succeed may have left. What cannot be
// removed now is tried again with the next upload, or with the deletion. The caller
// holds the lock of t.
func (m *Manager) clean(ctx context.Context, t *target) {
	m.mu.Lock()
	keys := m.untidy[t.place()]
	m.mu.Unlock()
	for n := range keys {
		if err := t.bucket.RemoveLeftovers(ctx, t.layer(n)); err != nil {
			m.log.Warn("cannot remove what an unfinished upload may have left", "storage", t.storage, "key", t.layer(n), "err", err)
			return
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.untidy, t.place())
}

// cleanSoon is clean for where nothing is to follow that would do it. It neither
// waits nor wants the lock of t.
func (m *Manager) cleanSoon(t *target) {
	m.mu.Lock()
	untidy := m.untidy[t.place()] > 0
	m.mu.Unlock()
	if !untidy {
		return
	}
	m.work.Go(func() {
		ctx, cancel := context.WithTimeoutCause(m.hard, purgeTimeout, errTooSlow)
		defer cancel()
		unlock, err := m.keys.lock(ctx, t.place())
		if err != nil {
			m.log.Warn("cannot remove what an unfinished upload may have left", "storage", t.storage, "key", t.key, "err", err)
			return
		}
		defer unlock()
		m.clean(ctx, t)
	})
}

// maxLayers bounds the layers on a base. It takes that many sessions in a row
// that could not read their store to come there.
const maxLayers = 32

// layer returns the key of a layer; the base is number 0.
func (t *target) layer(n int) string {
	if n == 0 {
		return t.key
	}
	return fmt.Sprintf("%s.%d.tgz", strings.TrimSuffix(t.key, ".tgz"), n)
}

// stat tells of the object at key, nil where there is none.
func (t *target) stat(ctx context.Context, key string) (*storage.Object, error) {
	body, obj, err := t.bucket.Get(ctx, key)
	if errors.Is(err, storage.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := body.Close(); err != nil {
		return nil, err
	}
	return &obj, nil
}

// copyBeside copies the object at key, if there is one, to a key where nothing
// replaces it.
func (t *target) copyBeside(ctx context.Context, key string) (to string, err error) {
	body, _, err := t.bucket.Get(ctx, key)
	if errors.Is(err, storage.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	to = t.keptKey(time.Now(), newID())
	_, err = t.bucket.Put(ctx, to, body, archiveType)
	if err = errors.Join(err, body.Close()); err != nil {
		return "", fmt.Errorf("copying what is to be replaced: %w", err)
	}
	return to, nil
}

// keptKey is where an archive goes that must not be lost but is not the one to
// be restored. It ends as archives do, so that it is collected like them, and a
// dot is in no stem, so that it is never taken for one. Name makes it unique.
func (t *target) keptKey(at time.Time, name string) string {
	return fmt.Sprintf("%s%d-%.8s.tgz", t.keptPrefix(), at.Unix(), name)
}

func (t *target) keptPrefix() string { return strings.TrimSuffix(t.key, ".tgz") + ".kept-" }

// keyLocks order what is done to one object: archives, deletions, restores.
type keyLocks struct {
	mu    sync.Mutex
	locks map[string]*keyLock
}

type keyLock struct {
	gate  *gate
	users int
}

// lock waits for the lock of a place for as long as ctx lasts.
func (k *keyLocks) lock(ctx context.Context, place string) (unlock func(), err error) {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = make(map[string]*keyLock)
	}
	l := k.locks[place]
	if l == nil {
		l = &keyLock{gate: newGate(1, nil)}
		k.locks[place] = l
	}
	l.users++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.locks, place)
		}
	}
	if err := l.gate.acquire(ctx, noTimeout, nil); err != nil {
		leave()
		return nil, err
	}
	return func() {
		l.gate.release()
		leave()
	}, nil
}
