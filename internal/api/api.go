// Package api is the service's HTTP face: routes, authentication, limits,
// request bodies and their validation, answers and errors. It speaks the
// contract's JSON on one side and sessions and storage, through interfaces of
// its own, on the other.
package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/observe"
	"github.com/hjxwz123/aivory-sandbox/internal/session"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// Config is what the HTTP layer has to know. All sizes are in bytes.
type Config struct {
	// Keys are the bearer keys that are accepted, any of them.
	Keys []string
	// NoAuth accepts every request; Keys do not count then.
	NoAuth bool

	MaxBody        int64 // a request body
	MaxStorageBody int64 // a request body of /storage/put
	MaxCode        int64 // a program
	MaxUpload      int64 // a file, decoded
	MaxOutput      int   // each of stdout and stderr; named where they were cut

	// ExecTimeout is the timeout of a run whose request names none,
	// ExecTimeoutCap the longest.
	ExecTimeout, ExecTimeoutCap time.Duration

	// Artifact limits are named where artifacts were left out; the runner
	// applies them.
	MaxArtifacts     int
	MaxArtifactBytes int64
	MaxArtifactTotal int64

	// TempDir takes uploads that are too big for memory, at most MaxTemp at one
	// time (0 is no bound). It is made where it is missing.
	TempDir string
	MaxTemp int64

	// Heartbeat is how often /exec/stream sends something where there is nothing to
	// send; 0 is 15 seconds.
	Heartbeat time.Duration

	// Metrics serves /metrics; nil is no such route. MetricsKey is a key for that
	// route alone, beside Keys; empty is none.
	Metrics    http.Handler
	MetricsKey string

	// Observer is told of each request and of what is done for it; nil is nobody.
	Observer observe.Observer

	// Docs serves the description of this interface and its reference page, both
	// without a key.
	Docs bool

	// StallTimeout is how long a client may be silent in the middle of a request
	// or of an answer; 0 is a minute.
	StallTimeout time.Duration
}

// Sessions is what the HTTP layer needs of the session manager. Errors carry
// their kind and the client's sentence as fault.Error. Session ids are
// well-formed, paths name something under /workspace by their text.
type Sessions interface {
	// Create makes a session and returns its id.
	Create(ctx context.Context, req session.CreateRequest) (id string, err error)
	// Delete releases a session. One that does not exist is released.
	Delete(ctx context.Context, id string, req session.DeleteRequest) error
	// Exec runs a program. The caller closes the Execution.
	Exec(ctx context.Context, id string, req session.ExecRequest) (*session.Execution, error)
	// Interrupt interrupts a session's run in hand, and tells whether there is one.
	Interrupt(id string) (bool, error)
	// WriteFile stores exactly size bytes of body.
	WriteFile(ctx context.Context, id, path string, body io.Reader, size int64) error
	// ReadFile opens a file of exactly size bytes. The caller closes it.
	ReadFile(ctx context.Context, id, path string) (body io.ReadCloser, size int64, err error)
	// ListFiles lists the workspace.
	ListFiles(ctx context.Context, id string) ([]session.FileInfo, error)
	// ResetInputs empties the managed input directories.
	ResetInputs(ctx context.Context, id string) error
	// Sessions tells of all sessions, the oldest first. Neither it nor Session is
	// use of a session.
	Sessions() []session.Info
	// Session tells of one session, which may be one that is terminating.
	Session(id string) (session.Info, error)
	// Health looks at the engine. It answers within a bounded time.
	Health(ctx context.Context) session.Health
}

// Storage is what the HTTP layer needs of object storage; *storage.Service is
// it. Errors carry their kind and the client's sentence as fault.Error. A Config
// without a provider is a request without a storage block.
type Storage interface {
	// Check reports what is wrong with a storage block, then with a key.
	Check(ctx context.Context, cfg storage.Config, key string) error
	// Put stores body and returns a URL to fetch it. It checks cfg and key before
	// it reads body. ExpiresIn is in seconds; nil, 0 or less is the default.
	Put(ctx context.Context, cfg storage.Config, key, contentType string, body io.Reader, expiresIn *int64) (storage.PutResult, error)
	// Delete removes an object and returns its full key.
	Delete(ctx context.Context, cfg storage.Config, key string) (fullKey string, err error)
	// GC removes archives and temporary objects older than maxAge seconds.
	GC(ctx context.Context, cfg storage.Config, maxAge int64) (storage.GCResult, error)
}

// api is the handler.
type api struct {
	cfg      Config
	keys     [][sha256.Size]byte
	sessions Sessions
	storage  Storage
	spool    *spoolDir
	log      *slog.Logger
	routes   []route
}

// New returns the service's handler. Without a Storage its routes do not exist.
// It fails where there is neither a key nor leave to do without, or where
// TempDir cannot be used.
func New(cfg Config, sessions Sessions, store Storage, log *slog.Logger) (http.Handler, error) {
	a := &api{cfg: cfg, sessions: sessions, storage: store, log: slog.New(NewLogHandler(log.Handler()))}
	if !cfg.NoAuth {
		if len(cfg.Keys) == 0 {
			return nil, errors.New("no API key is set")
		}
		for _, key := range cfg.Keys {
			if key == "" {
				return nil, errors.New("an API key is empty")
			}
			a.keys = append(a.keys, sha256.Sum256([]byte(key)))
		}
	}
	if a.cfg.StallTimeout == 0 {
		a.cfg.StallTimeout = time.Minute
	}
	if a.cfg.Heartbeat == 0 {
		a.cfg.Heartbeat = 15 * time.Second
	}
	var err error
	if a.spool, err = newSpoolDir(cfg.TempDir, cfg.MaxTemp); err != nil {
		return nil, err
	}
	a.routes = a.table()
	return a, nil
}

// NewServer returns a server for the handler. It has no limit on the length of
// a request or an answer as a whole, since runs and uploads take their time;
// the handler watches that they go on.
func NewServer(addr string, h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Addr:                         addr,
		Handler:                      h,
		DisableGeneralOptionsHandler: true, // "OPTIONS *" is no route
		ReadHeaderTimeout:            10 * time.Second,
		IdleTimeout:                  2 * time.Minute,
		MaxHeaderBytes:               32 << 10,
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}
