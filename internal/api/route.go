package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// route is one row of the route table.
type route struct {
	method  string
	pattern string // a path; a last segment in braces stands for any
	public  bool   // needs no key
	limit   int64  // of the request body
	handle  func(w *response, r *http.Request, vars pathVars) error
}

// pathVars is what a path gave for the variable of its pattern.
type pathVars string

func (a *api) table() []route {
	body := a.cfg.MaxBody
	table := []route{
		{"GET", "/healthz", true, body, a.health},
		{"POST", "/sessions", false, body, a.createSession},
		{"DELETE", "/sessions/{session_id}", false, body, a.deleteSession},
		{"POST", "/exec", false, body, a.exec},
		{"POST", "/files", false, body, a.writeFile},
		{"POST", "/files/get", false, body, a.readFile},
		{"POST", "/files/list", false, body, a.listFiles},
		{"POST", "/files/reset-inputs", false, body, a.resetInputs},
	}
	if a.storage != nil {
		table = append(table,
			route{"POST", "/storage/put", false, a.cfg.MaxStorageBody, a.putObject},
			route{"POST", "/storage/delete", false, body, a.deleteObject},
			route{"POST", "/storage/gc", false, body, a.collectObjects},
		)
	}
	return table
}

// match finds the route for a path, which is compared as it is, not cleaned. A
// path that leads nowhere gets a route without a handler.
func (a *api) match(path string) (route, pathVars) {
	for _, rt := range a.routes {
		fixed, isVar := strings.CutSuffix(rt.pattern, "{session_id}")
		if !isVar {
			if path == rt.pattern {
				return rt, ""
			}
			continue
		}
		if rest, ok := strings.CutPrefix(path, fixed); ok && rest != "" && !strings.Contains(rest, "/") {
			return rt, pathVars(rest)
		}
	}
	return route{limit: a.cfg.MaxBody}, ""
}

// serve makes the checks that all routes share, in the contract's order: the
// declared size, the key, the path, the method.
func (a *api) serve(w *response, r *http.Request, rt route, vars pathVars) error {
	if r.ContentLength > rt.limit {
		return &tooLargeError{rt.limit}
	}
	if !rt.public && !a.authorized(r) {
		return errUnauthorized
	}
	if rt.handle == nil {
		return a.redirect(w, r)
	}
	if r.Method != rt.method {
		w.Header().Set("Allow", rt.method)
		return &routeError{http.StatusMethodNotAllowed}
	}
	r.Body = http.MaxBytesReader(w.ResponseWriter, r.Body, rt.limit) // for one of undeclared size
	return rt.handle(w, r, vars)
}

// authorized tells whether a request bears a key: the first Authorization
// header counts, as "Bearer", one space, and the key.
func (a *api) authorized(r *http.Request) bool {
	if a.cfg.NoAuth {
		return true
	}
	key, ok := strings.CutPrefix(strings.Trim(r.Header.Get("Authorization"), " \t"), "Bearer ")
	if !ok {
		return false
	}
	given, found := sha256.Sum256([]byte(key)), 0
	for i := range a.keys {
		found |= subtle.ConstantTimeCompare(given[:], a.keys[i][:])
	}
	return found == 1
}

// redirect answers a path that leads nowhere: 307 where it does with slashes at
// its end taken away or one added, else 404.
func (a *api) redirect(w *response, r *http.Request) error {
	path := strings.TrimRight(r.URL.Path, "/")
	if path == r.URL.Path {
		path += "/"
	}
	if rt, _ := a.match(path); rt.handle == nil {
		return &routeError{http.StatusNotFound}
	}
	to := url.URL{Scheme: "http", Host: r.Host, Path: path, RawQuery: r.URL.RawQuery}
	if r.TLS != nil {
		to.Scheme = "https"
	}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && to.Host == "" {
		to.Host = local.String() // HTTP/1.0 need not say
	}
	w.Header().Set("Location", to.String())
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusTemporaryRedirect)
	return nil
}
