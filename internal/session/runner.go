package session

import "github.com/hjxwz123/aivory-sandbox/internal/runner"

// What callers of this package need to know of runners, so that they need not
// know the package.
const (
	ReasonTimeout = runner.ReasonTimeout
	ReasonOOM     = runner.ReasonOOM
	ReasonLost    = runner.ReasonLost
)

// CheckPath reports, as fault.Invalid, a workspace path that can be refused by
// its text alone, for callers that have to say so before they ask for a session.
func CheckPath(path string, write bool) error { return runner.CheckPath(path, write) }
