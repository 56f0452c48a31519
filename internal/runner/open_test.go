package runner

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

func TestOpenGreets(t *testing.T) {
	var source, setup []byte
	r, d := fakeRunner(t, func(p *peer) {
		source, setup = p.expect(frameSource), p.expect(frameRequest)
		p.json(frameHello, hello{Version: 1})
		p.read()
	})
	r.opts.CPUs = 2.4
	for range 2 {
		if err := r.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if string(source) != string(agentSource) {
		t.Error("another agent was sent")
	}
	var got map[string]any
	if err := json.Unmarshal(setup, &got); err != nil {
		t.Fatal(err)
	}
	if got["threads"] != 3.0 || got["environ"] == nil {
		t.Errorf("set up with %s", setup)
	}
	if d.dials != 1 {
		t.Errorf("dialled %d times", d.dials)
	}
}

// TestHostileGreeting has agents that do not greet properly: each is tried
// again until the runner is given up.
func TestHostileGreeting(t *testing.T) {
	for name, agent := range map[string]func(*peer){
		"hangs up":       func(*peer) {},
		"not a frame":    func(p *peer) { p.raw([]byte("OCI runtime exec failed: exec failed")) },
		"another frame":  func(p *peer) { p.send(frameResult, "{}") },
		"beat":           func(p *peer) { p.send(frameBeat, "") },
		"no JSON":        func(p *peer) { p.send(frameHello, "hello") },
		"cut":            func(p *peer) { p.header(frameHello, 5) },
		"too long":       func(p *peer) { p.header(frameHello, maxControl+1) },
		"another agent":  func(p *peer) { p.send(frameHello, `{"version":2}`) },
		"names no agent": func(p *peer) { p.send(frameHello, `{}`) },
	} {
		t.Run(name, func(t *testing.T) {
			bad := func(p *peer) {
				p.expect(frameSource)
				p.expect(frameRequest)
				agent(p)
			}
			d := &fakeDriver{t: t, agents: []func(*peer){bad}}
			r := New(d, "handle", Options{})
			closing(t, r, d)
			err := r.Open(t.Context())
			wantErr(t, err, ErrLost)
			if err != nil && !strings.Contains(err.Error(), `it said "some words"`) {
				t.Errorf("%v does not say what the agent printed", err)
			}
			if d.dials != dialAttempts {
				t.Errorf("dialled %d times", d.dials)
			}
			d.agents = append(make([]func(*peer), d.dials), bad, bad, tidy)
			echoes(t, r, "better")
		})
	}
}

// TestSlowStart: one whole start's time for the first agent, one for the rest.
func TestSlowStart(t *testing.T) {
	stopped := func(p *peer) {
		p.expect(frameSource)
		p.read()
		p.read()
	}
	synctest.Test(t, func(t *testing.T) {
		r, d := fakeRunner(t, stopped, tidy)
		echoes(t, r, "x")
		if d.dials != 2 {
			t.Errorf("dialled %d times", d.dials)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r, _ := fakeRunner(t, stopped)
		start := time.Now()
		err := r.Open(t.Context())
		if err == nil || time.Since(start) != 60*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errGone)
		defer cancel()
		r, d := fakeRunner(t, stopped)
		err := r.Open(ctx)
		wantErr(t, err, errGone)
		if d.dials != 1 {
			t.Errorf("dialled %d times", d.dials)
		}
	})
}

func TestUnwritableWorkspace(t *testing.T) {
	r, d := fakeRunner(t, func(p *peer) {
		p.expect(frameSource)
		p.expect(frameRequest)
		p.json(frameHello, hello{Version: 1, Problem: "/workspace: Read-only file system"})
		p.read()
	})
	err := r.Open(t.Context())
	if !fault.Is(err, fault.Internal) || !strings.Contains(err.Error(), "Read-only") {
		t.Errorf("got %v", err)
	}
	if d.dials != 1 {
		t.Errorf("dialled %d times", d.dials)
	}
}

// TestUnasked: an agent that ended, or spoke, between two calls is replaced.
func TestUnasked(t *testing.T) {
	for name, agent := range map[string]func(*peer){
		"ended": func(*peer) {},
		"spoke": func(p *peer) {
			p.send(frameBeat, "")
			p.read()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, d := fakeRunner(t, func(p *peer) {
					p.greet()
					agent(p)
				}, tidy)
				if r.Connected() {
					t.Error("connected before it was opened")
				}
				if err := r.Open(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				for range 2 {
					if r.Connected() {
						t.Error("connected to an agent that is lost")
					}
				}
				echoes(t, r, "x")
				if !r.Connected() {
					t.Error("not connected after a call")
				}
				if d.dials != 2 {
					t.Errorf("dialled %d times", d.dials)
				}
			})
		})
	}
}
