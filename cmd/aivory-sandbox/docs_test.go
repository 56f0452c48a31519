package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// block is a code block of a page.
type block struct {
	page   string // its path from the repository's root
	line   int    // where its text begins
	nth    int    // among its page's
	syntax string // the word behind the fence
	text   string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// how a block is checked. One of the fields but want is set.
type how struct {
	// live blocks are run: shell by a shell, one for each page, Go as a program.
	// Want is a pattern that what they print has to match.
	live bool
	want string
	// slow ones are run with the long counts alone.
	slow bool
	// test names the tests that do what the block says.
	test string
	// reads tells why the block is looked at, and not run.
	reads string
}

// checks says how each block is checked: page, then the beginning of its first
// line. A block without an entry fails a test, and so does an entry without a block.
var checks = map[string]map[string]how{
	"README.md": {
		"make run":           {live: true, want: `Ready\. `},
		"export SANDBOX_URL": {live: true, want: `^{"stdout":"4\\n","stderr":"","exit_code":0,"files":\[\]`},
		"curl -sS -X POST":   {live: true, want: `(?s)"name":"s.csv","mime_type":"text/csv".*{"ok":true}$`},
		"aivory-sandbox run": {live: true, want: `^ran 1,2\n$`},
		"package main":       {live: true, want: `^4\ntotals.csv \(text/csv\): 13 bytes\n$`},
		"make test":          {reads: "it is what runs this test"},
	},
	// TestREADMEsAgree holds its blocks against the other one's.
	"README.zh-CN.md": {
		"make run": {test: "TestREADMEsAgree"}, "export SANDBOX_URL": {test: "TestREADMEsAgree"}, "curl -sS -X POST": {test: "TestREADMEsAgree"},
		"aivory-sandbox run": {test: "TestREADMEsAgree"}, "package main": {test: "TestREADMEsAgree"}, "make test": {test: "TestREADMEsAgree"},
	},
	"docs/api.md": {
		"call() {":                        {live: true},
		`curl -sS "$SANDBOX_URL/healthz"`: {live: true, want: `^{"ok":true,"docker":`},
		"health, err":                     {live: true, want: `(?m)^true \S+ true$`},
		"SID=$(call POST /sessions":       {live: true, want: `"archive_key":"conv_example".*"archive_key":"conv_example"`},
		"session, err := service":         {live: true, want: `(?m)^\d+ ready \S+$`},
		"call POST /exec ":                {live: true, want: `(?s)"stdout":"4\\n".*event: result.*{"ok":true,"cancelled":false}$`},
		"result, err":                     {live: true, want: `(?m)^4\n 0 0\n4\nexit false$`},
		"call POST /files ":               {live: true, want: `(?s)^{"ok":true}a,b\n1,2\n{"files":\[{"path":"uploads/data.csv","size":8}\]}{"ok":true,"session_gone":false}$`},
		"err = session.WriteFile":         {live: true, want: `(?m)^8 1$`},
		"STORE='":                         {live: true, want: `(?s)"url":"http.*{"ok":true,"key":"aivory/mineru/a.txt"}{"deleted":0,`},
		"store := client.Storage{":        {live: true, want: `(?m)^http\S+ aivory/mineru/a.txt 0$`},
		"call DELETE":                     {live: true, want: `^{"ok":true}$`},
		"err = session.Delete":            {live: true},
		"SID=$(curl":                      {live: true, want: `(?s)event: stdout.*event: result\ndata: {"stdout":"0\\n1\\n2\\n"`},
		`curl -sS "$SANDBOX_URL/exec/can`: {live: true, want: `^{"ok":true,"cancelled":false}$`},
		`curl -sS "$SANDBOX_URL/sessions`: {live: true, want: `^{"sessions":\[{"session_id":"[0-9a-f]{32}","state":"ready"`},
		`{"sessions":`:                    {reads: "an answer; apitest holds answers against the description of the interface"},
	},
	"docs/calling.md": {
		"aivory-sandbox run":      {live: true, want: `^ran 1,2\n$`},
		"SID=$(aivory":            {live: true, want: `^ran 1,2\n`},
		"aivory-sandbox doctor":   {live: true, want: `(?m)^ok    runner: made in `},
		"go get":                  {live: true, want: `go: added github.com/hjxwz123/aivory-sandbox v0.0.1`},
		"session, err := service": {live: true},
	},
	"docs/deployment.md": {
		"export SANDBOX_API_KEY": {test: "TestCompose"},
		"docker build":           {reads: "needs a registry for the images that it begins with; TestCompose runs images of the same files"},
		"sha256sum --check":      {test: "TestRelease TestReleaseRunner"},
	},
	"docs/docker.md": {
		"ssh -nNT":     {reads: "needs another host"},
		"PING=1 CONTA": {test: "TestSocketProxy"},
	},
	"docs/isolation.md": {
		"aivory-sandbox image import": {test: "TestImportRootfs TestArchives TestPull TestRemove"},
		`{"runtimes"`:                 {reads: "a setting of an engine; TestConformanceRunsc of the Docker driver runs an engine that has it"},
	},
	"docs/migrating.md": {
		"aivory-sandbox doctor":       {live: true, want: `(?m)^ok    runner: made in `},
		"volumes:":                    {reads: "names a volume of the reader's"},
		"docker compose up":           {test: "TestCompose"},
		"echo 'print":                 {live: true, want: `^works\n$`},
		"aivory-sandbox session list": {live: true},
	},
	"docs/observing.md": {
		"scrape_configs:":             {reads: "a setting of Prometheus; TestOneRunSeenFromAllSides scrapes with that key"},
		"OTEL_EXPORTER_OTLP_ENDPOINT": {test: "TestOneRunSeenFromAllSides"},
		"go tool pprof":               {live: true, want: `Type: inuse_space`},
	},
	"docs/operators.md": {
		"apt-get install runc": {test: "TestWithoutDocker"},
	},
	"docs/runner-image.md": {
		"docker build":                      {reads: "needs a registry for the image that it begins with; build.sh makes the same image without one"},
		"images/runner/build.sh":            {reads: "the tests' own preparation runs it, for minutes; see scripts/test.sh"},
		"not installed:":                    {reads: "what a program prints"},
		"FROM aivory-sandbox":               {reads: "needs a mirror of Debian's packages"},
		"RUN fc-cache":                      {reads: "a line of a build that needs a mirror of Debian's packages"},
		"images/runner/check.sh aivory-san": {live: true, want: `(?m)^ok `, slow: true},
	},
	"docs/storage.md": {
		"{":       {reads: "a policy of AWS"},
		"STORE='": {live: true, want: `^works\n{"ok":true,"key":"aivory/trial.txt"}$`},
	},
}

// find returns how a block is checked, and under which entry.
func (b block) find() (entry string, h how, ok bool) {
	for e := range checks[b.page] {
		if strings.HasPrefix(b.text, e) && len(e) > len(entry) {
			entry, ok = e, true
		}
	}
	return entry, checks[b.page][entry], ok
}

// blocks returns the code blocks of all pages, fenced or indented.
func blocks(t *testing.T) []block {
	t.Helper()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []block
	for _, path := range append([]string{"../../README.md", "../../README.zh-CN.md"}, pages...) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, pageBlocks(strings.TrimPrefix(path, "../../"), string(text))...)
	}
	return all
}

func pageBlocks(page, text string) []block {
	var found []block
	var b *block
	fence, blank, listed := "", true, false
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimLeft(line, " ")
		indent := line[:len(line)-len(trimmed)]
		switch {
		case fence != "" && trimmed == "```":
			found, b, fence = append(found, *b), nil, ""
		case fence != "":
			b.text += strings.TrimPrefix(line, strings.TrimPrefix(fence, "```")) + "\n"
		case strings.HasPrefix(trimmed, "```"):
			b, fence = &block{page: page, line: i + 2, syntax: trimmed[3:]}, "```"+indent
		case b != nil && (strings.HasPrefix(line, "    ") || line == ""):
			b.text += strings.TrimPrefix(line, "    ") + "\n"
		case b != nil:
			b.text = strings.TrimRight(b.text, "\n") + "\n"
			found, b = append(found, *b), nil
		case strings.HasPrefix(line, "    ") && blank && !listed:
			b = &block{page: page, line: i + 1, text: line[4:] + "\n"}
		}
		blank = line == ""
		if fence == "" && !blank {
			// What is indented below an item of a list is its text.
			listed = regexp.MustCompile(`^([-*]|\d+\.) `).MatchString(line) || listed && indent != ""
		}
	}
	for i := range found {
		found[i].nth = i
	}
	return found
}

// TestEveryBlockIsChecked: each code block of the documentation has an entry, and
// each entry a block. Those that are not run are looked at as far as that goes.
func TestEveryBlockIsChecked(t *testing.T) {
	used := map[string]bool{}
	tests := testNames(t)
	counts := map[string]int{}
	for _, b := range blocks(t) {
		entry, h, ok := b.find()
		if !ok {
			t.Errorf("%v: no entry in checks says how this block is checked:\n%s", b, b.text)
			continue
		}
		used[b.page+"\x00"+entry] = true
		ways := 0
		for way, chosen := range map[string]bool{"run": h.live, "another test": h.test != "", "read": h.reads != ""} {
			if chosen {
				ways++
				counts[way]++
			}
		}
		if ways != 1 {
			t.Errorf("%v: its entry %q has %d ways to check it", b, entry, ways)
		}
		for _, name := range strings.Fields(h.test) {
			if !tests[name] {
				t.Errorf("%v: there is no %s", b, name)
			}
		}
		switch b.syntax {
		case "sh", "bash":
			cmd := exec.Command("bash", "-n")
			cmd.Stdin = strings.NewReader(b.text)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %v: %s", b, err, out)
			}
		case "json":
			if !json.Valid([]byte(b.text)) {
				t.Errorf("%v is no JSON", b)
			}
		case "yaml":
			if strings.Contains(b.text, "\t") {
				t.Errorf("%v has tabs", b)
			}
		case "go", "dockerfile", "":
		default:
			t.Errorf("%v: what is %q?", b, b.syntax)
		}
	}
	for page, entries := range checks {
		for entry := range entries {
			if !used[page+"\x00"+entry] {
				t.Errorf("%s has no block that begins with %q", page, entry)
			}
		}
	}
	t.Logf("%v", counts)
}

// testNames returns the names of all tests of the module, whatever their tags.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			names[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestREADMEsAgree: the one in Chinese has the commands of the other, and each a
// link to the other.
func TestREADMEsAgree(t *testing.T) {
	pages := map[string][]string{}
	for _, b := range blocks(t) {
		pages[b.page] = append(pages[b.page], b.syntax+"\n"+b.text)
	}
	english, chinese := pages["README.md"], pages["README.zh-CN.md"]
	if len(english) < 5 || !slices.Equal(english, chinese) {
		t.Errorf("the code blocks differ:\n%q\n%q", english, chinese)
	}
	links := regexp.MustCompile(`\]\(([^)]+)\)`)
	targets := func(page string) []string {
		text, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, m := range links.FindAllStringSubmatch(string(text), -1) {
			all = append(all, strings.NewReplacer("README.zh-CN.md", "other", "README.md", "other").Replace(m[1]))
		}
		return all
	}
	if e, c := targets("README.md"), targets("README.zh-CN.md"); !slices.Contains(e, "other") || !slices.Equal(e, c) {
		t.Errorf("the links differ:\n%q\n%q", e, c)
	}
}

func TestPageBlocks(t *testing.T) {
	found := pageBlocks("p", "text\n\n    indented\n\n    more\n\n- item\n\n    of the list\n\n   ```sh\n   in it\n     deeper\n   ```\n\ntext\n\n```go\na\n\n    b\n```\n")
	var got []string
	for _, b := range found {
		got = append(got, fmt.Sprintf("%d %s %q", b.line, b.syntax, b.text))
	}
	if want := []string{`3  "indented\n\nmore\n"`, `12 sh "in it\n  deeper\n"`, `19 go "a\n\n    b\n"`}; !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
}
