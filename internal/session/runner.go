package session

import "github.com/hjxwz123/aivory-sandbox/internal/runner"

// What callers of this package need to know of runners, so that they need not
// know the package.
const (
	ReasonTimeout   = runner.ReasonTimeout
	ReasonOOM       = runner.ReasonOOM
	ReasonLost      = runner.ReasonLost
	ReasonSignal    = runner.ReasonSignal
	ReasonCancelled = runner.ReasonCancelled
)

// CheckPath reports, as fault.Invalid, a workspace path that can be refused by
// its text alone, for callers that have to say so before they ask for a session.
func CheckPath(path string, write bool) error { return runner.CheckPath(path, write) }

// ValidID tells whether id is what a session id looks like: 32 lower-case
// hexadecimal digits.
func ValidID(id string) bool { return runner.ValidSessionID(id) }
