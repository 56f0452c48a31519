package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"html/template"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/hjxwz123/aivory-sandbox/internal/api/apitest"
)

var update = flag.Bool("update", false, "write docs.html anew")

var described = sync.OnceValues(func() (apitest.Description, error) { return apitest.Load(openapi) })

// description returns the description of the interface.
func description(t testing.TB) apitest.Description {
	t.Helper()
	d, err := described()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// checkDescribed holds an answer against the description, where it is of a route
// at all. Every test's answers come this way.
func checkDescribed(t testing.TB, method, path string, a answer) {
	t.Helper()
	path, _, _ = strings.Cut(path, "?")
	path, err := url.PathUnescape(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := description(t).Check(method, path, a.status, a.header, []byte(a.body)); err != nil {
		t.Error(err)
	}
}

// Each route is described, and nothing else is.
func TestDescriptionOfRoutes(t *testing.T) {
	var have, want []string
	for _, rt := range start(t).handler.routes {
		for _, m := range rt.methods {
			have = append(have, m.name+" "+rt.pattern)
			op, _, _ := description(t).Find(m.name, rt.pattern)
			if op == nil {
				continue
			}
			if public := op.Security != nil && len(*op.Security) == 0; public != (rt.access == 1) {
				t.Errorf("%s %s: described as public: %t, is: %t", m.name, rt.pattern, public, !public)
			}
		}
	}
	for path, item := range description(t).Paths.Map() {
		for method := range item.Operations() {
			want = append(want, method+" "+path)
		}
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("routes: %q\ndescribed: %q", have, want)
	}
}

// The examples are requests that the service takes.
func TestDescribedExamples(t *testing.T) {
	s := start(t)
	s.sessions.files["outputs/result.txt"] = []byte("x")
	s.sessions.exec = printed("4\n")
	tried := 0
	for path, item := range description(t).Paths.Map() {
		for method, op := range item.Operations() {
			if op.RequestBody == nil {
				continue
			}
			example, err := json.Marshal(op.RequestBody.Value.Content.Get("application/json").Example)
			if err != nil {
				t.Fatal(err)
			}
			body := regexp.MustCompile(`[0-9a-f]{32}`).ReplaceAllString(string(example), live)
			got := s.do(t, method, strings.Replace(path, "{session_id}", live, 1), body)
			if got.status != 200 {
				t.Errorf("%s %s: %d %s", method, path, got.status, got.body)
			}
			tried++
		}
	}
	if tried < 10 {
		t.Errorf("tried %d examples only", tried)
	}
}

func TestDocs(t *testing.T) {
	s := start(t)
	for path, want := range map[string]struct{ kind, part string }{
		"/openapi.yaml": {"application/yaml", "openapi: 3."}, "/docs": {"text/html; charset=utf-8", "<!DOCTYPE html>"},
	} {
		got := s.do(t, "GET", path, "", "Authorization: ")
		if got.status != 200 || got.header.Get("Content-Type") != want.kind || !strings.HasPrefix(got.body, want.part) {
			t.Errorf("%s: %d %s %.60q", path, got.status, got.header.Get("Content-Type"), got.body)
		}
	}
	// The page works offline and runs nothing.
	for _, bad := range []string{"<script", "src=", "@import", "url(", "<link"} {
		if bytes.Contains(docs, []byte(bad)) {
			t.Errorf("the page has %s", bad)
		}
	}
	off := start(t, func(c *Config) { c.Docs = false })
	for _, path := range []string{"/openapi.yaml", "/docs"} {
		if got := off.ask(t, "GET", path, "", "Authorization: "); got.status != 401 {
			t.Errorf("%s, turned off and without a key: %d", path, got.status)
		}
		if got := off.ask(t, "GET", path, ""); got.status != 404 {
			t.Errorf("%s, turned off: %d", path, got.status)
		}
	}
}

// docs.html is what becomes of the description.
func TestReferencePage(t *testing.T) {
	page := renderReference(t)
	if *update {
		if err := os.WriteFile("docs.html", page, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(page, docs) {
		t.Error("docs.html is not what openapi.yaml gives: go test ./internal/api -run TestReferencePage -update")
	}
}

// operation is one entry of the page.
type operation struct {
	Method, Path string
	*openapi3.Operation
}

func (o operation) Public() bool { return o.Security != nil && len(*o.Security) == 0 }

// Curl is a call with the example's body.
func (o operation) Curl(example any) (string, error) {
	line := "curl -sS"
	if o.Method != "GET" {
		line += " -X " + o.Method
	}
	line += ` "$SANDBOX_URL` + strings.Replace(o.Path, "{session_id}", "$SID", 1) + `"`
	if !o.Public() {
		line += " \\\n  -H \"Authorization: Bearer $SANDBOX_API_KEY\""
	}
	if example == nil {
		return line, nil
	}
	text, err := json.Marshal(example)
	return line + " \\\n  -H 'Content-Type: application/json' \\\n  -d '" + string(text) + "'", err
}

// row is one of a table of properties.
type row struct {
	Name     string
	Required bool
	Ref      *openapi3.SchemaRef
}

func renderReference(t *testing.T) []byte {
	t.Helper()
	doc := description(t)
	order := []string{"GET", "POST", "DELETE"}
	operations := func(tag string) (found []operation) {
		for path, item := range doc.Paths.Map() {
			for method, op := range item.Operations() {
				if op.Tags[0] == tag {
					found = append(found, operation{method, path, op})
				}
			}
		}
		slices.SortFunc(found, func(a, b operation) int {
			return cmp.Or(strings.Compare(a.Path, b.Path), slices.Index(order, a.Method)-slices.Index(order, b.Method))
		})
		return found
	}
	code := regexp.MustCompile("`([^`]*)`")
	functions := template.FuncMap{
		"operations": operations,
		"prose": func(text string) template.HTML {
			var out strings.Builder
			for part := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
				if part = strings.TrimSpace(part); part != "" {
					out.WriteString("<p>" + code.ReplaceAllString(template.HTMLEscapeString(part), "<code>$1</code>") + "</p>\n")
				}
			}
			return template.HTML(out.String())
		},
		"line": func(text string) template.HTML {
			return template.HTML(code.ReplaceAllString(template.HTMLEscapeString(text), "<code>$1</code>"))
		},
		"name": func(ref string) string { return ref[strings.LastIndex(ref, "/")+1:] },
		"fields": func(s *openapi3.Schema) (rows []row) {
			for name, ref := range s.Properties {
				rows = append(rows, row{name, slices.Contains(s.Required, name), ref})
			}
			slices.SortFunc(rows, func(a, b row) int {
				if a.Required != b.Required {
					return map[bool]int{true: -1, false: 1}[a.Required]
				}
				return strings.Compare(a.Name, b.Name)
			})
			return rows
		},
		"statuses": func(r *openapi3.Responses) (codes []string) {
			for code := range r.Map() {
				codes = append(codes, code)
			}
			slices.Sort(codes)
			return codes
		},
		"schemas": func() (names []string) {
			for name := range doc.Components.Schemas {
				names = append(names, name)
			}
			slices.Sort(names)
			return names
		},
		"type": typeName,
	}
	page := template.Must(template.New("reference.html").Funcs(functions).ParseFiles("testdata/reference.html"))
	var out bytes.Buffer
	if err := page.Execute(&out, doc.T); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// typeName is a schema in few words; one with a name of its own is a link.
func typeName(ref *openapi3.SchemaRef) template.HTML {
	if ref.Ref != "" {
		name := template.HTMLEscapeString(ref.Ref[strings.LastIndex(ref.Ref, "/")+1:])
		return template.HTML(`<a href="#schema-` + name + `">` + name + `</a>`)
	}
	s := ref.Value
	text := "any"
	switch {
	case len(s.OneOf) > 0:
		var parts []string
		for _, one := range s.OneOf {
			parts = append(parts, string(typeName(one)))
		}
		text = strings.Join(parts, " or ")
	case s.Type.Is("array"):
		text = "array of " + string(typeName(s.Items))
	case s.Type != nil:
		text = s.Type.Slice()[0]
	}
	return template.HTML(text)
}
