package runner

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

func packer(chunks ...string) func(*peer) {
	return serve(map[string]func(*peer, request, []byte){
		"exec": run,
		"pack": func(p *peer, _ request, _ []byte) {
			for _, chunk := range chunks {
				p.send(frameBeat, "")
				p.send(frameData, chunk)
			}
			p.send(frameResult, `{"files":2,"dirs":1,"bytes":7,"left":1,"examples":["x: y"]}`)
		},
	})
}

// TestPackLimit packs archives around the limit.
func TestPackLimit(t *testing.T) {
	for _, n := range []int{0, maxFrame - 1, maxFrame, maxFrame + 1} {
		chunks := []string{strings.Repeat("x", min(n, maxFrame)), strings.Repeat("y", n-min(n, maxFrame))}
		for _, limit := range []int{n + 1, n, max(0, n-1)} {
			r, d := fakeRunner(t, packer(chunks...))
			var b bytes.Buffer
			stats, err := r.Pack(t.Context(), &b, int64(limit))
			if limit < n {
				wantErr(t, err, ErrTooLarge)
				if b.Len() > limit {
					t.Errorf("%d bytes written, at most %d allowed", b.Len(), limit)
				}
			} else if err != nil || stats.Files != 2 || stats.Dirs != 1 || stats.Bytes != 7 || stats.Left != 1 || len(stats.Examples) != 1 {
				t.Errorf("got %+v, %v", stats, err)
			} else if b.String() != chunks[0]+chunks[1] {
				t.Errorf("%d bytes of %d arrived", b.Len(), n)
			}
			echoes(t, r, "next")
			if limit >= n && d.dials != 1 {
				t.Errorf("dialled %d times", d.dials)
			}
		}
	}
}

func TestPackBrokenWriter(t *testing.T) {
	r, _ := fakeRunner(t, packer("x"), tidy)
	_, err := r.Pack(t.Context(), failingWriter{}, 10)
	wantErr(t, err, errGone)
	if errors.Is(err, ErrLost) {
		t.Errorf("the agent is not to blame: %v", err)
	}
	echoes(t, r, "next")
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errGone }

// TestPackSlowWriter: the writer has a clock of its own.
func TestPackSlowWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, d := fakeRunner(t, packer(strings.Repeat("x", maxFrame), "y"))
		slow := writerFunc(func(p []byte) (int, error) {
			time.Sleep(10 * time.Minute)
			return len(p), nil
		})
		if _, err := r.Pack(t.Context(), slow, maxFrame*2); err != nil {
			t.Error(err)
		}
		echoes(t, r, "next")
		if d.dials != 1 {
			t.Errorf("dialled %d times", d.dials)
		}
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestHostilePack(t *testing.T) {
	for name, answer := range map[string]func(*peer){
		"another frame":   func(p *peer) { p.send(frameEnd, "") },
		"no JSON":         func(p *peer) { p.send(frameResult, "") },
		"error, no JSON":  func(p *peer) { p.send(frameError, "[]") },
		"end of stream":   func(p *peer) { p.header(frameData, 10); panic(errHungUp) },
		"silence":         func(*peer) {},
		"huge frame":      func(p *peer) { p.header(frameData, maxFrame+1) },
		"within a result": func(p *peer) { p.header(frameResult, 10) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := fakeRunner(t, func(p *peer) {
					p.greet()
					p.request()
					p.send(frameData, "x")
					answer(p)
					p.read()
				}, tidy)
				_, err := r.Pack(t.Context(), io.Discard, 1<<30)
				if !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrLost) {
					t.Errorf("got %v", err)
				}
				echoes(t, r, "next")
			})
		})
	}
}

func TestUnpack(t *testing.T) {
	var got []byte
	answer := `{"files":1}`
	r, d := fakeRunner(t, serve(map[string]func(*peer, request, []byte){
		"exec": run,
		"unpack": func(p *peer, _ request, body []byte) {
			got = body
			if answer == "" {
				p.send(frameError, `{"kind":"archive","detail":"no gzip"}`)
				return
			}
			p.send(frameBeat, "")
			p.send(frameResult, answer)
		},
	}))
	for _, n := range []int{0, 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, maxFrame + 1} {
		body := strings.Repeat("x", n)
		stats, err := r.Unpack(t.Context(), iotest.HalfReader(strings.NewReader(body)))
		if err != nil || stats.Files != 1 || string(got) != body {
			t.Errorf("%d bytes arrived as %d; %+v, %v", n, len(got), stats, err)
		}
	}
	answer = ""
	_, err := r.Unpack(t.Context(), strings.NewReader("x"))
	wantErr(t, err, ErrBadArchive)
	echoes(t, r, "next")
	if d.dials != 1 {
		t.Errorf("dialled %d times", d.dials)
	}
	_, err = r.Unpack(t.Context(), io.MultiReader(strings.NewReader("x"), iotest.ErrReader(errGone)))
	wantErr(t, err, errGone)
	if errors.Is(err, ErrBadArchive) || fault.Is(err, fault.Invalid) {
		t.Errorf("the archive is not to blame: %v", err)
	}
	echoes(t, r, "next")
}
