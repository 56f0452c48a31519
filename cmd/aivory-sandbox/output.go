package main

import (
	"errors"
	"fmt"
	"io"
	"syscall"
)

// exitBrokenPipe is what a shell says of a program that SIGPIPE ended.
const exitBrokenPipe = exitCode(128 + syscall.SIGPIPE)

// output is a standard stream.
type output struct {
	w    io.Writer
	open bool // the last line of what was written has no end
}

// Write fails with exitBrokenPipe where nobody reads any more: head, say, that has
// had enough. Nobody wants to hear of that.
func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if n > 0 {
		o.open = p[n-1] != '\n'
	}
	if errors.Is(err, syscall.EPIPE) {
		err = fmt.Errorf("%w: %w", exitBrokenPipe, err)
	}
	return n, err
}

// say writes a message of this program's own, on a line of its own.
func (i *invocation) say(format string, args ...any) {
	start := ""
	if i.stderr.open {
		start = "\n"
	}
	fmt.Fprintf(i.stderr, start+"aivory-sandbox: "+format+"\n", args...)
}
