package api

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/mimetype"
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

func (a *api) exec(w *response, r *http.Request, _ pathVars) error {
	var (
		id      string
		req     session.ExecRequest
		size    int64
		timeout *int64
	)
	err := readBody(w, r, false, []field{
		stringField("session_id", &id),
		codeField("code", a.cfg.MaxCode, &req.Code, &size),
		intField("timeout_ms", &timeout).orNull(),
	})
	if err != nil {
		return err
	}
	if err := checkID(id); err != nil {
		return err
	}
	if size > a.cfg.MaxCode {
		return fault.New(fault.TooLarge, "code too large")
	}
	req.Timeout = a.execTimeout(timeout)
	x, err := a.sessions.Exec(r.Context(), id, req)
	if err != nil {
		return err
	}
	defer func() {
		if err := x.Close(); err != nil {
			a.log.WarnContext(r.Context(), "cannot close a run", "error", err)
		}
	}()
	_, span := observe.Start(r.Context(), observe.Send)
	err = w.sendExecution(x, x.Next, a.output(x, req.Timeout))
	span.End(err)
	return err
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

// output is what a program wrote, with what the service has to add.
type output struct{ stdout, stderr []byte }

// output composes stdout and stderr. They may hold any bytes.
func (a *api) output(x *session.Execution, timeout time.Duration) output {
	limit := a.cfg.MaxOutput / 1024
	o := output{bytes.Clone(x.Stdout), bytes.Clone(x.Stderr)}
	// A character that the cut went through is left out whole.
	if x.StdoutTruncated {
		o.stdout = fmt.Appendf(o.stdout[:completeRunes(o.stdout)], "\n... [truncated, stdout exceeded %dKB]", limit)
	}
	if x.StderrTruncated {
		o.stderr = fmt.Appendf(o.stderr[:completeRunes(o.stderr)], "\n... [truncated, stderr exceeded %dKB]", limit)
	}
	switch x.Reason {
	case session.ReasonTimeout:
		o.stderr = fmt.Appendf(o.stderr, "\n[sandbox] execution exceeded %.3fs and was killed", timeout.Seconds())
	case session.ReasonOOM:
		o.stderr = append(o.stderr, "\n[sandbox] out of memory: the run needed more memory than the sandbox has"...)
	case session.ReasonLost:
		o.stderr = append(o.stderr, "\n[sandbox] the run lost its supervisor and was ended"...)
	default:
		// The program went on, or ended in its own words, which seldom name the cause.
		if x.Usage.OOMKills > 0 {
			o.stderr = fmt.Appendf(o.stderr, "\n[sandbox] out of memory: %d process(es) of the run were killed", x.Usage.OOMKills)
		}
	}
	if x.Skipped > 0 {
		o.stderr = addLine(o.stderr, "skipped %d output file(s) because artifact limits are %d files, %d bytes per file, %d bytes total",
			x.Skipped, a.cfg.MaxArtifacts, a.cfg.MaxArtifactBytes, a.cfg.MaxArtifactTotal)
	}
	if x.Unreadable > 0 {
		o.stderr = addLine(o.stderr, "could not read %d output file(s)", x.Unreadable)
	}
	if x.Incomplete {
		o.stderr = addLine(o.stderr, "there are more files under outputs than could be looked at")
	}
	return o
}

// addLine adds a line about artifacts, and trims the whole, as clients know it.
func addLine(text []byte, format string, args ...any) []byte {
	return bytes.TrimSpace(fmt.Appendf(append(text, "\n[sandbox] "...), format, args...))
}

// sendExecution answers with a run. Its artifacts, which next gives one after
// the other, are encoded while they come.
func (w *response) sendExecution(x *session.Execution, next func() (io.Reader, error), o output) error {
	head := append([]byte(nil), `{"stdout":"`...)
	head = appendEscaped(head, o.stdout)
	head = append(head, `","stderr":"`...)
	head = appendEscaped(head, o.stderr)
	head = append(head, `","exit_code":`...)
	head = strconv.AppendInt(head, int64(x.ExitCode), 10)
	head = append(head, `,"files":[`...)

	const fileEnd, end = `"}`, `]}`
	heads := make([][]byte, len(x.Files))
	length := int64(len(head) + len(end))
	for i, f := range x.Files {
		heads[i] = fileHead(i, f.Path)
		length += int64(len(heads[i])) + encodedLen(f.Size) + int64(len(fileEnd))
	}
	return w.stream(length, func(out *bufio.Writer) error {
		_, _ = out.Write(head) // out keeps an error to its Flush
		for i, f := range x.Files {
			content, err := next()
			if err != nil {
				return fmt.Errorf("cannot read artifact %d of %d: %w", i+1, len(x.Files), err)
			}
			_, _ = out.Write(heads[i])
			if err := encodeBase64(out, content, f.Size); err != nil {
				return fmt.Errorf("cannot send artifact %d of %d: %w", i+1, len(x.Files), err)
			}
			_, _ = out.WriteString(fileEnd)
		}
		_, _ = out.WriteString(end)
		return nil
	})
}

// fileHead is an artifact's JSON up to its content.
func fileHead(i int, name string) []byte {
	name = path.Base(name)
	var b []byte
	if i > 0 {
		b = append(b, ',')
	}
	b = append(b, `{"name":"`...)
	b = appendEscaped(b, []byte(name))
	b = append(b, `","mime_type":"`...)
	b = append(b, mimetype.ByName(name)...)
	return append(b, `","data_base64":"`...)
}

// encodedLen is the length of base64 of n bytes.
func encodedLen(n int64) int64 { return (n + 2) / 3 * 4 }
