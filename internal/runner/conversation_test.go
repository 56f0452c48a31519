package runner

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

// goodConversations are what an honest agent says, one for each operation.
func goodConversations() map[string][]byte {
	join := func(frames ...[]byte) []byte { return bytes.Join(frames, nil) }
	f := func(t frameType, payload string) []byte { return appendFrame(nil, t, []byte(payload)) }
	return map[string][]byte{
		"exec": join(f(frameBeat, ""), f(frameStdout, "out"), f(frameStderr, "err"),
			f(frameResult, `{"exit_code":1,"reason":"exit","wall":1,"cpu":1,"rss":1,"complete":true,"files":2}`),
			f(frameFile, `{"path":"a","size":3}`), f(frameFile, `{"path":"b","size":0}`), f(frameData, "abc"), f(frameEnd, "")),
		"write":  join(f(frameBeat, ""), f(frameResult, "{}")),
		"read":   join(f(frameResult, `{"size":3}`), f(frameData, "abc"), f(frameEnd, "")),
		"list":   join(f(frameBeat, ""), f(frameResult, "{}"), f(frameData, "[\"a\",1]\n[\"b\",2]\n"), f(frameEnd, "")),
		"reset":  join(f(frameResult, "{}")),
		"pack":   join(f(frameData, "abc"), f(frameBeat, ""), f(frameResult, `{"files":1,"examples":["x"]}`)),
		"unpack": join(f(frameBeat, ""), f(frameError, `{"kind":"archive","detail":"x"}`)),
	}
}

// FuzzConversation lets an agent say anything in answer to any operation. The
// bounds hold, every call ends, errors are of the known kinds, and the runner
// works with its next agent.
func FuzzConversation(f *testing.F) {
	ops := []string{"exec", "write", "read", "list", "reset", "pack", "unpack"}
	good := goodConversations()
	for i, op := range ops {
		f.Add(byte(i), good[op], false)
		f.Add(byte(i), good[op], true)
		f.Add(byte(i), good[op][:len(good[op])/2], true)
	}
	f.Fuzz(func(t *testing.T, op byte, said []byte, hangUp bool) {
		synctest.Test(t, func(t *testing.T) {
			hostile := func(p *peer) {
				p.greet()
				p.request()
				p.raw(said)
				if !hangUp {
					for { // silent until the service hangs up
						p.read()
					}
				}
			}
			r, _ := fakeRunner(t, hostile, hostile, tidy)
			start := time.Now()
			err := converse(t, r, ops[int(op)%len(ops)])
			if err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrBadArchive) &&
				!errors.Is(err, ErrTooLarge) && fault.KindOf(err) == fault.Internal && !isRefusal(err) {
				t.Errorf("error of no known kind: %v", err)
			}
			if took := time.Since(start); took > 2*(waking+patience) {
				t.Errorf("took %v", took)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			r.driver.(*fakeDriver).agents = []func(*peer){tidy}
			echoes(t, r, "next")
		})
	})
}

// converse does one operation and checks the bounds of what comes of it.
func converse(t *testing.T, r *Runner, op string) error {
	const limit = 5
	switch op {
	case "exec":
		x, err := r.Exec(t.Context(), execRequest("x"))
		if err != nil {
			return err
		}
		if len(x.Stdout) > 100 || len(x.Stderr) > 100 || len(x.Files) > testLimits.MaxFiles || x.ExitCode < 0 || x.ExitCode > 255 || x.Reason == "" {
			t.Errorf("out of bounds: %+v", x)
		}
		var total int64
		for _, want := range x.Files {
			content, err := x.Next()
			if err != nil {
				break
			}
			n, err := io.Copy(io.Discard, content)
			if n > want.Size || err == nil && n != want.Size {
				t.Errorf("%d bytes of a file of %d, %v", n, want.Size, err)
			}
			total += n
		}
		if total > testLimits.MaxTotalBytes {
			t.Errorf("%d bytes of artifacts", total)
		}
		return x.Close()
	case "write":
		return r.Write(t.Context(), "x", strings.NewReader("abc"), 3)
	case "read":
		body, size, err := r.Read(t.Context(), "x")
		if err != nil {
			return err
		}
		if n, err := io.Copy(io.Discard, body); n > size || err == nil && n != size {
			t.Errorf("%d bytes of a file of %d, %v", n, size, err)
		}
		return body.Close()
	case "list":
		files, err := r.List(t.Context(), limit, limit)
		if len(files) > limit {
			t.Errorf("%d files", len(files))
		}
		return err
	case "reset":
		return r.ResetInputs(t.Context())
	case "pack":
		n := 0
		_, err := r.Pack(t.Context(), writerFunc(func(p []byte) (int, error) {
			n += len(p)
			return len(p), nil
		}), limit)
		if n > limit {
			t.Errorf("%d bytes packed", n)
		}
		return err
	default:
		_, err := r.Unpack(t.Context(), strings.NewReader("abc"))
		return err
	}
}
