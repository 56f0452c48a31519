package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// CreateOptions are how a session is made.
type CreateOptions struct {
	// IdleTTL is the idle time after which the session is released; 0 is the
	// service's default.
	IdleTTL time.Duration
	// ArchiveKey names the archive that the workspace is restored from and kept
	// under, [A-Za-z0-9_-]{1,128}.
	ArchiveKey string
	// Storage is where archives are kept; nil is nowhere.
	Storage *Storage
	// Restage, where not nil, lets a Session that is lost be replaced: see Session.
	// It brings the inputs into the new one.
	Restage func(ctx context.Context, s *Session) error
}

// DeleteOptions are how a session is released.
type DeleteOptions struct {
	// Discard keeps no archive of the workspace and deletes the one there is.
	Discard bool
	// ArchiveKey counts with Discard alone.
	ArchiveKey string
	// Storage is where the archive goes; nil is the session's own.
	Storage *Storage
}

// Session is a session on the service. It is safe for concurrent use; the service
// serves calls on one session one at a time.
//
// Sessions get lost: they are released for being idle, or with their runner. A call
// on one that is lost fails with ErrSessionLost. Where CreateOptions.Restage is
// set, the Session is made anew instead, with the same options, Restage is called,
// and the call is tried once more; it had no effect before. A body that cannot be
// read twice is not.
type Session struct {
	client  *Client
	options CreateOptions

	mu sync.Mutex
	id string
	// renewing holds back all but one of the calls that find the session lost.
	renewing sync.Mutex
}

// CreateSession makes a session.
func (c *Client) CreateSession(ctx context.Context, options CreateOptions) (*Session, error) {
	id, err := c.create(ctx, options)
	if err != nil {
		return nil, err
	}
	return &Session{client: c, options: options, id: id}, nil
}

func (c *Client) create(ctx context.Context, o CreateOptions) (string, error) {
	body := map[string]any{}
	if o.IdleTTL > 0 {
		body["idle_ttl_sec"] = int64(max(o.IdleTTL/time.Second, 1))
	}
	if o.ArchiveKey != "" {
		body["archive_key"] = o.ArchiveKey
	}
	if o.Storage != nil {
		body["storage"] = o.Storage
	}
	var made struct {
		ID string `json:"session_id"`
	}
	if err := c.call(ctx, http.MethodPost, "/sessions", body, &made); err != nil {
		return "", err
	}
	return made.ID, nil
}

// Session returns the session with an id, without asking whether there is one. It
// is never made anew.
func (c *Client) Session(id string) *Session { return &Session{client: c, id: id} }

// ID is the session's id. It changes where the session is made anew.
func (s *Session) ID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// Delete releases the session. One that does not exist is released.
func (s *Session) Delete(ctx context.Context, o DeleteOptions) error {
	body := map[string]any{}
	if o.Discard {
		body["discard"] = true
		if o.ArchiveKey != "" {
			body["archive_key"] = o.ArchiveKey
		}
	}
	if o.Storage != nil {
		body["storage"] = o.Storage
	}
	return s.client.call(ctx, http.MethodDelete, "/sessions/"+url.PathEscape(s.ID()), body, nil)
}

// SessionInfo is what the service tells of a session.
type SessionInfo struct {
	ID         string    `json:"session_id"`
	State      string    `json:"state"` // "ready", "busy" or "terminating"
	Created    time.Time `json:"created_at"`
	Age        float64   `json:"age_seconds"`
	IdleTTL    float64   `json:"idle_ttl_seconds"`
	IdleLeft   float64   `json:"idle_left_seconds"`
	ArchiveKey string    `json:"archive_key"`
	Provider   string    `json:"storage_provider"` // empty where none keeps its workspace
	Usage      struct {
		Runs       int64   `json:"runs"`
		Wall       float64 `json:"wall_seconds"`
		CPU        float64 `json:"cpu_seconds"`
		PeakMemory int64   `json:"peak_memory_bytes"`
	} `json:"usage"`
}

// Info asks the service about the session, which is no use of it.
func (s *Session) Info(ctx context.Context) (info SessionInfo, err error) {
	err = s.client.call(ctx, http.MethodGet, "/sessions/"+url.PathEscape(s.ID()), nil, &info)
	return info, markLost(err)
}

// Sessions lists all sessions of the service, the oldest first.
func (c *Client) Sessions(ctx context.Context) ([]SessionInfo, error) {
	var list struct {
		Sessions []SessionInfo `json:"sessions"`
	}
	err := c.call(ctx, http.MethodGet, "/sessions", nil, &list)
	return list.Sessions, err
}

// do makes a call on the session, and once more on its successor where it is lost
// and may have one. Again makes ready for that, where it is not nil.
func (s *Session) do(ctx context.Context, again func() error, call func(id string) error) error {
	id := s.ID()
	err := call(id)
	if !errors.Is(err, ErrSessionLost) || s.options.Restage == nil {
		return err
	}
	if again != nil {
		if e := again(); e != nil {
			return fmt.Errorf("%w (not tried again: %w)", err, e)
		}
	}
	if err := s.renew(ctx, id); err != nil {
		return err
	}
	return call(s.ID())
}

// renew replaces a session that is lost, unless another call has done so.
func (s *Session) renew(ctx context.Context, lost string) error {
	s.renewing.Lock()
	defer s.renewing.Unlock()
	if s.ID() != lost {
		return nil
	}
	id, err := s.client.create(ctx, s.options)
	if err != nil {
		return fmt.Errorf("cannot replace a session that is lost: %w", err)
	}
	if err := s.options.Restage(ctx, s.client.Session(id)); err != nil {
		// Nobody else will ever know of it.
		err = errors.Join(err, s.client.Session(id).Delete(context.WithoutCancel(ctx), DeleteOptions{}))
		return fmt.Errorf("cannot bring the inputs into a new session: %w", err)
	}
	s.mu.Lock()
	s.id = id
	s.mu.Unlock()
	return nil
}

// markLost tells that a 404 is about the session.
func markLost(err error) error {
	var e *Error
	if errors.As(err, &e) && e.Status == http.StatusNotFound {
		e.lost = true
	}
	return err
}

// findLost is markLost for calls whose 404 may be about something else: it asks.
func (s *Session) findLost(ctx context.Context, id string, err error) error {
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	body := map[string]any{"session_id": id}
	if e := s.client.call(ctx, http.MethodPost, "/files/list", body, nil); errors.Is(e, ErrNotFound) {
		return markLost(err)
	}
	return err
}
