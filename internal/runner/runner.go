package runner

import (
	"context"
	"io"
	"time"
)

// Options are the same for all runners of a service.
type Options struct {
	// Preload are modules that an idle agent imports ahead of need.
	Preload []string
	// CPUs is the runner's CPU quota; numerical libraries start as many threads.
	CPUs float64
	// DialTimeout bounds starting an agent, its greeting included.
	DialTimeout time.Duration
	// Logf, where set, gets what an operator may want to know of an agent that
	// was lost; it is never given output of a program.
	Logf func(format string, args ...any)
}

// Runner is a live runner: the portable type over a Driver and one handle. It
// dials when it is first needed and again after the agent was lost. Its methods
// serve one call at a time: the caller orders them (a session has a lock).
//
// Paths are workspace paths: "a/b" and "/workspace/a/b" name the same file.
// A path that leaves /workspace by its text or by a symlink is fault.Invalid, a
// missing or non-regular file fault.NotFound, a directory or file in the way
// fault.Invalid. An agent that is lost during a file operation is dialled again
// and the operation tried once more where it had no body; else it is ErrLost.
// A runner that no longer exists is ErrNotFound.
type Runner struct{}

// New returns a Runner for a driver's handle. It does not dial.
func New(d Driver, id string, opts Options) *Runner { panic("todo") }

// Open dials unless an agent is connected, makes /workspace/{uploads,outputs,
// skills} where they are missing, and checks that the workspace can be written.
func (r *Runner) Open(ctx context.Context) error { panic("todo") }

// Exec runs a program and returns when it has ended, its output is in and its
// artifacts are known. A context that ends ends the run: the answer is its
// cause. A run that destroys its agent is answered with ReasonLost.
func (r *Runner) Exec(ctx context.Context, req ExecRequest) (*Execution, error) { panic("todo") }

// Write stores body, exactly size bytes, at path. Parents are made, a symlink
// inside the workspace is followed, a hard link broken. On any error the file
// is as it was.
func (r *Runner) Write(ctx context.Context, path string, body io.Reader, size int64) error {
	panic("todo")
}

// Read opens a regular file. The reader gives exactly size bytes; the caller
// closes it, and the Runner serves nothing else until then.
func (r *Runner) Read(ctx context.Context, path string) (body io.ReadCloser, size int64, err error) {
	panic("todo")
}

// List returns the regular files of the workspace: at most limit, in path
// order, with at most depth path components.
func (r *Runner) List(ctx context.Context, limit, depth int) ([]FileInfo, error) { panic("todo") }

// ResetInputs empties /workspace/uploads and /workspace/skills.
func (r *Runner) ResetInputs(ctx context.Context) error { panic("todo") }

// PackStats says what Pack left out and why.
type PackStats struct {
	Files, Dirs int
	Bytes       int64    // of regular files
	Left        int      // entries that could not be carried
	Examples    []string // a few of them, quoted, with the reason
}

// Pack writes the workspace, but for the top-level uploads and skills, to w as
// a gzip-compressed tar whose members begin with "./". What cannot be carried
// is left out and counted. It fails once more than maxBytes compressed bytes
// have come, with ErrTooLarge.
func (r *Runner) Pack(ctx context.Context, w io.Writer, maxBytes int64) (PackStats, error) {
	panic("todo")
}

// Unpack reads a gzip-compressed tar from body into the workspace, then empties
// uploads and skills. Members that would leave the workspace, devices and the
// like are skipped and counted as Left. An archive that is broken half-way
// leaves what came before it, and an error.
func (r *Runner) Unpack(ctx context.Context, body io.Reader) (PackStats, error) { panic("todo") }

// Close ends the agent's stream. The runner lives on.
func (r *Runner) Close() error { panic("todo") }
