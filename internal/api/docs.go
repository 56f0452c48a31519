package api

import (
	_ "embed"
	"net/http"
)

// openapi describes this interface. It is written by hand; tests hold it against
// the routes and against what they answer.
//
//go:embed openapi.yaml
var openapi []byte

// docs is openapi as a page. A test makes it (go test -run TestReferencePage
// -update), so that the service needs neither a YAML parser nor a template.
//
//go:embed docs.html
var docs []byte

// docsPolicy lets the page load nothing and run nothing, whatever it may hold.
const docsPolicy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func (a *api) description(w *response, _ *http.Request, _ pathVars) error {
	w.send(http.StatusOK, "application/yaml", openapi)
	return nil
}

func (a *api) reference(w *response, _ *http.Request, _ pathVars) error {
	w.Header().Set("Content-Security-Policy", docsPolicy)
	w.send(http.StatusOK, "text/html; charset=utf-8", docs)
	return nil
}
