package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/hjxwz123/aivory-sandbox/"

// mayImport names, for each package of the module, the other packages of the
// module that it may import. A package without a row fails the test, so that
// each new one gets its place on purpose; nil is all of them.
var mayImport = map[string][]string{
	"internal/fault":    {},
	"internal/mimetype": {},
	"internal/archtest": {},
	"internal/config":   {},

	"internal/storage":       {"internal/fault"},
	"internal/storage/local": {"internal/storage", "internal/fault"},
	"internal/storage/s3":    {"internal/storage", "internal/fault"},
	"internal/storage/oss":   {"internal/storage", "internal/fault"},
	// The suite that every bucket passes.
	"internal/storage/storagetest": {"internal/storage", "internal/fault"},

	"internal/runner":       {"internal/fault", "internal/runner/agent"},
	"internal/runner/agent": {},
	// Drivers know runners, but neither sessions nor each other.
	"internal/runner/docker":     {"internal/runner", "internal/fault"},
	"internal/runner/oci":        {"internal/runner", "internal/fault"},
	"internal/runner/runnertest": {"internal/runner", "internal/runner/agent", "internal/fault"},

	"internal/session": {"internal/runner", "internal/storage", "internal/fault"},
	// Storage for the block that clients forward; runners are the session's.
	"internal/api": {"internal/session", "internal/storage", "internal/mimetype", "internal/fault"},

	"client": {},
	// Wires everything.
	"cmd/aivory-sandbox": nil,
}

// outside names, for packages that ought to stay light, the modules from
// elsewhere that they may import; the standard library always.
var outside = map[string][]string{
	"internal/fault":        {},
	"internal/mimetype":     {},
	"internal/config":       {"github.com/docker/go-units"},
	"internal/runner":       {"golang.org/x/sys"},
	"internal/runner/agent": {},
	"internal/api":          {},
	"internal/storage":      {},
	"client":                {},
}

// only names the packages that may import a technology.
var only = map[string][]string{
	"github.com/moby/moby":                   {"internal/runner/docker"},
	"github.com/moby/profiles":               {"internal/runner/docker", "internal/runner/oci"},
	"github.com/aws":                         {"internal/storage/s3"},
	"github.com/aliyun":                      {"internal/storage/oss"},
	"github.com/prometheus":                  {"cmd/aivory-sandbox"},
	"go.opentelemetry.io":                    {"cmd/aivory-sandbox"},
	"github.com/opencontainers/runtime-spec": {"internal/runner/docker", "internal/runner/oci"},
	"github.com/google/go-containerregistry": {"internal/runner/oci"},
	"github.com/containerd/go-runc":          {"internal/runner/oci"},
	module + "internal/runner/runnertest":    {},
	module + "internal/storage/storagetest":  {},
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("cannot list packages: %v\n%s", err, stderr.Bytes())
	}
	var all []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// within tells whether an import path is path or below it.
func within(imported, path string) bool {
	return imported == path || strings.HasPrefix(imported, path+"/")
}

func TestImportDirection(t *testing.T) {
	all := packages(t)
	if len(all) < 5 {
		t.Fatalf("found %d packages only", len(all))
	}
	for _, p := range all {
		name := strings.TrimPrefix(p.ImportPath, module)
		allowed, known := mayImport[name]
		if !known {
			t.Errorf("%s has no row in this test's table: give it one", name)
			continue
		}
		for _, imported := range p.Imports {
			if inner, ok := strings.CutPrefix(imported, module); ok && allowed != nil && !slices.Contains(allowed, inner) {
				t.Errorf("%s imports %s", name, inner)
			}
			isOutside := strings.Contains(strings.SplitN(imported, "/", 2)[0], ".") && !strings.HasPrefix(imported, module)
			if modules, light := outside[name]; light && isOutside && !slices.ContainsFunc(modules, func(m string) bool { return within(imported, m) }) {
				t.Errorf("%s imports %s", name, imported)
			}
			for technology, users := range only {
				if within(imported, technology) && !slices.Contains(users, name) && name != strings.TrimPrefix(technology, module) {
					t.Errorf("%s imports %s, which only %v may", name, imported, users)
				}
			}
		}
	}
}
