package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/observe"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// Runner is what a session needs of its runner. *runner.Runner is one; see
// there for the meaning of each method. The session orders the calls.
type Runner interface {
	Open(ctx context.Context) error
	Connected() bool
	Exec(ctx context.Context, req runner.ExecRequest) (*runner.Execution, error)
	Write(ctx context.Context, path string, body io.Reader, size int64) error
	Read(ctx context.Context, path string) (body io.ReadCloser, size int64, err error)
	List(ctx context.Context, limit, depth int) ([]runner.FileInfo, error)
	ResetInputs(ctx context.Context) error
	Pack(ctx context.Context, w io.Writer, maxBytes int64) (runner.PackStats, error)
	Unpack(ctx context.Context, body io.Reader) (runner.PackStats, error)
	Close() error
}

// Config is what an operator decides about sessions.
type Config struct {
	// MaxSessions, MaxExecs and MaxCreates bound runners, concurrent runs and
	// concurrent creations. Zero or less lifts that limit.
	MaxSessions, MaxExecs, MaxCreates int
	// PoolSize is how many runners are kept ready for sessions to come, at most
	// MaxSessions. Zero or less is none.
	PoolSize int
	// QueueTimeout is the longest wait for a session's lock, and again for a slot.
	QueueTimeout time.Duration
	// IdleTTL is the idle time after which a session is reaped where its creator
	// names none. IdleTTLCap bounds it and what a creator may name.
	IdleTTL, IdleTTLCap time.Duration
	// SweepInterval is the longest that an expired session waits to be reaped.
	SweepInterval time.Duration
	// MaxOutputBytes bounds each of a run's stdout and stderr.
	MaxOutputBytes int
	// Artifacts bound what a run gives back.
	Artifacts runner.ArtifactLimits
	// Limits bound each runner.
	Limits runner.Limits
	// MaxArchiveBytes bounds a compressed archive, made or restored. ArchiveTimeout
	// bounds making, storing and restoring one, each.
	MaxArchiveBytes int64
	ArchiveTimeout  time.Duration
}

// Deps are what a Manager works with. All but Observer are needed.
type Deps struct {
	Driver runner.Driver
	// NewRunner returns the portable runner for a handle of Driver. It does not
	// dial.
	NewRunner func(handle string) Runner
	Buckets   Buckets
	Store     Store
	Spool     Spool
	Log       *slog.Logger
	// Observer is told of work that no client waits for; that of requests comes
	// with their contexts.
	Observer observe.Observer
}

// Manager keeps sessions. Its methods are safe for concurrent use. Errors that
// a client may read carry a fault.Kind and one of the Detail sentences.
type Manager struct {
	cfg  Config
	deps Deps
	log  *slog.Logger

	places  places
	creates *gate
	execs   *gate
	uploads *gate
	keys    keyLocks
	lost    atomic.Int64 // workspaces that could not be kept
	// pressing counts creations and runs in hand.
	pressing atomic.Int32
	driver   string // the driver's name, set by Start

	// stopping is closed when nothing new shall begin and nobody wait any longer.
	stopping chan struct{}
	// soft ends with that, and with it what loses nothing by it. hard ends when
	// even work in hand must end.
	soft, hard       context.Context
	endSoft, endHard context.CancelCauseFunc
	// wake tells the reaper that a session may expire earlier than it thinks.
	wake chan struct{}
	// work counts calls and goroutines. It grows under mu while closing is false,
	// or from work that is itself counted.
	work sync.WaitGroup

	mu       sync.Mutex
	closing  bool
	sessions map[string]*session // those being made and removed included
	// made holds the ids that were drawn since New until the runners of an earlier
	// process are adopted, and is nil from then on.
	made map[string]struct{}
	// strays tells that a failed creation may have left a dead runner behind.
	strays    bool
	lastStamp time.Time
	// delivering holds the stores that are being served from the spool.
	delivering map[string]bool
	// untidy holds the places where an upload was in hand that did not succeed, so
	// that some of it may be left there: how many keys, the base and its layers.
	untidy map[string]int
}

// New returns a Manager that knows no session yet. Start adopts what an earlier
// process left; Shutdown must be called in the end.
func New(cfg Config, deps Deps) *Manager {
	cfg.SweepInterval = max(cfg.SweepInterval, time.Second)
	if cfg.MaxSessions > 0 {
		cfg.PoolSize = min(cfg.PoolSize, cfg.MaxSessions)
	}
	m := &Manager{
		cfg:      cfg,
		deps:     deps,
		log:      deps.Log,
		stopping: make(chan struct{}),
		wake:     make(chan struct{}, 1),
		sessions: make(map[string]*session),
		made:     make(map[string]struct{}),

		delivering: make(map[string]bool),
		untidy:     make(map[string]int),
	}
	m.hard, m.endHard = context.WithCancelCause(observe.With(context.Background(), deps.Observer))
	m.soft, m.endSoft = context.WithCancelCause(m.hard)
	m.places = places{
		stop: m.stopping, max: cfg.MaxSessions, size: cfg.PoolSize, giveUp: m.giveUp, changed: make(chan struct{}, 1),
	}
	m.creates = newGate(cfg.MaxCreates, m.stopping)
	m.execs = newGate(cfg.MaxExecs, m.stopping)
	m.uploads = newGate(maxUploads, nil)
	return m
}

// Start goes on with the sessions that were kept, adopts other runners of an
// earlier process, and starts reaping and filling the pool. Where the engine
// cannot be reached, adoption is tried again in the background and the service
// serves meanwhile.
// ctx bounds the first try alone. It fails where records cannot be looked for.
func (m *Manager) Start(ctx context.Context) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.end()
	m.driver = m.Health(ctx).Driver
	complete, err := m.resume(ctx)
	if err != nil {
		return err
	}
	// What the last process may have left unwritten is written first, or processes
	// that die one soon after the other would add up what they lose.
	m.saveLastUses()
	err = m.adopt(ctx, complete)
	if err != nil {
		m.log.Warn("cannot look for runners of an earlier process yet; trying again in the background", "err", err)
	}
	m.work.Go(func() { m.tidy(complete, err == nil) })
	m.work.Go(m.reap)
	m.work.Go(m.keepTime)
	m.wakeDelivery()
	return nil
}

// Shutdown refuses new calls, ends waiting ones, lets work in hand finish until
// ctx ends, and then ends it. Runners of sessions are left alive for the next
// process, those of the pool removed. It returns an error where work did not end
// even then.
func (m *Manager) Shutdown(ctx context.Context) error {
	m.mu.Lock()
	if !m.closing {
		m.closing = true
		close(m.stopping)
		m.endSoft(fault.New(fault.Unavailable, detailStopping))
	}
	m.mu.Unlock()

	done := make(chan struct{})
	go func() {
		m.work.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		m.endHard(fault.New(fault.Unavailable, detailStopping))
		timer := time.NewTimer(hardStopGrace)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
			err = errors.New("cannot end all work in hand")
		}
	}
	m.saveLastUses()
	m.endHard(fault.New(fault.Unavailable, detailStopping))
	m.closeStreams()
	return err
}

// closeStreams closes the streams to all runners that are not in use.
func (m *Manager) closeStreams() {
	var idle []*session
	m.mu.Lock()
	for _, s := range m.sessions {
		if s.runner != nil && s.lock.tryAcquire() {
			idle = append(idle, s)
		}
	}
	m.mu.Unlock()
	for _, s := range idle {
		m.closeStream(s)
		s.lock.release()
	}
}

func (m *Manager) closeStream(s *session) {
	if err := s.runner.Close(); err != nil {
		m.log.Debug("cannot close the stream to a runner", "session", s.id, "err", err)
	}
}

const (
	// hardStopGrace is how long cancelled work may take to notice.
	hardStopGrace  = 5 * time.Second
	healthTimeout  = 10 * time.Second
	detailStopping = "service is shutting down"
)

// Stats are figures for whoever watches the service.
type Stats struct {
	Sessions     int   // that a client may use
	Runners      int   // counted against the limit, those being made or removed included
	Pooled       int   // of these, ready for sessions to come
	SpoolEntries int   // archives and deletions that wait for their store
	SpoolBytes   int64 // on disk
	LostArchives int64 // workspaces that could not be kept, since the start
}

// Stats returns the figures of now.
func (m *Manager) Stats() Stats {
	var s Stats
	m.mu.Lock()
	for _, x := range m.sessions {
		if x.state == ready {
			s.Sessions++
		}
	}
	m.mu.Unlock()
	s.Runners, s.Pooled = m.places.count()
	s.SpoolEntries, s.SpoolBytes = m.deps.Spool.Usage()
	s.LostArchives = m.lost.Load()
	return s
}

// engineWell tells whether the engine can be reached.
func (m *Manager) engineWell() bool { return m.Health(m.hard).OK }

// Health asks the engine how it is. It answers within ten seconds.
func (m *Manager) Health(ctx context.Context) Health {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	info, err := m.deps.Driver.Info(ctx)
	if err != nil {
		m.log.Warn("engine cannot be reached", "err", err)
		info.Version = ""
	}
	return Health{
		OK:         err == nil,
		Version:    info.Version,
		Image:      info.Image,
		ImageReady: info.ImageReady,
		Driver:     info.Driver,
		Runtime:    info.Runtime,
	}
}

// begin counts a piece of work; end must follow. It fails during a shutdown.
func (m *Manager) begin() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing {
		return fault.New(fault.Unavailable, detailStopping)
	}
	m.work.Add(1)
	return nil
}

func (m *Manager) end() { m.work.Done() }

// bind returns ctx, ended as well when a shutdown runs out of patience.
func (m *Manager) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(m.hard, func() { cancel(context.Cause(m.hard)) })
	return ctx, func() {
		unhook()
		cancel(context.Canceled)
	}
}

// queue waits in a queue by acquire, and tells the observer.
func queue(ctx context.Context, name string, acquire func() error) error {
	_, span := observe.Start(ctx, observe.Wait, slog.String("queue", name))
	err := acquire()
	span.End(err)
	return err
}

// queueFault turns the end of a wait into what a client reads.
func queueFault(err error, busy string) error {
	switch {
	case errors.Is(err, errQueueTimeout), errors.Is(err, errNoPlace):
		return fault.Wrap(fault.Busy, busy, err)
	case errors.Is(err, errAborted):
		return fault.New(fault.NotFound, DetailNotFound)
	case errors.Is(err, errStopping):
		return fault.New(fault.Unavailable, detailStopping)
	}
	return fmt.Errorf("waiting in a queue: %w", err)
}
