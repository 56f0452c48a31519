package config

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDocumentation holds docs/configuration.md against the code: it lists
// every variable once, no other, and the defaults that it tells are accepted
// and are the defaults.
func TestDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(SANDBOX_[A-Z0-9_]+)` \\| (?:`(.*?)`)?(?:see below)? ?\\| ").FindAllStringSubmatch(string(page), -1) {
		name, value := row[1], row[2]
		documented = append(documented, name)
		if value == "" {
			continue
		}
		if diff := cmp.Diff(mustLoad(t), mustLoad(t, name+"="+value)); diff != "" {
			t.Errorf("the documented default %s=%s is not the default:\n%s", name, value, diff)
		}
	}
	names := Names()
	slices.Sort(names)
	slices.Sort(documented)
	if diff := cmp.Diff(names, documented); diff != "" {
		t.Errorf("variables in the code (-) and in the documentation (+):\n%s", diff)
	}
}
