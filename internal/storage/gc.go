package storage

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// gcWorkers is how many objects are removed at a time.
const gcWorkers = 8

// GCResult counts what a collection did.
type GCResult struct {
	Deleted    int
	Scanned    int   // objects listed, of any age
	FreedBytes int64 // size of what was deleted
}

// GC removes workspace archives and documents for parsing that are older than
// maxAge seconds: `.tgz` objects under <prefix>/workspaces/ and all objects under
// <prefix>/mineru/. An object whose age the store does not tell stays. A maxAge
// of zero or less and an ineffective block do nothing and are no error. A prefix
// that cannot be is fault.Invalid, a store's failure fault.Upstream; what was
// deleted until then stays deleted, and so it does on cancel.
func (s *Service) GC(ctx context.Context, cfg Config, maxAge int64) (GCResult, error) {
	if maxAge <= 0 {
		return GCResult{}, nil
	}
	b, ok, err := s.opener.Open(ctx, cfg)
	if err != nil {
		return GCResult{}, failed("gc", err)
	}
	if !ok {
		return GCResult{}, nil
	}
	archives, err := cfg.Key("workspaces/")
	if err != nil {
		return GCResult{}, err
	}
	documents, err := cfg.Key("mineru/")
	if err != nil {
		return GCResult{}, err
	}
	c := &collection{bucket: b, cutoff: cutoff(time.Now(), maxAge)}
	err = c.run(ctx, func(ctx context.Context, old chan<- Object) error {
		if err := c.scan(ctx, archives, archiveSuffix, old); err != nil {
			return err
		}
		return c.scan(ctx, documents, "", old)
	})
	if err != nil {
		return GCResult{}, failed("gc", err)
	}
	return GCResult{Deleted: int(c.deleted.Load()), Scanned: c.scanned, FreedBytes: c.freed.Load()}, nil
}

// cutoff is maxAge before now, or the beginning of time for an age beyond it.
func cutoff(now time.Time, maxAge int64) time.Time {
	if maxAge >= now.Unix() {
		return time.Unix(0, 0)
	}
	return now.Add(-time.Duration(maxAge) * time.Second)
}

type collection struct {
	bucket  Bucket
	cutoff  time.Time
	scanned int
	deleted atomic.Int64
	freed   atomic.Int64
}

// run lets the workers delete what scan finds, until both are done or one fails.
func (c *collection) run(ctx context.Context, scan func(context.Context, chan<- Object) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	old := make(chan Object)
	var workers sync.WaitGroup
	for range gcWorkers {
		workers.Go(func() {
			for obj := range old {
				if err := c.remove(ctx, obj); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	err := scan(ctx, old)
	close(old)
	workers.Wait()
	// A failed worker is why the scan ended, so its error comes first.
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func (c *collection) scan(ctx context.Context, prefix, suffix string, old chan<- Object) error {
	return c.bucket.List(ctx, prefix, func(obj Object) error {
		c.scanned++
		if !strings.HasSuffix(obj.Key, suffix) || !c.isOld(obj) {
			return nil
		}
		select {
		case old <- obj:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

func (c *collection) isOld(obj Object) bool {
	return !obj.ModTime.IsZero() && obj.ModTime.Before(c.cutoff)
}

func (c *collection) remove(ctx context.Context, obj Object) error {
	if strings.HasSuffix(obj.Key, archiveSuffix) {
		// The listing may be minutes old. A conversation that came back since has
		// stored its workspace anew under the same key.
		if old, err := c.stillOld(ctx, obj.Key); err != nil || !old {
			return err
		}
	}
	if err := c.bucket.Delete(ctx, obj.Key); err != nil {
		return err
	}
	c.deleted.Add(1)
	c.freed.Add(obj.Size)
	return nil
}

var errFound = errors.New("found")

func (c *collection) stillOld(ctx context.Context, key string) (bool, error) {
	old := false
	err := c.bucket.List(ctx, key, func(obj Object) error {
		if obj.Key != key {
			return nil
		}
		old = c.isOld(obj)
		return errFound
	})
	if err != nil && !errors.Is(err, errFound) {
		return false, err
	}
	return old, nil
}
