package runner

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// withFiles is an agent whose runs leave two files of size bytes each.
func withFiles(size int) func(*peer) {
	return serve(map[string]func(*peer, request, []byte){"exec": func(p *peer, req request, code []byte) {
		if string(code) != "files" {
			run(p, req, code)
			return
		}
		p.send(frameBeat, "")
		p.send(frameResult, `{"reason":"exit","complete":true,"files":2}`)
		for range 2 {
			p.json(frameFile, Artifact{"x", int64(size)})
		}
		content := strings.Repeat("x", size)
		for range 2 {
			for at := 0; at < size; at += maxFrame {
				p.send(frameData, content[at:min(at+maxFrame, size)])
			}
		}
		p.send(frameEnd, "")
	}})
}

// TestArtifactsAtFrameEdges reads artifacts around a frame's length, whole and
// in part, and closes: the agent goes on at once and long after.
func TestArtifactsAtFrameEdges(t *testing.T) {
	for _, size := range []int{0, 1, maxFrame - 1, maxFrame, maxFrame + 1, 2*maxFrame + 1} {
		for _, take := range []int{-1, 0, 1, size / 2, size - 1, size, size + 1, 2 * size} {
			synctest.Test(t, func(t *testing.T) {
				r, d := fakeRunner(t, withFiles(size))
				x, err := r.Exec(t.Context(), execRequest("files"))
				if err != nil {
					t.Fatal(err)
				}
				for left := take; left >= 0; {
					content, err := x.Next()
					if err == io.EOF {
						break
					} else if err != nil {
						t.Fatal(err)
					}
					n, err := io.CopyN(io.Discard, content, int64(left))
					if n != int64(min(left, size)) || err != nil && err != io.EOF {
						t.Errorf("%d of %d bytes, %v", n, left, err)
					}
					if left -= int(n); left == 0 {
						break
					}
				}
				if err := x.Close(); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Minute)
				echoes(t, r, "next")
				if d.dials != 1 {
					t.Errorf("size %d, %d taken: dialled %d times", size, take, d.dials)
				}
			})
		}
	}
}

// TestCloseGivesUp: an agent that does not get done with its artifacts does not
// hold the caller of Close.
func TestCloseGivesUp(t *testing.T) {
	for name, pause := range map[string]time.Duration{"silent": time.Hour, "trickling": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, d := fakeRunner(t, func(p *peer) {
					p.greet()
					p.request()
					p.send(frameResult, `{"reason":"exit","complete":true,"files":1}`)
					p.json(frameFile, Artifact{"x", 1 << 20})
					for {
						p.send(frameData, "x")
						time.Sleep(pause)
					}
				}, tidy)
				x, err := r.Exec(t.Context(), execRequest("files"))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := x.Next(); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				if err := x.Close(); err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took > 6*time.Second {
					t.Errorf("took %v", took)
				}
				echoes(t, r, "next")
				if d.dials != 2 {
					t.Errorf("dialled %d times", d.dials)
				}
			})
		})
	}
}

// TestArtifactTimeout: a file that does not come ends the sequence for good.
func TestArtifactTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := fakeRunner(t, func(p *peer) {
			p.greet()
			p.request()
			p.send(frameResult, `{"reason":"exit","complete":true,"files":2}`)
			p.json(frameFile, Artifact{"x", 5})
			p.json(frameFile, Artifact{"y", 5})
			p.send(frameData, "x")
			p.read()
		}, tidy)
		x, err := r.Exec(t.Context(), execRequest("files"))
		if err != nil {
			t.Fatal(err)
		}
		content, err := x.Next()
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		got, err := io.ReadAll(content)
		if string(got) != "x" || !errors.Is(err, ErrLost) || time.Since(start) != testLimits.FileTimeout {
			t.Errorf("read %q, %v after %v", got, err, time.Since(start))
		}
		for range 2 {
			if _, err := x.Next(); !errors.Is(err, ErrLost) {
				t.Errorf("next: %v", err)
			}
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
		echoes(t, r, "next")
	})
}

// TestSlowReader: time that the reader takes for itself is not the agent's.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, d := fakeRunner(t, withFiles(2*maxFrame))
		x, err := r.Exec(t.Context(), execRequest("files"))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			content, err := x.Next()
			if err != nil {
				t.Fatal(err)
			}
			for buf := make([]byte, maxFrame/4); ; {
				if _, err := content.Read(buf); err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
			}
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
		echoes(t, r, "next")
		if d.dials != 1 {
			t.Errorf("dialled %d times", d.dials)
		}
	})
}
