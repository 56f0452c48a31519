package api

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/mimetype"
	"github.com/hjxwz123/aivory-sandbox/internal/observe"
	"github.com/hjxwz123/aivory-sandbox/internal/session"
)

// cancelRun interrupts the run that a session has in hand.
func (a *api) cancelRun(w *response, r *http.Request, _ pathVars) error {
	id, err := a.readID(w, r)
	if err != nil {
		return err
	}
	running, err := a.sessions.Interrupt(id)
	if err != nil {
		return err
	}
	return w.sendJSON(http.StatusOK, struct {
		OK        bool `json:"ok"`
		Cancelled bool `json:"cancelled"`
	}{true, running})
}

// chunk is a part of what a program wrote.
type chunk struct {
	stderr bool
	bytes  []byte
}

// written is what a run in hand has written and nobody has sent as yet. It holds no
// copies: the run keeps all of its output anyway.
type written struct {
	mu     sync.Mutex
	chunks []chunk
	more   chan struct{} // told where there are chunks
}

// add is the run's Output.
func (l *written) add(stderr bool, p []byte) {
	l.mu.Lock()
	l.chunks = append(l.chunks, chunk{stderr, p})
	l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
}

func (l *written) take() []chunk {
	l.mu.Lock()
	defer l.mu.Unlock()
	chunks := l.chunks
	l.chunks = nil
	return chunks
}

// ended is what came of a run.
type ended struct {
	x     *session.Execution
	err   error
	panic any
}

// execStream answers with server-sent events while a program runs. Until the
// first of them an error is answered as anywhere else.
func (a *api) execStream(w *response, r *http.Request, _ pathVars) error {
	id, req, err := a.readExec(w, r)
	if err != nil {
		return err
	}
	output := &written{more: make(chan struct{}, 1)}
	req.Output = output.add
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	done := make(chan ended, 1)
	go func() {
		var e ended
		defer func() {
			if e.panic = recover(); e.panic != nil {
				a.log.ErrorContext(ctx, "panic in a run", "panic", e.panic, "stack", string(debug.Stack()))
			}
			done <- e
		}()
		e.x, e.err = a.sessions.Exec(ctx, id, req)
	}()

	events := &events{w: w, out: bufio.NewWriterSize(w, streamBuffer)}
	beat := time.NewTicker(a.cfg.Heartbeat)
	defer beat.Stop()
	for {
		var failure error
		select {
		case <-output.more:
			failure = events.sendOutput(output.take())
		case <-beat.C:
			failure = events.beat()
		case e := <-done:
			return a.endStream(r.Context(), events, e, output, req.Timeout)
		}
		if failure != nil { // there is nobody to run it for
			cancel(failure)
			if e := <-done; e.x != nil {
				a.closeRun(r.Context(), e.x)
			}
			return &abortError{err: failure, client: true}
		}
	}
}

// endStream sends what is left once a run has ended.
func (a *api) endStream(ctx context.Context, events *events, e ended, output *written, timeout time.Duration) error {
	if e.panic != nil {
		panic(e.panic)
	}
	if e.err != nil {
		if events.w.status == 0 || ctx.Err() != nil {
			return e.err
		}
		return a.failStream(ctx, events, e.err)
	}
	defer a.closeRun(ctx, e.x)
	_, span := observe.Start(ctx, observe.Send)
	o := a.output(e.x, timeout)
	result := newResult(e.x, e.x.Next, o)
	err := events.sendEnd(output.take(), e.x, o, result)
	span.End(err)
	if err != nil {
		return &abortError{err: err, client: events.w.err != nil}
	}
	return nil
}

// failStream tells of an error after the header was sent, and logs it.
func (a *api) failStream(ctx context.Context, events *events, err error) error {
	status, body := render(err)
	a.log.Log(ctx, failureLevel(status), "request failed", "status", status, "error", err)
	text, ok := body.(detail)
	if !ok {
		text = detail{http.StatusText(status)}
	}
	if err := events.sendError(status, fmt.Sprint(text.Detail)); err != nil {
		return &abortError{err: err, client: true}
	}
	return nil
}

func failureLevel(status int) slog.Level {
	if status >= http.StatusInternalServerError {
		return slog.LevelError
	}
	return slog.LevelDebug
}

// events writes server-sent events. Of each stream it holds back the beginning of
// a character whose rest has not come.
type events struct {
	w    *response
	out  *bufio.Writer
	held [2][]byte // stdout, stderr
}

// begin sends the header before the first event.
func (e *events) begin() {
	if e.w.status != 0 {
		return
	}
	h := e.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies that know it do not hold events back
	e.w.WriteHeader(http.StatusOK)
}

func (e *events) flush() error {
	e.begin()
	if err := e.out.Flush(); err != nil {
		return err
	}
	return e.w.ctl.Flush()
}

// beat is a comment, which clients pass over. It shows that both ends are there.
func (e *events) beat() error {
	_, _ = e.out.WriteString(": \n\n") // out keeps an error to its Flush
	return e.flush()
}

// sendOutput sends chunks in their order, those of one stream together.
func (e *events) sendOutput(chunks []chunk) error {
	for i := 0; i < len(chunks); {
		text := e.held[stream(chunks[i].stderr)]
		first := i
		for ; i < len(chunks) && chunks[i].stderr == chunks[first].stderr; i++ {
			text = append(text, chunks[i].bytes...)
		}
		whole := completeRunes(text)
		e.held[stream(chunks[first].stderr)] = append([]byte(nil), text[whole:]...)
		e.text(stream(chunks[first].stderr), text[:whole])
	}
	return e.flush()
}

// stream is 0 for stdout, 1 for stderr.
func stream(stderr bool) int {
	if stderr {
		return 1
	}
	return 0
}

func (e *events) text(stream int, text []byte) {
	if len(text) == 0 {
		return
	}
	line := append([]byte(nil), "event: "...)
	line = append(line, [2]string{"stdout", "stderr"}[stream]...)
	line = append(line, "\ndata: {\"text\":\""...)
	line = append(appendEscaped(line, text), "\"}\n\n"...)
	_, _ = e.out.Write(line)
}

// sendEnd sends the last output, with what the service adds to it, the names of
// the artifacts, and the result.
func (e *events) sendEnd(chunks []chunk, x *session.Execution, o output, r *result) error {
	if err := e.sendOutput(chunks); err != nil {
		return err
	}
	for i, end := range []struct {
		cut  bool
		note []byte
	}{{x.StdoutTruncated, o.outNote}, {x.StderrTruncated, o.errNote}} {
		if end.cut {
			e.held[i] = nil // a character that the cut went through
		}
		e.text(i, append(e.held[i], end.note...))
	}
	for _, f := range x.Files {
		line := append([]byte(nil), "event: artifact\ndata: {\"path\":\""...)
		line = append(appendEscaped(line, []byte(f.Path)), "\",\"name\":\""...)
		line = append(appendEscaped(line, []byte(path.Base(f.Path))), "\",\"mime_type\":\""...)
		line = append(line, mimetype.ByName(path.Base(f.Path))...)
		_, _ = e.out.Write(fmt.Appendf(line, "\",\"size\":%d}\n\n", f.Size))
	}
	if len(x.Files) > 0 { // their bytes may take a while
		if err := e.flush(); err != nil {
			return err
		}
	}
	_, _ = e.out.WriteString("event: result\ndata: ")
	if err := r.write(e.out); err != nil {
		return err
	}
	_, _ = e.out.WriteString("\n\n")
	return e.flush()
}

func (e *events) sendError(status int, text string) error {
	line := fmt.Appendf(nil, "event: error\ndata: {\"status\":%d,\"detail\":\"", status)
	_, _ = e.out.Write(append(appendEscaped(line, []byte(text)), "\"}\n\n"...))
	return e.flush()
}
