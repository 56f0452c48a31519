package archtest

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/hjxwz123/aivory-sandbox/"

// mayImport names, for each package of the module, the other packages of the
// module that it may import. A package without a row fails the test, so that
// each new one gets its place on purpose; nil is all of them.
var mayImport = map[string][]string{
	"internal/fault":    {},
	"internal/observe":  {},
	"internal/mimetype": {},
	"internal/archtest": {},
	"internal/config":   {},

	"internal/storage":       {"internal/fault", "internal/observe"},
	"internal/storage/local": {"internal/storage", "internal/fault"},
	"internal/storage/s3":    {"internal/storage", "internal/storage/upload", "internal/storage/wire", "internal/fault"},
	"internal/storage/oss":   {"internal/storage", "internal/storage/upload", "internal/storage/wire", "internal/fault"},
	// What drivers share.
	"internal/storage/upload": {"internal/storage"},
	"internal/storage/wire":   {},
	// Servers to test against.
	"internal/storage/oss/osstest": {"internal/storage", "internal/fault"},
	"internal/storage/s3/s3test":   {"internal/storage", "internal/fault"},
	// The suite that every bucket passes.
	"internal/storage/storagetest": {"internal/storage", "internal/fault"},

	"internal/runner":       {"internal/fault", "internal/runner/agent"},
	"internal/runner/agent": {},
	// Drivers know runners, but neither sessions nor each other.
	"internal/runner/docker":     {"internal/runner", "internal/fault"},
	"internal/runner/oci":        {"internal/runner", "internal/runner/oci/image", "internal/fault"},
	"internal/runner/oci/image":  {},
	"internal/runner/runnertest": {"internal/runner", "internal/runner/agent", "internal/fault"},

	"internal/session": {"internal/runner", "internal/storage", "internal/session/spool", "internal/session/seal", "internal/observe", "internal/fault"},
	// What sessions keep across restarts, and the encryption of it.
	"internal/session/filestore": {"internal/session", "internal/session/seal", "internal/runner", "internal/storage", "internal/fault"},
	"internal/session/spool":     {"internal/session/seal", "internal/storage", "internal/fault"},
	"internal/session/seal":      {},
	// Storage for the block that clients forward; runners are the session's.
	"internal/api": {"internal/session", "internal/storage", "internal/mimetype", "internal/observe", "internal/fault"},
	// Holds answers against the description of the interface.
	"internal/api/apitest": {},

	// What becomes of what is observed.
	"internal/observe/metrics": {"internal/observe"},
	"internal/observe/tracing": {"internal/observe"},

	// What scripts/release.sh needs.
	"internal/tools/release": {},

	"client": {},
	// Puts the client where requests of any caller are, for tests.
	"internal/clientfront":        {"client"},
	"internal/clientfront/listen": {"internal/clientfront"},
	// Wires everything.
	"cmd/aivory-sandbox": nil,
}

// outside names, for packages that ought to stay light, the modules from
// elsewhere that they may import; the standard library always.
var outside = map[string][]string{
	"internal/fault":        {},
	"internal/observe":      {},
	"internal/mimetype":     {},
	"internal/config":       {"github.com/docker/go-units"},
	"internal/runner":       {"golang.org/x/sys"},
	"internal/runner/agent": {},
	"internal/api":          {"github.com/segmentio/asm"},
	"internal/storage":      {},
	"client":                {},
	"internal/clientfront":  {},
}

// only names the packages that may import a technology.
var only = map[string][]string{
	"github.com/moby/moby":                   {"internal/runner/docker"},
	"github.com/moby/profiles":               {"internal/runner/docker", "internal/runner/oci"},
	"github.com/aws":                         {"internal/storage/s3", "internal/storage/s3/s3test"},
	"github.com/aliyun":                      {"internal/storage/oss"},
	"github.com/prometheus":                  {"internal/observe/metrics"},
	"go.opentelemetry.io":                    {"internal/observe/tracing"},
	"github.com/opencontainers/runtime-spec": {"internal/runner/oci"},
	"github.com/google/go-containerregistry": {"internal/runner/oci/image", "internal/tools/release"},
	"github.com/CycloneDX":                   {"internal/tools/release"},
	"github.com/containerd/go-runc":          {"internal/runner/oci"},
	"github.com/getkin":                      {"internal/api/apitest"},
	module + "internal/api/apitest":          {},
	module + "internal/runner/runnertest":    {},
	module + "internal/storage/storagetest":  {},
	module + "internal/clientfront":          {"internal/clientfront/listen"},
}

// imports returns what each package of the module imports outside its tests,
// whatever the build tags. It reads the files itself, so that a cached result
// of this test is of the same files.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	const root = "../.."
	found := make(map[string][]string)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata") {
			return fs.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		dir = filepath.ToSlash(dir)
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if !slices.Contains(found[dir], imported) {
				found[dir] = append(found[dir], imported)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// within tells whether an import path is path or below it.
func within(imported, path string) bool {
	return imported == path || strings.HasPrefix(imported, path+"/")
}

func TestImportDirection(t *testing.T) {
	all := imports(t)
	if len(all) < 5 {
		t.Fatalf("found %d packages only", len(all))
	}
	for name, imported := range all {
		allowed, known := mayImport[name]
		if !known {
			t.Errorf("%s has no row in this test's table: give it one", name)
			continue
		}
		for _, path := range imported {
			inner, isOurs := strings.CutPrefix(path, module)
			if isOurs && allowed != nil && !slices.Contains(allowed, inner) {
				t.Errorf("%s imports %s", name, inner)
			}
			host, _, _ := strings.Cut(path, "/")
			if modules, light := outside[name]; light && !isOurs && strings.Contains(host, ".") &&
				!slices.ContainsFunc(modules, func(m string) bool { return within(path, m) }) {
				t.Errorf("%s imports %s", name, path)
			}
			for technology, users := range only {
				if within(path, technology) && !slices.Contains(users, name) {
					t.Errorf("%s imports %s, which only %q may", name, path, users)
				}
			}
		}
	}
}
