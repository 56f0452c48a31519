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
	pattern string // a path; a last segment in braces stands for any
	access  access
	limit   int64 // of the request body
	methods []method
}

// access is what a route asks of a client.
type access uint8

const (
	keyed   access = iota // one of the keys
	public                // nothing
	watched               // one of the keys, or the one that is for watching alone
)

// method is what a route does for one method.
type method struct {
	name   string
	handle func(w *response, r *http.Request, vars pathVars) error
}

// allow lists the methods for the header of that name.
func (rt route) allow() string {
	names := make([]string, len(rt.methods))
	for i, m := range rt.methods {
		names[i] = m.name
	}
	return strings.Join(names, ", ")
}

// pathVars is what a path gave for the variable of its pattern.
type pathVars string

func (a *api) table() []route {
	body := a.cfg.MaxBody
	table := []route{
		{"/healthz", public, body, []method{{"GET", a.health}}},
		{"/sessions", keyed, body, []method{{"GET", a.listSessions}, {"POST", a.createSession}}},
		{"/sessions/{session_id}", keyed, body, []method{{"DELETE", a.deleteSession}, {"GET", a.showSession}}},
		{"/exec", keyed, body, []method{{"POST", a.exec}}},
		{"/exec/stream", keyed, body, []method{{"POST", a.execStream}}},
		{"/exec/cancel", keyed, body, []method{{"POST", a.cancelRun}}},
		{"/files", keyed, body, []method{{"POST", a.writeFile}}},
		{"/files/get", keyed, body, []method{{"POST", a.readFile}}},
		{"/files/list", keyed, body, []method{{"POST", a.listFiles}}},
		{"/files/reset-inputs", keyed, body, []method{{"POST", a.resetInputs}}},
	}
	if a.storage != nil {
		table = append(table,
			route{"/storage/put", keyed, a.cfg.MaxStorageBody, []method{{"POST", a.putObject}}},
			route{"/storage/delete", keyed, body, []method{{"POST", a.deleteObject}}},
			route{"/storage/gc", keyed, body, []method{{"POST", a.collectObjects}}},
		)
	}
	if a.cfg.Metrics != nil {
		table = append(table, route{"/metrics", watched, body, []method{{"GET", a.metrics}}})
	}
	if a.cfg.Docs {
		table = append(table,
			route{"/openapi.yaml", public, body, []method{{"GET", a.description}}},
			route{"/docs", public, body, []method{{"GET", a.reference}}},
		)
	}
	return table
}

// match finds the route for a path, which is compared as it is, not cleaned. A
// path that leads nowhere gets a route without methods.
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
	if rt.access != public && !a.authorized(r, rt.access) {
		return errUnauthorized
	}
	if rt.methods == nil {
		return a.redirect(w, r)
	}
	for _, m := range rt.methods {
		if r.Method == m.name {
			r.Body = http.MaxBytesReader(w.ResponseWriter, r.Body, rt.limit) // for one of undeclared size
			return m.handle(w, r, vars)
		}
	}
	w.Header().Set("Allow", rt.allow())
	return &routeError{http.StatusMethodNotAllowed}
}

// authorized tells whether a request bears a key: the first Authorization
// header counts, as "Bearer", one space, and the key.
func (a *api) authorized(r *http.Request, wanted access) bool {
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
	if wanted == watched && a.cfg.MetricsKey != "" {
		key := sha256.Sum256([]byte(a.cfg.MetricsKey))
		found |= subtle.ConstantTimeCompare(given[:], key[:])
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
	if rt, _ := a.match(path); rt.methods == nil {
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
