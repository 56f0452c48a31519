package runner

import (
	"io"
	"time"
)

// ExecRequest is one run of a program.
type ExecRequest struct {
	Code    []byte        // source, any bytes
	Timeout time.Duration // wall clock; the program gets SIGTERM then, SIGKILL two seconds later
	// MaxOutputBytes bounds each of stdout and stderr; the rest is read and
	// thrown away, the program is not held up.
	MaxOutputBytes int
	Artifacts      ArtifactLimits
	// Interrupt, where not nil, is closed to interrupt the program: SIGINT, two
	// seconds later SIGTERM, after two more SIGKILL. The answer then has
	// ReasonCancelled, and all else as usual.
	Interrupt <-chan struct{}
	// Output, where not nil, is told what the program writes as it comes in, within
	// MaxOutputBytes: all that will be in the Execution. It is not called any more
	// once Exec has returned, and must not wait for anything, or the agent is taken
	// for lost. The bytes may be kept, but not changed.
	Output func(stderr bool, p []byte)
}

// ArtifactLimits bound what one run gives back from /workspace/outputs.
type ArtifactLimits struct {
	MaxFiles      int
	MaxFileBytes  int64
	MaxTotalBytes int64
	MaxDuration   time.Duration // for looking and opening, all files together
	FileTimeout   time.Duration // for each file's bytes to come, on top of a second per MiB
}

// Reason says how a run ended.
type Reason string

// The ways for a run to end.
const (
	ReasonExit      Reason = "exit"      // by itself, ExitCode is its own
	ReasonSignal    Reason = "signal"    // by a signal, ExitCode is 128 + its number
	ReasonTimeout   Reason = "timeout"   // killed at its timeout, ExitCode is 124
	ReasonOOM       Reason = "oom"       // out of the runner's memory, ExitCode is 137
	ReasonLost      Reason = "lost"      // it took its supervisor down, ExitCode is 137
	ReasonCancelled Reason = "cancelled" // interrupted; ExitCode is its own, or 130 where it had to be killed
)

// Usage is what a run cost.
type Usage struct {
	Wall     time.Duration
	CPU      time.Duration // user and system, program and waited-for children
	MaxRSS   int64         // bytes, of the largest process
	OOMKills int64         // processes that the kernel killed for want of memory
	Collect  time.Duration // looking for artifacts
}

// Execution is the answer to a run. Output and exit code are complete when Exec
// returns; artifacts are still in the runner and are read in order with Next.
// The caller calls Close, which is cheap when all artifacts were read; until
// then the Runner serves nothing else. Not safe for concurrent use.
type Execution struct {
	Stdout, Stderr                   []byte // raw bytes, at most MaxOutputBytes each
	StdoutTruncated, StderrTruncated bool
	ExitCode                         int
	Reason                           Reason
	Usage                            Usage
	// Skipped counts regular files that were left out for a limit, Unreadable
	// those that could not be read.
	Skipped, Unreadable int
	// Incomplete means that /workspace/outputs holds more than could be looked
	// at in the time and number allowed.
	Incomplete bool
	// Files are the artifacts, in path order.
	Files []Artifact

	source artifactSource
}

// Artifact is a file below /workspace/outputs that a run made or changed.
type Artifact struct {
	Path string `json:"path"` // relative to /workspace/outputs, as valid UTF-8
	Size int64  `json:"size"` // bytes
}

// artifactSource is where an Execution reads its artifacts from.
type artifactSource interface {
	// next returns a reader of exactly the next artifact's bytes.
	next() (io.Reader, error)
	close() error
}

// Next returns the content of the next artifact in Files, exactly Size bytes;
// what was not read of the one before is skipped. io.EOF follows the last. Any
// other error ends the sequence.
func (x *Execution) Next() (io.Reader, error) {
	if x.source == nil {
		return nil, io.EOF
	}
	return x.source.next()
}

// Close releases the runner. It is idempotent.
func (x *Execution) Close() error {
	if x.source == nil {
		return nil
	}
	s := x.source
	x.source = nil
	return s.close()
}

// FileInfo is one entry of a listing.
type FileInfo struct {
	Path string `json:"path"` // relative to /workspace, as valid UTF-8
	Size int64  `json:"size"` // bytes
}
