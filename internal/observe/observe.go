// Package observe is how the service tells whoever watches it what it does: in
// pieces of work with their times, what they were about and how they ended.
// Metrics and traces are made of the same pieces, so that they agree.
//
// Who watches travels in the context. Where nobody does, all of this does
// nothing.
package observe

import (
	"context"
	"log/slog"
	"time"
)

// Names of pieces of work. The comment tells which attributes each has.
const (
	// Request is one HTTP request: method, route (a pattern, empty where it led
	// nowhere), status, request_id.
	Request = "request"
	// Wait is a wait in a queue, however short: queue, which is QueueSession,
	// QueueExec, QueueCreate or QueuePlace.
	Wait = "wait"
	// Create is the making of a session, to be served by a client: session, pooled,
	// restored.
	Create = "create session"
	// End is the end of a session up to where a client may be answered: session,
	// cause, which is "deleted", "discarded", "expired" or "lost".
	End = "end session"
	// Run is one program from its turn until its artifacts are known: session,
	// reason, exit_code, wall, collect, cpu (durations), peak_memory, output and
	// artifacts (bytes).
	Run = "run"
	// Send is the sending of a run's answer.
	Send = "send result"
	// File is one operation on the files of a session: session, operation, which is
	// "write", "read", "list" or "reset".
	File = "file"
	// Storage is one operation on an object store: provider, operation, missing
	// (there was no such object).
	Storage = "storage"
)

// Queues, as Wait names them.
const (
	QueueSession = "session" // for the session's turn
	QueueExec    = "exec"    // for a slot for a run
	QueueCreate  = "create"  // for a slot for the making of a runner
	QueuePlace   = "place"   // for a place within the limit of sessions
)

// Observer watches. Its methods return at once and are safe for concurrent use.
type Observer interface {
	// Begin is told that a piece of work begins. The context that it returns is the
	// one of the work; the function is called once, at its end.
	Begin(ctx context.Context, name string) (context.Context, func(Work))
}

// Work is a piece of work that has ended.
type Work struct {
	Name       string
	Start, End time.Time
	// Attrs never hold a secret, nor anything that a program or a client wrote at
	// will, but for names of fixed form.
	Attrs []slog.Attr
	// Err is why it failed, nil where it did not. Its text is for logs alone: it
	// may hold what an engine or a store said.
	Err error
}

// Duration is how long it took.
func (w Work) Duration() time.Duration { return w.End.Sub(w.Start) }

// Attr returns an attribute's value; its kind is slog.KindAny, and it holds nil,
// where there is none.
func (w Work) Attr(key string) slog.Value {
	for i := len(w.Attrs) - 1; i >= 0; i-- {
		if w.Attrs[i].Key == key {
			return w.Attrs[i].Value
		}
	}
	return slog.Value{}
}

type observerKey struct{}

// With returns a context whose work o is told of. A nil o watches nothing.
func With(ctx context.Context, o Observer) context.Context {
	if o == nil {
		return ctx
	}
	return context.WithValue(ctx, observerKey{}, o)
}

// Span is a piece of work in hand. It is used by one goroutine at a time.
type Span struct {
	work Work
	end  func(Work)
}

// Start begins a piece of work in ctx and returns the context of what belongs
// to it. The caller ends it.
func Start(ctx context.Context, name string, attrs ...slog.Attr) (context.Context, *Span) {
	o, ok := ctx.Value(observerKey{}).(Observer)
	if !ok {
		return ctx, &Span{}
	}
	ctx, end := o.Begin(ctx, name)
	return ctx, &Span{work: Work{Name: name, Start: time.Now(), Attrs: attrs}, end: end}
}

// Set adds attributes; of two with one key the later counts.
func (s *Span) Set(attrs ...slog.Attr) {
	if s.end != nil {
		s.work.Attrs = append(s.work.Attrs, attrs...)
	}
}

// End ends the work. Only the first call counts.
func (s *Span) End(err error) {
	if s.end == nil {
		return
	}
	end := s.end
	s.end = nil
	s.work.End, s.work.Err = time.Now(), err
	end(s.work)
}

// All is several observers, as one.
func All(observers ...Observer) Observer { return all(observers) }

type all []Observer

func (a all) Begin(ctx context.Context, name string) (context.Context, func(Work)) {
	ends := make([]func(Work), len(a))
	for i, o := range a {
		ctx, ends[i] = o.Begin(ctx, name)
	}
	return ctx, func(w Work) {
		for _, end := range ends {
			end(w)
		}
	}
}
