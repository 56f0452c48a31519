package api

import (
	"bufio"
	"fmt"
	"net/http"
	"unicode/utf8"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/session"
)

// maxPath is the longest path in bytes; no system takes a longer one.
const maxPath = 4096

func errBase64() error { return fault.New(fault.Invalid, "invalid base64") }

// checkPath refuses a path by its text, before anyone asks for its session.
func checkPath(path string, write bool) error {
	switch {
	case len(path) > maxPath:
		return fault.New(fault.Invalid, "path is too long")
	case !utf8.ValidString(path):
		return fault.New(fault.Invalid, "path is not valid Unicode")
	}
	return session.CheckPath(path, write)
}

func (a *api) writeFile(w *response, r *http.Request, _ pathVars) error {
	var id, path string
	data := upload{spool: spool{dir: a.spool}, max: a.cfg.MaxUpload}
	defer data.close()
	err := readBody(w, r, false, []field{
		stringField("session_id", &id),
		stringField("path", &path),
		uploadField("data_base64", &data),
	})
	if err != nil {
		return err
	}
	if err := checkID(id); err != nil {
		return err
	}
	switch {
	case data.err != nil:
		return data.err
	case !data.valid():
		return errBase64()
	case data.tooLarge():
		return fault.New(fault.TooLarge, "file too large")
	}
	if err := checkPath(path, true); err != nil {
		return err
	}
	if err := a.sessions.WriteFile(r.Context(), id, path, data.open(), data.size); err != nil {
		return err
	}
	return w.sendJSON(http.StatusOK, ok{true})
}

func (a *api) readFile(w *response, r *http.Request, _ pathVars) error {
	var id, path string
	err := readBody(w, r, false, []field{
		stringField("session_id", &id),
		stringField("path", &path),
	})
	if err != nil {
		return err
	}
	if err := checkID(id); err != nil {
		return err
	}
	if err := checkPath(path, false); err != nil {
		return err
	}
	file, size, err := a.sessions.ReadFile(r.Context(), id, path)
	if err != nil {
		return err
	}
	defer func() {
		if err := file.Close(); err != nil {
			a.log.WarnContext(r.Context(), "cannot close a file", "error", err)
		}
	}()
	const head, end = `{"data_base64":"`, `"}`
	return w.stream(int64(len(head)+len(end))+encodedLen(size), func(out *bufio.Writer) error {
		_, _ = out.WriteString(head) // out keeps an error to its Flush
		if err := encodeBase64(out, file, size); err != nil {
			return fmt.Errorf("cannot send a file of %d bytes: %w", size, err)
		}
		_, _ = out.WriteString(end)
		return nil
	})
}

func (a *api) listFiles(w *response, r *http.Request, _ pathVars) error {
	id, err := a.readID(w, r)
	if err != nil {
		return err
	}
	files, err := a.sessions.ListFiles(r.Context(), id)
	if err != nil {
		return err
	}
	if files == nil {
		files = []session.FileInfo{} // [], not null
	}
	return w.sendJSON(http.StatusOK, struct {
		Files []session.FileInfo `json:"files"`
	}{files})
}

func (a *api) resetInputs(w *response, r *http.Request, _ pathVars) error {
	id, err := a.readID(w, r)
	if err != nil {
		return err
	}
	err = a.sessions.ResetInputs(r.Context(), id)
	gone := fault.Is(err, fault.NotFound)
	if err != nil && !gone {
		return err
	}
	// A session that is gone is no failure here: the client makes another and
	// stages its inputs there.
	return w.sendJSON(http.StatusOK, struct {
		OK          bool `json:"ok"`
		SessionGone bool `json:"session_gone"`
	}{!gone, gone})
}

// readID reads a body that names a session and nothing else.
func (a *api) readID(w *response, r *http.Request) (string, error) {
	var id string
	if err := readBody(w, r, false, []field{stringField("session_id", &id)}); err != nil {
		return "", err
	}
	return id, checkID(id)
}
