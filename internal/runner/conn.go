package runner

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"
)

//go:embed agent/agent.py
var agentSource []byte

//go:embed agent/bootstrap.py
var bootstrapSource string

// dialEnv goes to the agent's interpreter. Its home does not exist, so that no
// package or start-up hook that a program planted in its own is ever loaded.
var dialEnv = []string{"HOME=/nonexistent", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1"}

// programEnv is what a program finds, where the image sets nothing else.
var programEnv = map[string]string{
	"MPLBACKEND":   "Agg",
	"MPLCONFIGDIR": "/home/sandbox/.config/matplotlib",
	"LANG":         "C.UTF-8",
}

const (
	// silence is how long an agent may say nothing while something is asked of
	// it. It beats once a second; under the pids limit's worth of busy
	// processes on one CPU it was still heard within two.
	silence = 10 * time.Second
	// waking is how long it may take to say the first thing: it may be in the
	// middle of importing a module ahead of need, on a busy machine.
	waking = 60 * time.Second
	// patience is how long it may take over an answer or, for a run, over what
	// the run's own limits do not cover, however often it beats.
	patience = 2 * time.Minute
	// readBuffer holds frames' headers and small payloads; larger payloads go
	// past it.
	readBuffer = 16 << 10
)

// conn is a stream to a live agent that has greeted. It is used by one call at
// a time.
type conn struct {
	stream Stream
	br     *bufio.Reader
	// resting gives, once, what came of waiting for the first byte after the
	// last answer: an error where the agent ended.
	resting chan error

	wmu sync.Mutex // a cancel may come while a body is written

	watchdog *time.Timer
	stalled  chan struct{} // closed when a clock closed the stream
	once     sync.Once
}

// hello is the agent's greeting.
type hello struct {
	Version  int    `json:"version"`
	Python   string `json:"python"`
	Legacy   bool   `json:"legacy"`
	Problem  string `json:"problem"`
	OOMKills int64  `json:"oom_kills"`
}

// request is what an agent is asked; see PROTOCOL.md.
type request struct {
	Op string `json:"op,omitempty"`

	// greeting
	Preload []string          `json:"preload"`
	Threads int               `json:"threads"` // 0 is one for each CPU of the host
	Environ map[string]string `json:"environ,omitempty"`

	// exec
	Timeout        float64 `json:"timeout"`
	MaxOutput      int     `json:"max_output"`
	MaxFiles       int     `json:"max_files"`
	MaxFileBytes   int64   `json:"max_file_bytes"`
	MaxTotalBytes  int64   `json:"max_total_bytes"`
	CollectSeconds float64 `json:"collect_seconds"`

	// files
	Path  string `json:"path,omitempty"`
	Limit int    `json:"limit"`
	Depth int    `json:"depth"`
}

var errSlowStart = errors.New("agent did not start in time")

// dial starts an agent and waits for its greeting. An agent that was started
// but did not greet properly is ErrLost: what a program left may have seen to
// that.
func dial(caller context.Context, d Driver, id string, opts Options) (*conn, hello, error) {
	ctx, cancel := context.WithTimeoutCause(caller, opts.DialTimeout, errSlowStart)
	defer cancel()
	stream, err := d.Dial(ctx, id, []string{"python3", "-c", bootstrapSource}, dialEnv)
	if err != nil {
		return nil, hello{}, fmt.Errorf("cannot start agent: %w", err)
	}
	c := &conn{stream: stream, br: bufio.NewReaderSize(stream, readBuffer), stalled: make(chan struct{})}
	stop := context.AfterFunc(ctx, c.close)
	greeting, err := c.greet(opts)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		c.close()
		if caller.Err() == nil && !errors.Is(err, ErrLost) {
			// An engine that cannot start a command may say so in its place.
			words, _ := c.br.Peek(min(c.br.Buffered(), 300))
			err = fmt.Errorf("%w: %w (it sent %q)", ErrLost, err, words)
		}
		return nil, hello{}, fmt.Errorf("cannot start agent: %w%s", err, said(stream))
	}
	c.rest()
	return c, greeting, nil
}

// said quotes what the agent's interpreter printed, for the log.
func said(s Stream) string {
	text := strings.TrimSpace(s.Diagnostics())
	if text == "" {
		return ""
	}
	return fmt.Sprintf(" (it said %q)", text)
}

func (c *conn) greet(opts Options) (hello, error) {
	setup := request{Preload: opts.Preload, Threads: int(math.Ceil(opts.CPUs)), Environ: programEnv}
	body, err := json.Marshal(setup)
	if err != nil {
		return hello{}, err
	}
	out := appendFrame(make([]byte, 0, len(agentSource)+len(body)+2*frameHeaderSize), frameSource, agentSource)
	out = appendFrame(out, frameRequest, body)
	if _, err := c.stream.Write(out); err != nil {
		return hello{}, lost(err)
	}
	t, n, err := readHeader(c.br)
	if err != nil {
		return hello{}, lost(err)
	}
	if t != frameHello {
		return hello{}, fmt.Errorf("%w: greeting expected, not a frame of type %d", ErrProtocol, t)
	}
	var h hello
	if err := c.readJSON(n, &h); err != nil {
		return hello{}, err
	}
	if h.Version != 1 {
		return hello{}, fmt.Errorf("%w: agent of version %d", ErrProtocol, h.Version)
	}
	return h, nil
}

// rest waits in the background for what comes next: the first byte of the next
// answer, or the agent's end.
func (c *conn) rest() {
	resting := make(chan error, 1)
	c.resting = resting
	go func() {
		_, err := c.br.Peek(1)
		resting <- err
	}()
}

// gone reports whether the agent ended, or spoke unasked, since the last answer.
func (c *conn) gone() bool {
	select {
	case <-c.resting:
		return true
	default:
		return false
	}
}

// stall gives the agent up as one that keeps its caller waiting.
func (c *conn) stall() {
	c.once.Do(func() { close(c.stalled) })
	c.close()
}

// watch starts or restarts the watchdog, unwatch stops it. There is one: a
// timer that is forgotten would close the stream during some later call.
func (c *conn) watch(d time.Duration) {
	if c.watchdog == nil {
		c.watchdog = time.AfterFunc(d, c.stall)
		return
	}
	c.watchdog.Reset(d)
}

func (c *conn) unwatch() { c.watchdog.Stop() }

// send writes a request's frame.
func (c *conn) send(t frameType, payload []byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	_, err := c.stream.Write(appendFrame(make([]byte, 0, frameHeaderSize+len(payload)), t, payload))
	return lost(err)
}

// sendRequest writes a request and, where body is not nil, a short body.
func (c *conn) sendRequest(req request, body []byte) error {
	head, err := json.Marshal(req)
	if err != nil {
		return err
	}
	out := appendFrame(make([]byte, 0, len(head)+len(body)+4*frameHeaderSize), frameRequest, head)
	if body != nil {
		for len(body) > 0 {
			n := min(len(body), maxFrame)
			out = appendFrame(out, frameData, body[:n])
			body = body[n:]
		}
		out = appendFrame(out, frameEnd, nil)
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	_, err = c.stream.Write(out)
	return lost(err)
}

// next reads the next frame's header and restarts the watchdog.
func (c *conn) next() (frameType, int, error) {
	if c.resting != nil {
		err := <-c.resting
		c.resting = nil
		if err != nil {
			return 0, 0, lost(err)
		}
	}
	t, n, err := readHeader(c.br)
	if err != nil {
		return 0, 0, lost(err)
	}
	c.watch(silence)
	return t, n, nil
}

func (c *conn) readJSON(n int, v any) error {
	payload := make([]byte, n)
	if _, err := io.ReadFull(c.br, payload); err != nil {
		return lost(err)
	}
	if err := json.Unmarshal(payload, v); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return nil
}

// answer reads frames until a result, which is decoded into v, or an error.
func (c *conn) answer(v any) error {
	for {
		t, n, err := c.next()
		if err != nil {
			return err
		}
		switch t {
		case frameBeat:
		case frameResult:
			return c.readJSON(n, v)
		case frameError:
			var refusal refusal
			if err := c.readJSON(n, &refusal); err != nil {
				return err
			}
			return refusal.err()
		default:
			return fmt.Errorf("%w: result expected, not a frame of type %d", ErrProtocol, t)
		}
	}
}

// close ends the stream. It may be called more than once and at any time.
func (c *conn) close() { _ = c.stream.Close() }

// epitaph describes how a stream was lost, for the log.
func (c *conn) epitaph(err error) error {
	select {
	case <-c.stalled:
		return fmt.Errorf("%w: it said nothing for too long%s", ErrLost, said(c.stream))
	default:
		return fmt.Errorf("%w%s", err, said(c.stream))
	}
}

// lost marks a failure of the stream itself.
func lost(err error) error {
	if err == nil || errors.Is(err, ErrProtocol) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}
