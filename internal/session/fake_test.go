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
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/observe"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/session/seal"
	"github.com/hjxwz123/aivory-sandbox/internal/session/spool"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// engine is a Driver in memory. Its fields without a remark are set before use.
type engine struct {
	t testing.TB
	// How long Create, Open, Destroy and Pack take.
	createDelay, openDelay, destroyDelay, packDelay time.Duration

	mu         sync.Mutex
	down       bool             // every call fails
	fail       map[string]error // by name of the call
	containers map[string]*container
	seq, peak  int
	dead       int // containers that Create left behind
	// onExec is told of each run's begin (+1) and end (-1).
	onExec func(delta int)
	// step, where set, is asked before anything has an effect, and the effect
	// does not happen where it fails.
	step func(what string) error
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
	if e.step != nil {
		if err := e.step(call); err != nil {
			return err
		}
	}
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
	return e.bySessionLocked(id)
}

func (e *engine) bySessionLocked(id string) *container {
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
	return c.ID, e.check("created")
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
	return e.check("destroyed")
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
	r.closed.Store(false) // a call dials
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

func (r *fakeRunner) Connected() bool {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	c := r.e.containers[r.id]
	return c != nil && c.Running
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
		began := time.Now()
		watched, stop := context.WithCancel(ctx)
		unhook := make(chan struct{})
		go func() {
			select {
			case <-req.Interrupt:
				stop()
			case <-unhook:
			}
		}()
		err = pause(watched, d)
		close(unhook)
		if stop(); err != nil && ctx.Err() == nil {
			return &runner.Execution{Reason: runner.ReasonCancelled, ExitCode: 130, Usage: runner.Usage{Wall: time.Since(began)}}, nil
		}
		if err != nil {
			return nil, err
		}
		if word == "vanish" {
			r.e.set(func() { delete(r.e.containers, r.id) })
			return nil, fmt.Errorf("no container %s: %w", r.id, runner.ErrNotFound)
		}
		x.Usage = runner.Usage{Wall: d, CPU: d / 2, MaxRSS: int64(d.Seconds()) << 20}
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
	r.e.mu.Lock()
	delay := r.e.packDelay
	r.e.mu.Unlock()
	if err := pause(ctx, delay); err != nil {
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
	return runner.PackStats{Files: len(kept), Left: 1, Examples: []string{"evil\nname" + strings.Repeat("x", 1000)}}, nil
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
	if string(data) == "bomb" {
		r.e.set(func() { delete(r.e.containers, r.id) })
		return runner.PackStats{}, fmt.Errorf("it blew up: %w", runner.ErrNotFound)
	}
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

var discardLog = slog.New(slog.DiscardHandler)

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
	bucket *bucket
	store  *memStore
	spool  *spool.Spool
	state  string // directory
	logs   *logs
	power  *power
	seen   seen
}

// seen is what an observer was told.
type seen struct {
	mu   sync.Mutex
	work []observe.Work
}

func (s *seen) Begin(ctx context.Context, _ string) (context.Context, func(observe.Work)) {
	return ctx, func(w observe.Work) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.work = append(s.work, w)
	}
}

// take returns, and forgets, what was told of work of that name.
func (s *seen) take(name string) (found []observe.Work) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.work = slices.DeleteFunc(s.work, func(w observe.Work) bool {
		if w.Name == name {
			found = append(found, w)
		}
		return w.Name == name
	})
	return found
}

func testConfig() Config {
	return Config{
		MaxSessions: 16, MaxExecs: 4, MaxCreates: 2,
		QueueTimeout: 10 * time.Second,
		IdleTTL:      30 * time.Minute, IdleTTLCap: 24 * time.Hour,
		SweepInterval:   5 * time.Minute,
		MaxOutputBytes:  32 << 10,
		MaxArchiveBytes: 1 << 20,
		ArchiveTimeout:  2 * time.Minute,
	}
}

// newWorld starts a Manager on an engine, which is made where it is nil. Its
// records are incomplete, as on the very first start.
func newWorld(t testing.TB, cfg Config, e *engine) *world {
	t.Helper()
	if e == nil {
		e = newEngine(t)
	}
	w := &world{t: t, engine: e, bucket: newBucket(), store: &memStore{records: map[string]Record{}}, state: t.TempDir(), logs: &logs{}}
	w.start(cfg)
	return w
}

// start starts a Manager on what the world holds.
func (w *world) start(cfg Config) {
	w.t.Helper()
	log := slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	sp, err := spool.Open(w.state, seal.FromSecret("key"), spoolBytes, log)
	if err != nil {
		w.t.Fatal(err)
	}
	w.spool = sp
	w.Manager = New(cfg, Deps{
		Driver: w.engine, NewRunner: w.engine.newRunner, Buckets: buckets{w.bucket}, Store: w.store, Spool: sp, Log: log, Observer: &w.seen,
	})
	if w.power != nil {
		w.deps.Spool = crashSpool{sp, w.power}
	}
	if err := w.Start(w.t.Context()); err != nil && !errors.Is(err, errDead) {
		w.t.Fatal(err)
	}
}

// restart lets the next process take over from one that shut down.
func (w *world) restart() {
	w.t.Helper()
	cfg := w.cfg
	w.stop()
	w.start(cfg)
}

// spoolBytes is how much the spool of a test takes.
const spoolBytes = 4000

// stop shuts the Manager down and fails the test where that does not end well.
func (w *world) stop() {
	w.t.Helper()
	if err := w.Shutdown(context.Background()); err != nil {
		w.t.Errorf("shutdown: %v", err)
	}
	if strings.Contains(w.logs.String(), "SECRET") {
		w.t.Errorf("a credential in the log:\n%s", w.logs)
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

// conversation asks for a session of a conversation whose workspace is kept.
func conversation(key string) CreateRequest {
	return CreateRequest{ArchiveKey: key, Storage: &storage.Config{
		Provider: "s3", Prefix: "p/", S3Bucket: "bkt", S3AccessKey: "AKSECRET", S3SecretKey: "SKSECRET",
	}}
}

// put writes a file into a session.
func (w *world) put(id, path, text string) {
	w.t.Helper()
	if err := w.WriteFile(w.t.Context(), id, path, strings.NewReader(text), int64(len(text))); err != nil {
		w.t.Fatal(err)
	}
}

// files returns the files of a session as "path=text path=text".
func (w *world) files(id string) string {
	w.t.Helper()
	list, err := w.ListFiles(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, f := range list {
		body, _, err := w.ReadFile(w.t.Context(), id, f.Path)
		if err != nil {
			w.t.Fatal(err)
		}
		text, err := io.ReadAll(body)
		if err != nil {
			w.t.Fatal(err)
		}
		if err := body.Close(); err != nil {
			w.t.Fatal(err)
		}
		out = append(out, f.Path+"="+string(text))
	}
	return strings.Join(out, " ")
}

// has fails unless a new session of a conversation finds these files, and
// releases it without a change to what is kept.
func (w *world) has(key, files string) {
	w.t.Helper()
	id := w.create(conversation(key))
	if got := w.files(id); got != files {
		w.t.Errorf("files of %s: %q, want %q", key, got, files)
	}
	w.engine.set(func() { delete(w.engine.containers, w.engine.bySessionLocked(id).ID) })
	want(w.t, w.run(w.t.Context(), id, "x"), fault.NotFound, DetailNotFound)
	synctest.Wait()
}

func (w *world) spooled() int { n, _ := w.spool.Usage(); return n }

func (w *world) logged(text string) {
	w.t.Helper()
	if !strings.Contains(w.logs.String(), text) {
		w.t.Errorf("the log does not say %q", text)
	}
}
