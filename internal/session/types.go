package session

import (
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// CreateRequest asks for a session.
type CreateRequest struct {
	// IdleTTL in seconds: nil or 0 is the default, negative is 1 second, more
	// than the cap is the cap.
	IdleTTL *int64
	// ArchiveKey is dropped silently unless it matches [A-Za-z0-9_-]{1,128}.
	ArchiveKey string
	// Storage is nil where the client forwarded no block.
	Storage *storage.Config
}

// DeleteRequest releases a session.
type DeleteRequest struct {
	Discard    bool
	ArchiveKey string          // counts with Discard alone
	Storage    *storage.Config // ineffective or nil: the one remembered at creation
}

// ExecRequest runs a program.
type ExecRequest struct {
	Code []byte
	// Timeout is final: the caller has applied default, minimum and cap.
	Timeout time.Duration
	// Output, where not nil, is told what the program writes while it does: see
	// runner.ExecRequest.
	Output func(stderr bool, p []byte)
}

// Health is what /healthz tells.
type Health struct {
	OK         bool
	Version    string // engine version, empty when it cannot be reached
	Image      string
	ImageReady bool
	Driver     string
	Runtime    string
}

// Sentences that clients of the older service know. Errors carry them as
// fault.Error details.
const (
	DetailInvalidID     = "invalid session_id"               // fault.Invalid
	DetailNotFound      = "session not found or not running" // fault.NotFound
	DetailBusy          = "session is busy"                  // fault.Busy: the session's lock
	DetailExecQueue     = "exec queue is full"               // fault.Busy: global slots
	DetailCreateQueue   = "session create queue is full"     // fault.Busy
	DetailMaxSessions   = "too many active sessions"         // fault.Busy
	DetailFileNotFound  = "file not found"                   // fault.NotFound
	DetailPathOutside   = "path must be under /workspace"    // fault.Invalid: by its text
	DetailPathResolves  = "path resolves outside /workspace" // fault.Invalid: by a symlink
	DetailRunnerFailure = "sandbox runner failed"            // fault.Internal
)

// Execution is a finished run: output and exit code are complete, artifacts are
// read in order with Next. The session stays locked until Close.
type Execution struct {
	*runner.Execution
	release func() // nil in tests of other packages
}

// Close lets the next call have the session. It is idempotent and safe to call
// before all artifacts were read.
func (x *Execution) Close() error {
	err := x.Execution.Close()
	if x.release != nil {
		x.release()
	}
	return err
}

// FileInfo is one entry of a listing.
type FileInfo = runner.FileInfo
