// Package upload stores a stream of unknown length through an object store's
// requests: whole where it is short, in parts where it is not, and all or
// nothing in either case. It holds a few parts in memory, never the stream.
package upload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

const (
	// PartBytes is the size of every part but the last: the least that S3 takes.
	PartBytes = 5 << 20
	// MaxParts is the most that S3 and OSS take, so that 48 GiB pass.
	MaxParts = 10000

	// headBytes is read before a part's memory is taken: most archives are small.
	headBytes = 64 << 10
	// maxInFlight bounds the parts that one stream has in memory.
	maxInFlight = 3
	// grace is how long requests in flight may go on after a cancel. Cut off, they
	// might still take effect after the upload was aborted.
	grace = 5 * time.Second
	// abortTimeout bounds the request that removes the parts of a failed upload.
	abortTimeout = 30 * time.Second
)

// ErrTooLong means that a stream has more bytes than MaxParts parts hold.
var ErrTooLong = errors.New("stream is too long to store")

// Target is one object of a store that is being written. The context that its
// methods get outlives the caller's by a few seconds. Part is called
// concurrently; the others are not.
type Target interface {
	// Put stores the whole object.
	Put(ctx context.Context, body *bytes.Reader) error
	// Create begins an upload in parts and returns the store's name for it.
	Create(ctx context.Context) (id string, err error)
	// Part stores the part of that number, from 1, and returns its tag.
	Part(ctx context.Context, id string, number int32, body *bytes.Reader) (tag string, err error)
	// Complete makes the object of its parts, given by their tags in order.
	Complete(ctx context.Context, id string, tags []string) error
	// Abort removes the upload and its parts. Nothing of it is left.
	Abort(ctx context.Context, id string) error
}

// Parts lends out the memory that parts are held in. Each stream has one part of
// its own and takes more where some are free, so that a stream that stalls never
// holds up another. A Parts is safe for concurrent use; a process has one.
type Parts struct {
	size    int
	pool    sync.Pool // of *[]byte of that size
	extra   chan struct{}
	started time.Time
	ours    sync.Map // ids of uploads in progress
	left    sync.Map // ids of uploads that failed and could not be removed
}

// NewParts returns memory in which all streams together hold at most extra parts
// beyond one each.
func NewParts(extra int) *Parts { return newParts(extra, PartBytes) }

func newParts(extra, size int) *Parts {
	return &Parts{
		size:    size,
		pool:    sync.Pool{New: func() any { b := make([]byte, size); return &b }},
		extra:   make(chan struct{}, extra),
		started: time.Now(),
	}
}

// IsLeftover tells whether an upload that a store lists will never be finished: it
// was begun by a process before this one, or could not be removed when it failed.
// Its time is zero where the store does not tell. Removed must follow once it is
// removed.
func (p *Parts) IsLeftover(id string, initiated time.Time) bool {
	if _, left := p.left.Load(id); left {
		return true
	}
	// Stores cut times to seconds, so that time alone could mean one of ours.
	_, ours := p.ours.Load(id)
	return !ours && !initiated.IsZero() && initiated.Before(p.started)
}

// Removed forgets an upload that was a leftover.
func (p *Parts) Removed(id string) { p.left.Delete(id) }

func (p *Parts) get() *[]byte { return p.pool.Get().(*[]byte) }

// Upload stores what body gives and returns its size. When it fails, the store
// holds what it held before and no parts; the error of body is a
// *storage.BodyError. A cancel takes effect when body returns from the read in
// hand, and at most a few seconds later when the store hangs.
func (p *Parts) Upload(ctx context.Context, to Target, body io.Reader) (int64, error) {
	work, stop := linger(ctx, grace)
	defer stop()
	body = &source{ctx: ctx, r: body}

	head := make([]byte, headBytes)
	n, end, err := fill(body, head)
	if err != nil {
		return 0, err
	}
	if end {
		return whole(ctx, work, to, head[:n])
	}
	part := p.get()
	copy(*part, head)
	n, end, err = fill(body, (*part)[headBytes:])
	n += headBytes
	if err == nil && end {
		defer p.pool.Put(part)
		return whole(ctx, work, to, (*part)[:n])
	}
	if err != nil {
		p.pool.Put(part)
		return 0, err
	}
	u := &upload{parts: p, to: to, body: body, ctx: work, done: make(chan result, maxInFlight)}
	return u.run(ctx, part)
}

func whole(ctx, work context.Context, to Target, data []byte) (int64, error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	if err := to.Put(work, bytes.NewReader(data)); err != nil {
		return 0, err
	}
	return int64(len(data)), nil
}

// upload is one stream that is stored in parts.
type upload struct {
	parts *Parts
	to    Target
	body  io.Reader
	ctx   context.Context // of the requests
	id    string

	done     chan result // parts that were stored, or failed
	inFlight int
	extras   int // in-flight parts in memory that is shared with other streams
	tags     []string
	size     int64
}

type result struct {
	number int32
	memory *[]byte
	tag    string
	err    error
}

// run stores the first part, which is full, and the rest of body.
func (u *upload) run(ctx context.Context, first *[]byte) (int64, error) {
	id, err := u.to.Create(u.ctx)
	if err != nil {
		u.parts.pool.Put(first)
		return 0, err
	}
	u.id = id
	u.parts.ours.Store(id, true)
	defer u.parts.ours.Delete(id)
	err = u.store(ctx, first)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = u.to.Complete(u.ctx, id, u.tags)
	}
	if err != nil {
		return 0, u.abort(ctx, err)
	}
	return u.size, nil
}

// store sends every part and returns when none is in flight any more.
func (u *upload) store(ctx context.Context, first *[]byte) error {
	memory, n, end, err := first, u.parts.size, false, error(nil)
	for {
		u.send(memory, n)
		if end {
			break
		}
		memory, err = u.memory()
		if err == nil {
			n, end, err = fill(u.body, *memory)
			if err == nil && n > 0 && len(u.tags) == MaxParts {
				err = ErrTooLong
			}
			if err != nil || n == 0 {
				u.parts.pool.Put(memory)
			}
		}
		if err != nil || n == 0 {
			break
		}
	}
	for u.inFlight > 0 {
		if _, ferr := u.finish(); err == nil {
			err = ferr
		}
	}
	for ; u.extras > 0; u.extras-- {
		<-u.parts.extra
	}
	return err
}

func (u *upload) send(memory *[]byte, n int) {
	u.tags = append(u.tags, "")
	u.size += int64(n)
	u.inFlight++
	number := int32(len(u.tags))
	go func() {
		tag, err := u.to.Part(u.ctx, u.id, number, bytes.NewReader((*memory)[:n]))
		u.done <- result{number, memory, tag, err}
	}()
}

// memory returns room for the next part: of another stream's leaving where there
// is some, else that of the part of this stream which is done next.
func (u *upload) memory() (*[]byte, error) {
	if u.inFlight < maxInFlight {
		select {
		case r := <-u.done:
			return u.took(r)
		default:
		}
		select {
		case u.parts.extra <- struct{}{}:
			u.extras++
			return u.parts.get(), nil
		default:
		}
	}
	r := <-u.done
	return u.took(r)
}

func (u *upload) finish() (*[]byte, error) {
	memory, err := u.took(<-u.done)
	if memory != nil {
		u.parts.pool.Put(memory)
	}
	return memory, err
}

func (u *upload) took(r result) (*[]byte, error) {
	u.inFlight--
	if r.err != nil {
		u.parts.pool.Put(r.memory)
		return nil, r.err
	}
	u.tags[r.number-1] = r.tag
	return r.memory, nil
}

// abort removes the parts, whatever became of the caller's context.
func (u *upload) abort(ctx context.Context, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	if err := u.to.Abort(ctx, u.id); err != nil {
		u.parts.left.Store(u.id, true)
		return errors.Join(cause, fmt.Errorf("and parts are left behind: %w", err))
	}
	return cause
}

// linger returns a context that ends d after ctx does.
func linger(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(d, func() { cancel(context.Cause(ctx)) })
	})
	return work, func() {
		stop()
		cancel(nil)
	}
}

// source stops giving when its context ends, keeps to an error that it gave once,
// and tells its reader's errors from those of the store.
type source struct {
	ctx context.Context
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	if s.err == nil {
		s.err = context.Cause(s.ctx)
	}
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		err = &storage.BodyError{Err: err}
	}
	s.err = err
	return n, err
}

// fill reads until buf is full or the stream ends; n counts what it read.
func fill(r io.Reader, buf []byte) (n int, end bool, err error) {
	n, err = io.ReadFull(r, buf)
	// By identity: the reader's own io.ErrUnexpectedEOF, inside a BodyError, is a
	// stream that broke and not one that ended.
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return n, true, nil
	}
	return n, false, err
}
