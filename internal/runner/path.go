package runner

import (
	"fmt"
	"path"
	"strings"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

// Sentences about paths and files that clients of the older service know.
const (
	DetailPathOutside  = "path must be under /workspace"
	DetailPathResolves = "path resolves outside /workspace"
	DetailFileNotFound = "file not found"
	DetailNotAFile     = "path does not name a file"
	DetailNoSpace      = "no space left in /workspace"
)

const workspace = "/workspace"

// CheckPath reports, as fault.Invalid, a path that can be refused by its text
// alone: empty, with a NUL, or outside /workspace. Symlinks are judged in the
// runner. A path to be written must not end in a slash or be the workspace.
func CheckPath(p string, write bool) error {
	if p == "" || strings.ContainsRune(p, 0) {
		return fault.New(fault.Invalid, "path must be a non-empty string without NUL")
	}
	full := p
	if strings.HasPrefix(p, "//") {
		// Two leading slashes are a root of their own in POSIX.
		return fault.New(fault.Invalid, DetailPathOutside)
	}
	if !strings.HasPrefix(p, "/") {
		full = workspace + "/" + p
	}
	full = path.Clean(full)
	if full != workspace && !strings.HasPrefix(full, workspace+"/") {
		return fault.New(fault.Invalid, DetailPathOutside)
	}
	if write && (full == workspace || strings.HasSuffix(p, "/") || strings.HasSuffix(p, "/.") || p == ".") {
		return fault.New(fault.Invalid, DetailNotAFile)
	}
	return nil
}

// refusal is an agent's error. Its kind is one of a few words; what else it
// says is for the log.
type refusal struct {
	Kind   string `json:"kind"`
	Detail string `json:"detail"`
}

func (r refusal) Error() string { return "agent refused: " + r.Kind + ": " + r.Detail }

func (r refusal) err() error {
	switch r.Kind {
	case "outside":
		return fault.Wrap(fault.Invalid, DetailPathResolves, r)
	case "path":
		return fault.Wrap(fault.Invalid, DetailNotAFile, r)
	case "notfound":
		return fault.Wrap(fault.NotFound, DetailFileNotFound, r)
	case "archive":
		return fmt.Errorf("%w: %w", ErrBadArchive, r)
	case "nospace":
		return fault.Wrap(fault.Internal, DetailNoSpace, r)
	}
	return fault.Wrap(fault.Internal, "workspace operation failed", r)
}
