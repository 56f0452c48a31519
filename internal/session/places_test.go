package session

import (
	"errors"
	"testing"
)

// deadRunner is one whose agent is known to be gone.
type deadRunner struct{ Runner }

func (deadRunner) Connected() bool { return false }

type livingRunner struct{ Runner }

func (livingRunner) Connected() bool { return true }

// TestPlaceOfALostRunner: from the moment that a runner leaves the pool for
// nobody, who asks for its place waits for it rather than being refused.
func TestPlaceOfALostRunner(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(p *places)
	}{
		{"found dead by the pool", func(p *places) {
			p.idle = []*session{{runner: deadRunner{}}}
			p.dropDead()
		}},
		{"found dead by a creation", func(p *places) {
			p.idle = []*session{{runner: deadRunner{}}}
			if s, err := p.take(t.Context(), 0); s != nil || err != nil {
				t.Errorf("took %v, %v", s, err)
			}
			p.free(false)
		}},
		{"more than the pool has room for", func(p *places) {
			p.size = 0
			p.handBack(&session{runner: livingRunner{}})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			lost := 0
			p := &places{max: 1, used: 1, size: 1, changed: make(chan struct{}, 1)}
			p.giveUp = func(s *session) {
				lost++
				if _, err := p.take(t.Context(), 0); !errors.Is(err, errQueueTimeout) {
					t.Errorf("meanwhile another asks for the place: %v", err)
				}
				p.leave(s) // as burying it does
				p.free(true)
			}
			c.lose(p)
			if p.leaving != 0 || lost != 1 {
				t.Errorf("%d places are about to come free, %d runners were given up", p.leaving, lost)
			}
			if _, err := p.take(t.Context(), 0); err != nil {
				t.Errorf("the place afterwards: %v", err)
			}
		})
	}
}
