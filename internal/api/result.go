package api

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"path"
	"strconv"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/mimetype"
	"github.com/hjxwz123/aivory-sandbox/internal/session"
)

// output is what a program wrote, with what the service has to add. They may
// hold any bytes.
type output struct {
	stdout, stderr []byte
	// What was added at the end of each.
	outNote, errNote []byte
}

// output composes stdout and stderr.
func (a *api) output(x *session.Execution, timeout time.Duration) output {
	limit := a.cfg.MaxOutput / 1024
	var o output
	// A character that the cut went through is left out whole.
	stdout, stderr := x.Stdout, x.Stderr
	if x.StdoutTruncated {
		stdout = stdout[:completeRunes(stdout)]
		o.outNote = fmt.Appendf(nil, "\n... [truncated, stdout exceeded %dKB]", limit)
	}
	if x.StderrTruncated {
		stderr = stderr[:completeRunes(stderr)]
		o.errNote = fmt.Appendf(nil, "\n... [truncated, stderr exceeded %dKB]", limit)
	}
	switch x.Reason {
	case session.ReasonTimeout:
		o.errNote = fmt.Appendf(o.errNote, "\n[sandbox] execution exceeded %.3fs and was killed", timeout.Seconds())
	case session.ReasonCancelled:
		o.errNote = append(o.errNote, "\n[sandbox] execution was cancelled"...)
	case session.ReasonOOM:
		o.errNote = append(o.errNote, "\n[sandbox] out of memory: the run needed more memory than the sandbox has"...)
	case session.ReasonLost:
		o.errNote = append(o.errNote, "\n[sandbox] the run lost its supervisor and was ended"...)
	default:
		// The program went on, or ended in its own words, which seldom name the cause.
		if x.Usage.OOMKills > 0 {
			o.errNote = fmt.Appendf(o.errNote, "\n[sandbox] out of memory: %d process(es) of the run were killed", x.Usage.OOMKills)
		}
	}
	var lines []byte // about artifacts
	if x.Skipped > 0 {
		lines = fmt.Appendf(lines, "\n[sandbox] skipped %d output file(s) because artifact limits are %d files, %d bytes per file, %d bytes total",
			x.Skipped, a.cfg.MaxArtifacts, a.cfg.MaxArtifactBytes, a.cfg.MaxArtifactTotal)
	}
	if x.Unreadable > 0 {
		lines = fmt.Appendf(lines, "\n[sandbox] could not read %d output file(s)", x.Unreadable)
	}
	if x.Incomplete {
		lines = append(lines, "\n[sandbox] there are more files under outputs than could be looked at"...)
	}
	o.errNote = append(o.errNote, lines...)
	o.stdout = append(bytes.Clone(stdout), o.outNote...)
	o.stderr = append(bytes.Clone(stderr), o.errNote...)
	if lines != nil {
		o.stderr = bytes.TrimSpace(o.stderr) // as clients know it
	}
	return o
}

// result is the answer to a run, as JSON of known length whose artifacts are
// encoded while it is written.
type result struct {
	head, tail []byte
	files      []fileHead
	next       func() (io.Reader, error)
	length     int64
}

// fileHead is an artifact's JSON up to its content, of size bytes.
type fileHead struct {
	text []byte
	size int64
}

const fileEnd = `"}`

// newResult returns the answer to a run. Next gives its artifacts one after the
// other.
func newResult(x *session.Execution, next func() (io.Reader, error), o output) *result {
	r := &result{next: next}
	r.head = append(r.head, `{"stdout":"`...)
	r.head = appendEscaped(r.head, o.stdout)
	r.head = append(r.head, `","stderr":"`...)
	r.head = appendEscaped(r.head, o.stderr)
	r.head = append(r.head, `","exit_code":`...)
	r.head = strconv.AppendInt(r.head, int64(x.ExitCode), 10)
	r.head = append(r.head, `,"files":[`...)
	r.length = int64(len(r.head))
	for i, f := range x.Files {
		h := fileHead{appendFileHead(nil, i, f.Path), f.Size}
		r.files = append(r.files, h)
		r.length += int64(len(h.text)) + encodedLen(h.size) + int64(len(fileEnd))
	}
	r.tail = appendAdded(append(r.tail, ']'), x)
	r.tail = append(r.tail, '}')
	r.length += int64(len(r.tail))
	return r
}

// appendAdded appends the fields that the older service did not have.
func appendAdded(b []byte, x *session.Execution) []byte {
	reason := x.Reason
	if reason == session.ReasonLost {
		reason = session.ReasonSignal // what it looks like from outside: killed
	}
	b = fmt.Appendf(b, `,"reason":"%s","truncated":%t,"skipped_files":%d`, reason, x.StdoutTruncated || x.StderrTruncated, x.Skipped)
	if x.Reason == session.ReasonLost {
		return b // who would have measured it is gone
	}
	seconds := func(d time.Duration) string { return strconv.FormatFloat(inSeconds(d), 'f', -1, 64) }
	return fmt.Appendf(b, `,"usage":{"wall_seconds":%s,"cpu_seconds":%s,"peak_memory_bytes":%d}`, seconds(x.Usage.Wall), seconds(x.Usage.CPU), x.Usage.MaxRSS)
}

// write writes the whole. Out keeps an error of its own to its Flush.
func (r *result) write(out *bufio.Writer) error {
	_, _ = out.Write(r.head)
	for i, f := range r.files {
		content, err := r.next()
		if err != nil {
			return fmt.Errorf("cannot read artifact %d of %d: %w", i+1, len(r.files), err)
		}
		_, _ = out.Write(f.text)
		if err := encodeBase64(out, content, f.size); err != nil {
			return fmt.Errorf("cannot send artifact %d of %d: %w", i+1, len(r.files), err)
		}
		_, _ = out.WriteString(fileEnd)
	}
	_, _ = out.Write(r.tail)
	return nil
}

// appendFileHead appends the JSON of artifact number i up to its content.
func appendFileHead(b []byte, i int, name string) []byte {
	name = path.Base(name)
	if i > 0 {
		b = append(b, ',')
	}
	b = append(b, `{"name":"`...)
	b = appendEscaped(b, []byte(name))
	b = append(b, `","mime_type":"`...)
	b = append(b, mimetype.ByName(name)...)
	return append(b, `","data_base64":"`...)
}

// encodedLen is the length of base64 of n bytes.
func encodedLen(n int64) int64 { return (n + 2) / 3 * 4 }
