package runner

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLostRun cuts the agent off at every byte of a run with artifacts.
func TestLostRun(t *testing.T) {
	var script []byte
	script = appendFrame(script, frameBeat, nil)
	heard := len(script)
	script = appendFrame(script, frameStdout, []byte("out"))
	script = appendFrame(script, frameResult, []byte(`{"reason":"exit","complete":true,"files":2}`))
	script = appendFrame(script, frameFile, []byte(`{"path":"x","size":3}`))
	script = appendFrame(script, frameFile, []byte(`{"path":"y","size":2}`))
	answered := len(script)
	script = appendFrame(script, frameData, []byte("abc"))
	script = appendFrame(script, frameData, []byte("de"))
	script = appendFrame(script, frameEnd, nil)
	for cut := range len(script) {
		r, d := fakeRunner(t, func(p *peer) {
			p.greet()
			p.request()
			p.raw(script[:cut])
		}, tidy)
		x, err := r.Exec(t.Context(), execRequest("code"))
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		switch {
		case cut < heard: // nothing can have run: the next agent was asked
			if x.Reason != ReasonExit || string(x.Stdout) != "code" {
				t.Errorf("cut at %d: %s", cut, summary(x))
			}
		case cut < answered:
			if x.Reason != ReasonLost || x.ExitCode != 137 || !strings.HasPrefix("out", string(x.Stdout)) || len(x.Files) != 0 {
				t.Errorf("cut at %d: %s", cut, summary(x))
			}
		default:
			if x.Reason != ReasonExit || len(x.Files) != 2 {
				t.Errorf("cut at %d: %s", cut, summary(x))
			}
			var failed error
			for failed == nil {
				var content io.Reader
				if content, failed = x.Next(); failed == nil {
					_, failed = io.Copy(io.Discard, content)
				}
			}
			if !errors.Is(failed, ErrLost) && cut < len(script)-frameHeaderSize {
				t.Errorf("cut at %d: %v", cut, failed)
			}
		}
		if err := x.Close(); err != nil {
			t.Errorf("cut at %d: %v", cut, err)
		}
		echoes(t, r, "next")
		if d.dials != 2 {
			t.Errorf("cut at %d: dialled %d times", cut, d.dials)
		}
	}
}

// TestLostTwiceUnheard: an agent that never takes a run is not tried for ever.
func TestLostTwiceUnheard(t *testing.T) {
	r, d := fakeRunner(t, func(p *peer) {
		p.greet()
		p.request()
	})
	_, err := r.Exec(t.Context(), execRequest("x"))
	wantErr(t, err, ErrLost)
	if d.dials != 2 {
		t.Errorf("dialled %d times", d.dials)
	}
}

func TestLostForWantOfMemory(t *testing.T) {
	greeting := func(oomKills int64) func(*peer) {
		return func(p *peer) {
			p.expect(frameSource)
			p.expect(frameRequest)
			p.json(frameHello, hello{Version: 1, OOMKills: oomKills})
			for {
				req, code := p.request()
				if string(code) == "die" {
					p.send(frameBeat, "")
					return
				}
				run(p, req, code)
			}
		}
	}
	r, _ := fakeRunner(t, greeting(3), greeting(3), greeting(5))
	for i, want := range []Reason{ReasonLost, ReasonOOM} {
		x, err := r.Exec(t.Context(), execRequest("die"))
		if err != nil {
			t.Fatal(err)
		}
		if x.Reason != want || x.ExitCode != 137 || x.Usage.OOMKills != int64(2*i) {
			t.Errorf("loss %d: %s, %d kills", i, summary(x), x.Usage.OOMKills)
		}
	}
}

// TestLostRunner: the runner itself is gone when its agent is to be replaced.
func TestLostRunner(t *testing.T) {
	var d *fakeDriver
	r, d := fakeRunner(t, func(p *peer) {
		p.greet()
		p.request()
		d.mu.Lock()
		d.err = ErrNotFound
		d.mu.Unlock()
		p.send(frameBeat, "")
	})
	_, err := r.Exec(t.Context(), execRequest("x"))
	wantErr(t, err, ErrNotFound)
}

// TestSilence: an agent that stops talking, at any point, is given up.
func TestSilence(t *testing.T) {
	for name, agent := range map[string]func(*peer){
		"at once":      func(*peer) {},
		"after a beat": func(p *peer) { p.send(frameBeat, "") },
		"within a header": func(p *peer) {
			p.send(frameBeat, "")
			p.raw([]byte{byte(frameStdout), 0})
		},
		"within output": func(p *peer) {
			p.send(frameBeat, "")
			p.header(frameStdout, 10)
			p.raw([]byte("x"))
		},
		"within a result": func(p *peer) {
			p.send(frameBeat, "")
			p.header(frameResult, 10)
			p.raw([]byte("{"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := fakeRunner(t, func(p *peer) {
					p.greet()
					p.request()
					agent(p)
					p.read()
				}, tidy)
				start := time.Now()
				x, err := r.Exec(t.Context(), execRequest("x"))
				if err != nil {
					t.Fatal(err)
				}
				want, within := ReasonLost, silence
				if name == "at once" {
					want, within = ReasonExit, waking
				}
				if x.Reason != want || time.Since(start) > within {
					t.Errorf("%s after %v", summary(x), time.Since(start))
				}
				echoes(t, r, "next")
			})
		})
	}
}

// TestEndlessBeats: an agent that beats, or trickles output, for ever does not
// hold its caller.
func TestEndlessBeats(t *testing.T) {
	for name, frame := range map[string]frameType{"beats": frameBeat, "empty output": frameStdout} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := fakeRunner(t, func(p *peer) {
					p.greet()
					p.request()
					for {
						p.send(frame, "")
						time.Sleep(time.Second)
					}
				}, tidy)
				start := time.Now()
				x, err := r.Exec(t.Context(), execRequest("x"))
				if err != nil || x.Reason != ReasonLost {
					t.Fatal(x, err)
				}
				if took := time.Since(start); took > waking+30*time.Second {
					t.Errorf("took %v", took)
				}
				echoes(t, r, "next")
			})
		})
	}
}
