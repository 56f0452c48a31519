package api

import (
	"bytes"
	"context"
	"net/http"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/observe"
	"github.com/hjxwz123/aivory-sandbox/internal/session"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// minExecTimeout is the shortest timeout of a run.
const minExecTimeout = time.Second

// ok is the answer where there is nothing to say.
type ok struct {
	OK bool `json:"ok"`
}

func (a *api) health(w *response, r *http.Request, _ pathVars) error {
	h := a.sessions.Health(r.Context())
	status := http.StatusOK
	if !h.OK {
		status = http.StatusServiceUnavailable
	}
	return w.sendJSON(status, struct {
		OK         bool   `json:"ok"`
		Docker     string `json:"docker"`
		Image      string `json:"image"`
		ImageReady bool   `json:"image_ready"`
		Driver     string `json:"driver"`
		Runtime    string `json:"runtime"`
	}{h.OK, h.Version, h.Image, h.ImageReady, h.Driver, h.Runtime})
}

func (a *api) createSession(w *response, r *http.Request, _ pathVars) error {
	var req session.CreateRequest
	var block map[string]any
	err := readBody(w, r, true, []field{
		dictField("storage", &block).orNull(),
		intField("idle_ttl_sec", &req.IdleTTL).orNull(),
		stringField("archive_key", &req.ArchiveKey).orNull(),
	})
	if err != nil {
		return err
	}
	req.Storage = storageConfig(block)
	id, err := a.sessions.Create(r.Context(), req)
	if err != nil {
		return err
	}
	return w.sendJSON(http.StatusOK, struct {
		SessionID string `json:"session_id"`
	}{id})
}

func (a *api) deleteSession(w *response, r *http.Request, vars pathVars) error {
	var req session.DeleteRequest
	var block map[string]any
	err := readBody(w, r, true, []field{
		dictField("storage", &block).orNull(),
		boolField("discard", &req.Discard).orNull(),
		stringField("archive_key", &req.ArchiveKey).orNull(),
	})
	if err != nil {
		return err
	}
	id := string(vars)
	if err := checkID(id); err != nil {
		return err
	}
	req.Storage = storageConfig(block)
	if err := a.sessions.Delete(r.Context(), id, req); err != nil {
		return err
	}
	return w.sendJSON(http.StatusOK, ok{true})
}

// storageConfig returns nil for a block that was not sent.
func storageConfig(block map[string]any) *storage.Config {
	if block == nil {
		return nil
	}
	cfg := storage.ParseConfig(block)
	return &cfg
}

// checkID refuses what cannot be a session id: 32 lower-case hexadecimal digits.
func checkID(id string) error {
	if len(id) != 32 || len(bytes.Trim([]byte(id), hexDigits)) > 0 {
		return fault.New(fault.Invalid, session.DetailInvalidID)
	}
	return nil
}

// readExec reads and checks a request to run a program.
func (a *api) readExec(w *response, r *http.Request) (id string, req session.ExecRequest, err error) {
	var (
		size    int64
		timeout *int64
	)
	err = readBody(w, r, false, []field{
		stringField("session_id", &id),
		codeField("code", a.cfg.MaxCode, &req.Code, &size),
		intField("timeout_ms", &timeout).orNull(),
	})
	if err != nil {
		return "", req, err
	}
	if err := checkID(id); err != nil {
		return "", req, err
	}
	if size > a.cfg.MaxCode {
		return "", req, fault.New(fault.TooLarge, "code too large")
	}
	req.Timeout = a.execTimeout(timeout)
	return id, req, nil
}

func (a *api) exec(w *response, r *http.Request, _ pathVars) error {
	id, req, err := a.readExec(w, r)
	if err != nil {
		return err
	}
	x, err := a.sessions.Exec(r.Context(), id, req)
	if err != nil {
		return err
	}
	defer a.closeRun(r.Context(), x)
	_, span := observe.Start(r.Context(), observe.Send)
	result := newResult(x, x.Next, a.output(x, req.Timeout))
	err = w.stream(result.length, result.write)
	span.End(err)
	return err
}

func (a *api) closeRun(ctx context.Context, x *session.Execution) {
	if err := x.Close(); err != nil {
		a.log.WarnContext(ctx, "cannot close a run", "error", err)
	}
}

// execTimeout applies default, cap and minimum to a timeout in milliseconds.
func (a *api) execTimeout(ms *int64) time.Duration {
	d := a.cfg.ExecTimeout
	if ms != nil && *ms != 0 {
		d = a.cfg.ExecTimeoutCap
		if *ms < d.Milliseconds() {
			d = time.Duration(max(*ms, 0)) * time.Millisecond
		}
	}
	return max(min(d, a.cfg.ExecTimeoutCap), minExecTimeout)
}
