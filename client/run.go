package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Run is a program to be run.
type Run struct {
	Code string
	// Timeout is the longest that it may take; 0 is the service's default.
	Timeout time.Duration
	// Stdout and Stderr, where one is not nil, are written to as the program prints.
	// An error of theirs ends the run.
	Stdout, Stderr io.Writer
}

// Result is what came of a run. A program that fails is no error: see ExitCode.
type Result struct {
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	ExitCode int    `json:"exit_code"`
	Files    []File `json:"files"`
	// Reason is "exit", "signal", "timeout", "oom" or "cancelled"; empty from an
	// older service, as is what follows.
	Reason string `json:"reason"`
	// Truncated tells that stdout or stderr was cut.
	Truncated bool `json:"truncated"`
	// SkippedFiles counts files that are left out for a limit.
	SkippedFiles int   `json:"skipped_files"`
	Usage        Usage `json:"usage"`
}

// Usage is what a run cost.
type Usage struct {
	Wall       float64 `json:"wall_seconds"`
	CPU        float64 `json:"cpu_seconds"`
	PeakMemory int64   `json:"peak_memory_bytes"`
}

// File is a file below /workspace/outputs that a run made or changed.
type File struct {
	Name     string `json:"name"` // without directories
	MimeType string `json:"mime_type"`
	Data     []byte `json:"data_base64"`
	// Path is relative to /workspace/outputs. It is known of runs that were
	// followed.
	Path string `json:"-"`
}

// Exec runs a program and returns when it has ended. A ctx that ends ends the run,
// at once; Cancel lets a program end in order.
func (s *Session) Exec(ctx context.Context, r Run) (result *Result, err error) {
	body := map[string]any{"code": r.Code}
	if r.Timeout > 0 {
		body["timeout_ms"] = max(r.Timeout.Milliseconds(), 1)
	}
	follow := r.Stdout != nil || r.Stderr != nil
	err = s.do(ctx, nil, func(id string) error {
		body["session_id"] = id
		if follow {
			result, err = s.follow(ctx, body, r)
			return s.findLost(ctx, id, err)
		}
		result = new(Result)
		return markLost(s.client.call(ctx, http.MethodPost, "/exec", body, result))
	})
	if err != nil {
		if follow && errors.Is(err, ErrNotFound) && !errors.Is(err, ErrSessionLost) {
			err = fmt.Errorf("cannot follow a run: %w: %w", ErrUnsupported, err)
		}
		return nil, err
	}
	return result, nil
}

// Cancel interrupts the run that the session has in hand, and tells whether there
// was one. Its Exec returns with the reason "cancelled".
func (s *Session) Cancel(ctx context.Context) (bool, error) {
	var done struct {
		Cancelled bool `json:"cancelled"`
	}
	err := s.client.call(ctx, http.MethodPost, "/exec/cancel", map[string]any{"session_id": s.ID()}, &done)
	return done.Cancelled, markLost(err)
}

// follow reads the events of a run.
func (s *Session) follow(ctx context.Context, body map[string]any, r Run) (*Result, error) {
	text, err := encode(body)
	if err != nil {
		return nil, err
	}
	resp, err := s.client.send(ctx, http.MethodPost, "/exec/stream", bytes.NewReader(text), int64(len(text)))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, readError(resp)
	}
	defer resp.Body.Close()
	in := bufio.NewReaderSize(resp.Body, 64<<10)
	var paths []string
	for {
		name, err := nextEvent(in)
		if err != nil {
			return nil, brokeOff(ctx, err)
		}
		// Data follows, on one line, and is read as it comes.
		data := json.NewDecoder(&lineReader{in: in})
		switch name {
		case "stdout", "stderr":
			var v struct{ Text string }
			if err := data.Decode(&v); err != nil {
				return nil, fmt.Errorf("cannot read an event: %w", err)
			}
			to := r.Stdout
			if name == "stderr" {
				to = r.Stderr
			}
			if to != nil {
				if _, err := io.WriteString(to, v.Text); err != nil {
					return nil, fmt.Errorf("cannot pass on output: %w", err)
				}
			}
		case "artifact":
			var v struct{ Path string }
			if err := data.Decode(&v); err != nil {
				return nil, fmt.Errorf("cannot read an event: %w", err)
			}
			paths = append(paths, v.Path)
		case "result":
			result := new(Result)
			if err := data.Decode(result); err != nil {
				return nil, brokeOff(ctx, err)
			}
			for i := range min(len(paths), len(result.Files)) {
				result.Files[i].Path = paths[i]
			}
			return result, nil
		case "error":
			e := &Error{RequestID: resp.Header.Get("X-Request-Id")}
			if err := data.Decode(e); err != nil {
				return nil, fmt.Errorf("cannot read an event: %w", err)
			}
			return nil, e
		}
		// What is left of the line, also of an event that is not known.
		if err := skipLine(in); err != nil {
			return nil, brokeOff(ctx, err)
		}
	}
}

// brokeOff says that an answer did not come to its end, by the caller's doing
// where ctx has ended.
func brokeOff(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("the answer broke off: %w", err)
}

// nextEvent returns the name of the next event whose data comes next.
func nextEvent(in *bufio.Reader) (name string, err error) {
	for {
		prefix, err := in.Peek(6)
		if err != nil && len(prefix) == 0 {
			return "", noEOF(err)
		}
		if string(prefix) == "data: " {
			_, _ = in.Discard(len(prefix))
			return name, nil
		}
		line, err := in.ReadSlice('\n') // comments and names are short
		if err != nil {
			return "", noEOF(err)
		}
		if rest, ok := strings.CutPrefix(string(line), "event: "); ok {
			name = strings.TrimSuffix(rest, "\n")
		}
	}
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// lineReader reads up to the end of a line, which it leaves.
type lineReader struct{ in *bufio.Reader }

func (l *lineReader) Read(p []byte) (int, error) {
	if _, err := l.in.Peek(1); err != nil {
		return 0, noEOF(err)
	}
	buffered, _ := l.in.Peek(min(l.in.Buffered(), max(len(p), 1)))
	if i := bytes.IndexByte(buffered, '\n'); i >= 0 {
		if i == 0 {
			return 0, io.EOF
		}
		buffered = buffered[:i]
	}
	return l.in.Read(p[:min(len(p), len(buffered))])
}

func skipLine(in *bufio.Reader) error {
	for {
		_, err := in.ReadSlice('\n')
		if err == nil {
			return nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return noEOF(err)
		}
	}
}
