package runner

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

// once is an agent that dies of its first request and serves ops ever after.
func once(ops map[string]func(*peer, request, []byte)) []func(*peer) {
	return []func(*peer){func(p *peer) {
		p.greet()
		p.expect(frameRequest)
	}, serve(ops)}
}

func TestWriteAtFrameEdges(t *testing.T) {
	var got []byte
	r, _ := fakeRunner(t, serve(map[string]func(*peer, request, []byte){"write": func(p *peer, req request, body []byte) {
		if req.Path != "a/b" {
			t.Errorf("path %q", req.Path)
		}
		got = body
		p.send(frameBeat, "")
		p.send(frameResult, "{}")
	}}))
	for _, n := range []int{0, 1, maxFrame - 1, maxFrame, maxFrame + 1, 2*maxFrame - 1, 2 * maxFrame, 2*maxFrame + 1} {
		content := bytes.Repeat([]byte("0123456789"), n/10+1)[:n]
		for _, body := range []io.Reader{bytes.NewReader(content), iotest.HalfReader(bytes.NewReader(content)), iotest.DataErrReader(bytes.NewReader(content))} {
			if err := r.Write(t.Context(), "a/b", body, int64(n)); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, content) {
				t.Errorf("%d bytes arrived as %d", n, len(got))
			}
		}
	}
}

func TestWriteBrokenBody(t *testing.T) {
	ok := serve(map[string]func(*peer, request, []byte){"write": func(p *peer, _ request, _ []byte) { p.send(frameResult, "{}") }})
	r, d := fakeRunner(t, ok)
	for i, body := range []io.Reader{strings.NewReader("short"), iotest.ErrReader(errGone), iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("123456")))} {
		if err := r.Write(t.Context(), "x", body, 6); err == nil || errors.Is(err, ErrLost) && i > 0 {
			t.Errorf("body %d: %v", i, err)
		}
		if err := r.Write(t.Context(), "x", strings.NewReader("whole"), 5); err != nil {
			t.Error(err)
		}
	}
	if d.dials != 4 {
		t.Errorf("dialled %d times", d.dials)
	}
}

func TestRetry(t *testing.T) {
	ops := map[string]func(*peer, request, []byte){
		"write": func(p *peer, _ request, body []byte) {
			if string(body) != "body" {
				t.Errorf("written %q", body)
			}
			p.send(frameResult, "{}")
		},
		"read": func(p *peer, _ request, _ []byte) {
			p.send(frameResult, `{"size":1}`)
			p.send(frameData, "x")
			p.send(frameEnd, "")
		},
		"list": func(p *peer, _ request, _ []byte) {
			p.send(frameResult, `{}`)
			p.send(frameData, "[\"a\",1]\n")
			p.send(frameEnd, "")
		},
		"reset": func(p *peer, _ request, _ []byte) { p.send(frameResult, "{}") },
	}
	for name, op := range map[string]func(r *Runner) error{
		"write": func(r *Runner) error { return r.Write(t.Context(), "x", strings.NewReader("body"), 4) },
		"read": func(r *Runner) error {
			body, size, err := r.Read(t.Context(), "x")
			if err != nil {
				return err
			}
			if b, err := io.ReadAll(body); size != 1 || string(b) != "x" || err != nil {
				t.Errorf("read %d, %q, %v", size, b, err)
			}
			return body.Close()
		},
		"list": func(r *Runner) error {
			files, err := r.List(t.Context(), 5, 5)
			if err == nil && (len(files) != 1 || files[0] != FileInfo{"a", 1}) {
				t.Errorf("listed %v", files)
			}
			return err
		},
		"reset": func(r *Runner) error { return r.ResetInputs(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			r, d := fakeRunner(t, once(ops)...)
			if err := op(r); err != nil {
				t.Error(err)
			}
			if err := op(r); err != nil {
				t.Error(err)
			}
			if d.dials != 2 {
				t.Errorf("dialled %d times", d.dials)
			}
			r, d = fakeRunner(t, func(p *peer) {
				p.greet()
				p.expect(frameRequest)
			})
			wantErr(t, op(r), ErrLost)
			if d.dials != 2 {
				t.Errorf("dialled %d times", d.dials)
			}
			d.err = ErrNotFound
			wantErr(t, op(r), ErrNotFound)
		})
	}
	t.Run("body that cannot be read twice", func(t *testing.T) {
		r, d := fakeRunner(t, once(ops)...)
		wantErr(t, r.Write(t.Context(), "x", io.MultiReader(strings.NewReader("body")), 4), ErrLost)
		if err := r.Write(t.Context(), "x", io.MultiReader(strings.NewReader("body")), 4); err != nil {
			t.Error(err)
		}
		if d.dials != 2 {
			t.Errorf("dialled %d times", d.dials)
		}
	})
}

// TestRefusals: an agent's refusals become classified errors with sentences of
// ours, and the agent stays.
func TestRefusals(t *testing.T) {
	kind := ""
	r, d := fakeRunner(t, serve(map[string]func(*peer, request, []byte){"read": func(p *peer, _ request, _ []byte) {
		p.json(frameError, refusal{Kind: kind, Detail: "/workspace/secret"})
	}}))
	for _, c := range []struct {
		kind   string
		want   fault.Kind
		detail string
	}{
		{"outside", fault.Invalid, DetailPathResolves},
		{"path", fault.Invalid, DetailNotAFile},
		{"notfound", fault.NotFound, DetailFileNotFound},
		{"nospace", fault.Internal, DetailNoSpace},
		{"io", fault.Internal, "workspace operation failed"},
		{"what is this", fault.Internal, "workspace operation failed"},
	} {
		kind = c.kind
		_, _, err := r.Read(t.Context(), "x")
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != c.want || f.Detail != c.detail {
			t.Errorf("%s: %v", c.kind, err)
		}
	}
	kind = "archive"
	_, _, err := r.Read(t.Context(), "x")
	wantErr(t, err, ErrBadArchive)
	if d.dials != 1 {
		t.Errorf("dialled %d times", d.dials)
	}
}

// TestHostileDownload has agents that answer a read with what was not agreed.
func TestHostileDownload(t *testing.T) {
	for name, answer := range map[string]func(*peer){
		"more data than announced": func(p *peer) { p.send(frameData, "123456") },
		"more data in a second frame": func(p *peer) {
			p.send(frameData, "1234")
			p.send(frameData, "56")
		},
		"an empty frame": func(p *peer) { p.send(frameData, "") },
		"an early end":   func(p *peer) { p.send(frameEnd, "") },
		"a beat":         func(p *peer) { p.send(frameBeat, "") },
		"a huge frame":   func(p *peer) { p.header(frameData, maxFrame+1) },
		"the stream's end": func(p *peer) {
			p.header(frameData, 5)
			p.raw([]byte("12"))
			panic(errHungUp)
		},
		"silence": func(p *peer) { p.header(frameData, 5) },
		"a trickle": func(p *peer) {
			p.header(frameData, 5)
			for range 4 {
				time.Sleep(fileTimeout - 100*time.Millisecond)
				p.raw([]byte("x"))
			}
		},
		"no end": func(p *peer) {
			p.send(frameData, "12345")
			p.send(frameResult, "{}")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := fakeRunner(t, func(p *peer) {
					p.greet()
					p.request()
					p.send(frameResult, `{"size":5}`)
					answer(p)
					p.read()
				}, tidy)
				start := time.Now()
				body, size, err := r.Read(t.Context(), "x")
				if err != nil || size != 5 {
					t.Fatal(size, err)
				}
				got, err := io.ReadAll(body)
				if (err == nil) != (name == "no end") || len(got) > 5 {
					t.Errorf("read %q, %v", got, err)
				}
				if err != nil && !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrLost) {
					t.Error(err)
				}
				if err := body.Close(); err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took > fileTimeout+silence {
					t.Errorf("took %v", took)
				}
				echoes(t, r, "next")
			})
		})
	}
}

func TestDownloadOfNegativeSize(t *testing.T) {
	r, _ := fakeRunner(t, func(p *peer) {
		p.greet()
		p.request()
		p.send(frameResult, `{"size":-1}`)
		p.read()
	}, tidy)
	_, _, err := r.Read(t.Context(), "x")
	wantErr(t, err, ErrProtocol)
	echoes(t, r, "next")
}

// TestCancelledDownload: the context of Read holds until Close.
func TestCancelledDownload(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	r, _ := fakeRunner(t, func(p *peer) {
		p.greet()
		p.request()
		p.send(frameResult, `{"size":5}`)
		p.send(frameData, "12")
		cancel(errGone)
		p.read()
	}, tidy)
	body, _, err := r.Read(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.ReadAll(body)
	wantErr(t, err, errGone)
	if err := body.Close(); err != nil {
		t.Error(err)
	}
	echoes(t, r, "next")
}

// TestCancelFiles cancels each file operation while the agent is at it.
func TestCancelFiles(t *testing.T) {
	for name, op := range map[string]func(context.Context, *Runner) error{
		"write": func(ctx context.Context, r *Runner) error { return r.Write(ctx, "x", strings.NewReader("x"), 1) },
		"read": func(ctx context.Context, r *Runner) error {
			_, _, err := r.Read(ctx, "x")
			return err
		},
		"list": func(ctx context.Context, r *Runner) error {
			_, err := r.List(ctx, 1, 1)
			return err
		},
		"list half-way": func(ctx context.Context, r *Runner) error {
			_, err := r.List(ctx, 1, 1)
			return err
		},
		"reset": func(ctx context.Context, r *Runner) error { return r.ResetInputs(ctx) },
		"pack": func(ctx context.Context, r *Runner) error {
			_, err := r.Pack(ctx, io.Discard, 1<<20)
			return err
		},
		"unpack": func(ctx context.Context, r *Runner) error {
			_, err := r.Unpack(ctx, strings.NewReader("x"))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			r, _ := fakeRunner(t, func(p *peer) {
				p.greet()
				p.request()
				if name == "list half-way" {
					p.send(frameResult, "{}")
				}
				cancel(errGone)
				p.read()
			}, tidy)
			wantErr(t, op(ctx, r), errGone)
			echoes(t, r, "next")
		})
	}
}
