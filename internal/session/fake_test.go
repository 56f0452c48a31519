package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// engine is a Driver in memory. Its fields without a remark are set before use.
type engine struct {
	t testing.TB
	// delay is how long Create, Open and Destroy take.
	createDelay, openDelay, destroyDelay time.Duration

	mu         sync.Mutex
	down       bool             // every call fails
	fail       map[string]error // by name of the call
	containers map[string]*container
	seq, peak  int
	dead       int // containers that Create left behind
	// onExec is told of each run's begin (+1) and end (-1).
	onExec func(delta int)
}

// container is a runner in memory. It outlives the process that made it.
type container struct {
	runner.Instance
	busy  atomic.Int32
	mu    sync.Mutex
	files map[string]string
}

func newEngine(t testing.TB) *engine {
	return &engine{t: t, fail: map[string]error{}, containers: map[string]*container{}}
}

func (e *engine) check(call string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down {
		return fault.New(fault.Unavailable, "engine is down")
	}
	return e.fail[call]
}

func (e *engine) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

func (e *engine) setFail(call string, err error) { e.set(func() { e.fail[call] = err }) }

func (e *engine) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.containers)
}

func (e *engine) get(id string) *container {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.containers[id]
}

// bySession returns the container that bears a session's id.
func (e *engine) bySession(id string) *container {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.containers {
		if c.SessionID == id {
			return c
		}
	}
	return nil
}

// put makes a container as an earlier process would have.
func (e *engine) put(sessionID string, running, legacy bool) *container {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.putLocked(sessionID, running, legacy)
}

func (e *engine) putLocked(sessionID string, running, legacy bool) *container {
	e.seq++
	c := &container{
		Instance: runner.Instance{
			ID: fmt.Sprintf("c%d", e.seq), SessionID: sessionID, CreatedAt: time.Now(), Running: running, Legacy: legacy,
		},
		files: map[string]string{},
	}
	e.containers[c.ID] = c
	e.peak = max(e.peak, len(e.containers))
	return c
}

func pause(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (e *engine) Create(ctx context.Context, spec runner.Spec) (string, error) {
	if err := e.check("create"); err != nil {
		return "", err
	}
	e.mu.Lock()
	c := e.putLocked(spec.SessionID, false, false)
	e.mu.Unlock()
	if err := pause(ctx, e.createDelay); err != nil {
		e.set(func() { delete(e.containers, c.ID) })
		return "", err
	}
	if err := e.check("start"); err != nil {
		e.set(func() { e.dead++ })
		return "", err // a dead container stays
	}
	e.set(func() { c.Running = true })
	return c.ID, nil
}

func (e *engine) Dial(context.Context, string, []string, []string) (runner.Stream, error) {
	return nil, errors.New("not in this test")
}

func (e *engine) Destroy(ctx context.Context, id string) error {
	if err := e.check("destroy"); err != nil {
		return err
	}
	if err := pause(ctx, e.destroyDelay); err != nil {
		return err
	}
	e.set(func() { delete(e.containers, id) })
	return nil
}

func (e *engine) List(context.Context) ([]runner.Instance, error) {
	if err := e.check("list"); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []runner.Instance
	for _, c := range e.containers {
		out = append(out, c.Instance)
	}
	return out, nil
}

func (e *engine) Info(context.Context) (runner.Info, error) {
	info := runner.Info{Driver: "fake", Image: "img", Version: "1.2", ImageReady: true}
	return info, e.check("info")
}

func (e *engine) Close() error { return nil }

// fakeRunner is a Runner over a container. It fails the test when two calls
// overlap.
type fakeRunner struct {
	e      *engine
	id     string
	closed atomic.Bool
}

func (e *engine) newRunner(id string) Runner { return &fakeRunner{e: e, id: id} }

// use enters one call; done leaves it.
func (r *fakeRunner) use(call string) (c *container, done func(), err error) {
	if err := r.e.check(call); err != nil {
		return nil, nil, err
	}
	c = r.e.get(r.id)
	if c == nil {
		return nil, nil, fmt.Errorf("no container %s: %w", r.id, runner.ErrNotFound)
	}
	if c.busy.Add(1) != 1 {
		r.e.t.Errorf("two calls on runner %s at once", r.id)
	}
	return c, func() { c.busy.Add(-1) }, nil
}

func (r *fakeRunner) Open(ctx context.Context) error {
	_, done, err := r.use("open")
	if err != nil {
		return err
	}
	defer done()
	return pause(ctx, r.e.openDelay)
}

// Exec understands "sleep 5s", "vanish 5s", "lost", "write path text" and "cat
// path".
func (r *fakeRunner) Exec(ctx context.Context, req runner.ExecRequest) (*runner.Execution, error) {
	c, done, err := r.use("exec")
	if err != nil {
		return nil, err
	}
	defer done()
	if r.e.onExec != nil {
		r.e.onExec(1)
		defer r.e.onExec(-1)
	}
	x := &runner.Execution{Reason: runner.ReasonExit}
	word, rest, _ := strings.Cut(string(req.Code), " ")
	switch word {
	case "sleep", "vanish":
		d, err := time.ParseDuration(rest)
		if err != nil {
			return nil, err
		}
		if err := pause(ctx, d); err != nil {
			return nil, err
		}
		if word == "vanish" {
			r.e.set(func() { delete(r.e.containers, r.id) })
			return nil, fmt.Errorf("no container %s: %w", r.id, runner.ErrNotFound)
		}
	case "write":
		path, text, _ := strings.Cut(rest, " ")
		c.mu.Lock()
		c.files[path] = text
		c.mu.Unlock()
	case "cat":
		c.mu.Lock()
		x.Stdout = []byte(c.files[rest])
		c.mu.Unlock()
	case "lost":
		return nil, runner.ErrLost
	}
	return x, nil
}

func (r *fakeRunner) Write(ctx context.Context, path string, body io.Reader, size int64) error {
	c, done, err := r.use("write")
	if err != nil {
		return err
	}
	defer done()
	data, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	if int64(len(data)) != size {
		return io.ErrUnexpectedEOF
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.files[path] = string(data)
	return nil
}

func (r *fakeRunner) Read(ctx context.Context, path string) (io.ReadCloser, int64, error) {
	c, done, err := r.use("read")
	if err != nil {
		return nil, 0, err
	}
	c.mu.Lock()
	data, ok := c.files[path]
	c.mu.Unlock()
	if !ok {
		done()
		return nil, 0, fault.New(fault.NotFound, DetailFileNotFound)
	}
	return &readCloser{strings.NewReader(data), sync.OnceFunc(done)}, int64(len(data)), nil
}

type readCloser struct {
	io.Reader
	close func()
}

func (r *readCloser) Close() error { r.close(); return nil }

func (r *fakeRunner) List(ctx context.Context, limit, depth int) ([]runner.FileInfo, error) {
	c, done, err := r.use("listfiles")
	if err != nil {
		return nil, err
	}
	defer done()
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []runner.FileInfo
	for _, p := range slices.Sorted(maps.Keys(c.files)) {
		out = append(out, runner.FileInfo{Path: p, Size: int64(len(c.files[p]))})
	}
	return out, nil
}

func isInput(path string) bool {
	return strings.HasPrefix(path, "uploads/") || strings.HasPrefix(path, "skills/")
}

func (c *container) dropInputs() {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.files, func(p, _ string) bool { return isInput(p) })
}

func (r *fakeRunner) ResetInputs(context.Context) error {
	c, done, err := r.use("reset")
	if err != nil {
		return err
	}
	defer done()
	c.dropInputs()
	return nil
}

// Pack and Unpack stand in for a tar with JSON.
func (r *fakeRunner) Pack(ctx context.Context, w io.Writer, maxBytes int64) (runner.PackStats, error) {
	c, done, err := r.use("pack")
	if err != nil {
		return runner.PackStats{}, err
	}
	defer done()
	kept := map[string]string{}
	c.mu.Lock()
	for p, data := range c.files {
		if !isInput(p) {
			kept[p] = data
		}
	}
	c.mu.Unlock()
	data, err := json.Marshal(kept)
	if err != nil {
		return runner.PackStats{}, err
	}
	for chunk := range slices.Chunk(data, 7) {
		if err := r.e.check("packchunk"); err != nil {
			return runner.PackStats{}, err
		}
		if maxBytes -= int64(len(chunk)); maxBytes < 0 {
			return runner.PackStats{}, runner.ErrTooLarge
		}
		if _, err := w.Write(chunk); err != nil {
			return runner.PackStats{}, err
		}
		if err := ctx.Err(); err != nil {
			return runner.PackStats{}, err
		}
	}
	return runner.PackStats{Files: len(kept)}, nil
}

func (r *fakeRunner) Unpack(ctx context.Context, body io.Reader) (runner.PackStats, error) {
	c, done, err := r.use("unpack")
	if err != nil {
		return runner.PackStats{}, err
	}
	defer done()
	data, err := io.ReadAll(body)
	if err != nil {
		return runner.PackStats{}, err
	}
	files := map[string]string{}
	if err := json.Unmarshal(data, &files); err != nil {
		return runner.PackStats{}, err
	}
	c.mu.Lock()
	maps.Copy(c.files, files)
	c.mu.Unlock()
	c.dropInputs()
	return runner.PackStats{Files: len(files)}, nil
}

func (r *fakeRunner) Close() error { r.closed.Store(true); return nil }

// logs collects what a Manager logs.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// world is a Manager with all that it works on.
type world struct {
	*Manager
	t      testing.TB
	engine *engine
	logs   *logs
}

func testConfig() Config {
	return Config{
		MaxSessions: 16, MaxExecs: 4, MaxCreates: 2,
		QueueTimeout: 10 * time.Second,
		IdleTTL:      30 * time.Minute, IdleTTLCap: 24 * time.Hour,
		SweepInterval:  5 * time.Minute,
		MaxOutputBytes: 32 << 10,
	}
}

// newWorld starts a Manager on an engine, which is made where it is nil.
func newWorld(t testing.TB, cfg Config, e *engine) *world {
	t.Helper()
	if e == nil {
		e = newEngine(t)
	}
	l := &logs{}
	m := New(cfg, Deps{Driver: e, NewRunner: e.newRunner, Log: slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &world{Manager: m, t: t, engine: e, logs: l}
}

// stop shuts the Manager down and fails the test where that does not end well.
func (w *world) stop() {
	w.t.Helper()
	if err := w.Shutdown(context.Background()); err != nil {
		w.t.Errorf("shutdown: %v", err)
	}
}

func (w *world) create(req CreateRequest) string {
	w.t.Helper()
	id, err := w.Create(w.t.Context(), req)
	if err != nil {
		w.t.Fatalf("create: %v", err)
	}
	return id
}

// run executes code and closes the execution.
func (w *world) run(ctx context.Context, id, code string) error {
	x, err := w.Exec(ctx, id, ExecRequest{Code: []byte(code), Timeout: time.Minute})
	if err != nil {
		return err
	}
	return x.Close()
}

// want fails unless err is classified as kind with that detail.
func want(t testing.TB, err error, kind fault.Kind, detail string) {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != kind || f.Detail != detail {
		t.Fatalf("got %v, want kind %d %q", err, kind, detail)
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// took fails unless about d has passed since start. In a bubble it is exact.
func took(t testing.TB, start time.Time, d time.Duration) {
	t.Helper()
	if got := time.Since(start); got != d {
		t.Fatalf("took %v, want %v", got, d)
	}
}

// used returns how many places are in use, and fails the test where the table
// of sessions or the count of those that leave does not match.
func (w *world) used() int {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.places.mu.Lock()
	defer w.places.mu.Unlock()
	leaving := 0
	for _, s := range w.sessions {
		if s.state == removing {
			leaving++
		}
	}
	if leaving != w.places.leaving || len(w.sessions) != w.places.used {
		w.t.Errorf("%d sessions, %d leaving; places: %d used, %d leaving", len(w.sessions), leaving, w.places.used, w.places.leaving)
	}
	return w.places.used
}
