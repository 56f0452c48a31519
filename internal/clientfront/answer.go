package clientfront

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/hjxwz123/aivory-sandbox/client"
)

func isLost(err error) bool { return errors.Is(err, client.ErrSessionLost) }

// response is what the service would have sent where the client returned this.
// An error that no answer stands behind is returned.
func response(status int, answer any, err error) (*http.Response, error) {
	header := http.Header{"Content-Type": {"application/json"}}
	var e *client.Error
	switch {
	case errors.As(err, &e):
		status, answer = e.Status, failure(e)
		if e.RequestID != "" {
			header.Set("X-Request-Id", e.RequestID)
		}
	case err != nil:
		return nil, err
	}
	var body bytes.Buffer
	out := json.NewEncoder(&body)
	out.SetEscapeHTML(false)
	if err := out.Encode(answer); err != nil {
		return nil, err
	}
	body.Truncate(body.Len() - 1) // the line's end
	return &http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: header,
		ContentLength: int64(body.Len()), Body: io.NopCloser(&body),
	}, nil
}

// failure is the body of an error.
func failure(e *client.Error) any {
	switch {
	// What is refused before anybody looks at the request has another form.
	case e.Status == http.StatusUnauthorized,
		e.Status == http.StatusRequestEntityTooLarge && strings.HasPrefix(e.Detail, "request body exceeds "):
		return struct {
			Error string `json:"error"`
		}{e.Detail}
	case len(e.Issues) > 0:
		return struct {
			Detail []client.Issue `json:"detail"`
		}{e.Issues}
	}
	return struct {
		Detail string `json:"detail"`
	}{e.Detail}
}
