package runner

import (
	"context"
	"io"
)

// PackStats says what Pack or Unpack carried and what it left out.
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
