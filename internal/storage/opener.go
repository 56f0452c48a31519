package storage

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
)

// Driver makes the bucket that a block describes. It reports false, and no
// error, where the block lacks what the driver needs; an error is fault.Invalid
// where the block has it and it cannot be right. It makes no request.
type Driver func(ctx context.Context, cfg Config) (Bucket, bool, error)

// maxOpen is how many buckets an Opener keeps.
const maxOpen = 64

// Opener finds the bucket of a request's storage block. It keeps the 64 that
// were used last, so that requests share clients, connections and temporary
// credentials. It is safe for concurrent use.
type Opener struct {
	drivers map[string]Driver

	mu   sync.Mutex
	open map[[sha256.Size]byte]*list.Element
	used *list.List // of *opened, the last used in front
}

type opened struct {
	id     [sha256.Size]byte
	bucket Bucket
}

// NewOpener returns an opener of the drivers that are given under the provider
// names that clients use. The caller does not change the map any more.
func NewOpener(drivers map[string]Driver) *Opener {
	return &Opener{drivers: drivers, open: map[[sha256.Size]byte]*list.Element{}, used: list.New()}
}

// Open returns the bucket of cfg, and whether cfg is effective: it names a
// provider that this service has, and all that the provider needs. Ineffective
// is not an error. Open makes no request, so an effective bucket may still be
// unreachable. Nobody closes the bucket.
func (o *Opener) Open(ctx context.Context, cfg Config) (Bucket, bool, error) {
	driver, ok := o.drivers[cfg.Provider]
	if !ok {
		return nil, false, nil
	}
	id, err := fingerprint(cfg)
	if err != nil {
		return nil, false, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if e, ok := o.open[id]; ok {
		o.used.MoveToFront(e)
		return e.Value.(*opened).bucket, true, nil
	}
	b, ok, err := driver(ctx, cfg)
	if err != nil || !ok {
		return nil, false, err
	}
	o.open[id] = o.used.PushFront(&opened{id, b})
	for o.used.Len() > maxOpen {
		last := o.used.Remove(o.used.Back()).(*opened)
		delete(o.open, last.id)
	}
	return b, true, nil
}

// fingerprint identifies all of a block but its prefix, which drivers do not
// look at. It is a hash so that the cache's keys give no secret away.
func fingerprint(cfg Config) ([sha256.Size]byte, error) {
	cfg.Prefix = ""
	text, err := json.Marshal(cfg)
	if err != nil {
		return [sha256.Size]byte{}, fmt.Errorf("cannot identify storage block: %w", err)
	}
	return sha256.Sum256(text), nil
}
