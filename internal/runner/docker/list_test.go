package docker_test

import (
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/docker"
)

func TestList(t *testing.T) {
	f := newFakeEngine(t).start(t)
	var query url.Values
	f.handle("GET /containers/json", func(w http.ResponseWriter, r *http.Request) {
		query = r.URL.Query()
		reply(200, `[
			{"Id":"a","Names":["/linked/alias","/aivory-sbx-`+testSession+`"],"State":"running","Created":5,"Labels":{"aivory.sandbox":"1","aivory.session_id":"`+testSession+`","aivory.created_at":"1700000000","aivory.instance":"blue"}},
			{"Id":"b","Names":["/aivory-sbx-`+testSession+`x"],"State":"exited","Created":6,"Labels":{"aivory.sandbox":"1","aivory.session_id":"`+strings.ToUpper(testSession)+`","aivory.created_at":"1e3"}},
			{"Id":"c","State":"running","Labels":{"aivory.sandbox":"1","aivory.instance":"green"}},
			{"Id":"d","State":"running","Labels":{"aivory.sandbox":"1","aivory.instance":""}},
			{"Id":"e","State":"paused","Created":7,"Labels":{"aivory.sandbox":"1","aivory.instance":"blue"}},
			{"Id":"f","State":"created","Created":8,"Labels":{"aivory.sandbox":"1","aivory.instance":"blue"}},
			{"Id":"g","State":"running","Labels":{"aivory.instance":"blue"}},
			{"Id":"h","State":"running","Labels":null}
		]`)(w, r)
	})
	got, err := f.driver(t, func(c *docker.Config) { c.Instance = "blue" }).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []runner.Instance{
		{ID: fakeName, SessionID: testSession, CreatedAt: time.Unix(1_700_000_000, 0), Running: true},
		{ID: "b", CreatedAt: time.Unix(6, 0), Legacy: true},
		{ID: "e", CreatedAt: time.Unix(7, 0), Running: true},
		{ID: "f", CreatedAt: time.Unix(8, 0)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if query.Get("all") != "1" || query.Get("filters") != `{"label":{"aivory.sandbox=1":true}}` {
		t.Errorf("asked for %v", query)
	}
}

func TestDestroy(t *testing.T) {
	const path = "DELETE /containers/NAME"
	removing := reply(409, `{"message":"removal of container x is already in progress"}`)
	gone := reply(404, `{"message":"No such container: x"}`)
	for _, x := range []struct {
		name  string
		do    http.HandlerFunc
		want  string
		calls int
	}{
		{"removed", reply(204, ""), "", 1},
		{"gone", gone, "", 1},
		{"being removed", inTurn(removing, removing, gone), "", 3},
		{"fails", reply(500, `{"message":"device busy"}`), "device busy", 1},
		{"proxy knows no such path", reply(404, "404 page not found"), "page not found", 1},
		{"proxy forbids", reply(403, "forbidden"), "forbidden", 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			f := newFakeEngine(t).start(t)
			var query url.Values
			f.handle(path, func(w http.ResponseWriter, r *http.Request) {
				query = r.URL.Query()
				x.do(w, r)
			})
			err := f.driver(t, nil).Destroy(t.Context(), fakeName)
			if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
				t.Errorf("got %v, want %q", err, x.want)
			}
			if n := f.count(path); n != x.calls {
				t.Errorf("%d calls, want %d", n, x.calls)
			}
			if query.Get("force") != "1" || query.Get("v") != "1" {
				t.Errorf("asked with %v", query)
			}
		})
	}

	t.Run("removal never ends", func(t *testing.T) {
		f := newFakeEngine(t).start(t)
		f.handle(path, removing)
		err := f.driver(t, func(c *docker.Config) { c.CallTimeout = time.Second }).Destroy(t.Context(), fakeName)
		if err == nil || !strings.Contains(err.Error(), "already in progress") {
			t.Errorf("got %v", err)
		}
	})
}

// TestOnlyDocumentedCalls keeps docs/docker.md honest: what a proxy must allow
// is what a whole life of a runner uses.
func TestOnlyDocumentedCalls(t *testing.T) {
	f := newFakeEngine(t).start(t)
	f.handle("GET /images/img:v1/json", inTurn(noImage, hasImage))
	f.handle(pullPath, reply(200, ""))
	f.handle("GET /containers/json", reply(200, "[]"))
	f.handle("POST /exec/e1/start", hijack(nothing))
	d := f.driver(t, nil)
	spec := testSpec
	spec.Limits.ReadOnlyRootfs = false
	id, err := d.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.Dial(t.Context(), id, []string{"x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	if _, err := d.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	documented := documentedCalls(t)
	used := f.calls()
	for _, c := range used {
		c = strings.NewReplacer("/NAME", "/{runner}", "/e1", "/{id}", "/img:v1", "/{name}").Replace(c)
		if !slices.Contains(documented, c) {
			t.Errorf("%s is not in docs/docker.md", c)
		}
	}
	for _, c := range documented {
		c = strings.NewReplacer("/{runner}", "/NAME", "/exec/{id}", "/exec/e1", "/{name}", "/img:v1").Replace(c)
		if !strings.HasSuffix(c, "/_ping") && !slices.Contains(used, c) {
			t.Errorf("docs/docker.md asks for %s, which is not used", c)
		}
	}
}

// documentedCalls reads the table of calls in the driver's page.
func documentedCalls(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/docker.md")
	if err != nil {
		t.Fatal(err)
	}
	var calls []string
	for _, m := range regexp.MustCompile("(?m)^\\| `((?:GET|HEAD|POST|PUT|DELETE) /[^`]*)` \\|").FindAllStringSubmatch(string(page), -1) {
		calls = append(calls, m[1])
	}
	if len(calls) < 8 {
		t.Fatalf("found only %q", calls)
	}
	return calls
}

func nothing(net.Conn) {}
