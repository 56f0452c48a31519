package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/session/spool"
)

var errDead = errors.New("the process is dead")

// power is what a process runs on. When it is cut, nothing that the process does
// has an effect any more.
type power struct {
	mu   sync.Mutex
	left int // steps until it is cut; negative is never
	dead bool
}

// step is asked before each effect, and once more when it has happened but the
// process does not know yet.
func (p *power) step(string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == 0 {
		p.dead = true
	}
	if p.dead {
		return errDead
	}
	p.left--
	return nil
}

func (p *power) cut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

func (p *power) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = true
}

// plug lets a world's processes run on p.
func (w *world) plug(p *power) {
	var step func(string) error
	if p != nil {
		step = p.step
	}
	w.engine.set(func() { w.engine.step = step })
	w.bucket.set(func() { w.bucket.step = step })
	w.store.mu.Lock()
	w.store.step = step
	w.store.mu.Unlock()
	w.power = p
}

// crash cuts the power and clears the dead process away.
func (w *world) crash() {
	w.t.Helper()
	w.power.kill()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := w.Shutdown(ctx); err != nil {
		w.t.Errorf("clearing a dead process away: %v", err)
	}
	w.plug(nil)
}

// crashSpool is a spool on power.
type crashSpool struct {
	*spool.Spool
	p *power
}

func (s crashSpool) around(effect func() error) error {
	if err := s.p.step("spool"); err != nil {
		return err
	}
	if err := effect(); err != nil {
		return err
	}
	return s.p.step("spool done")
}

func (s crashSpool) Add(h spool.Head, write func(io.Writer) error) (e spool.Entry, err error) {
	err = s.around(func() error { e, err = s.Spool.Add(h, write); return err })
	return e, err
}

func (s crashSpool) AddPurge(h spool.Head) (e spool.Entry, err error) {
	err = s.around(func() error { e, err = s.Spool.AddPurge(h); return err })
	return e, err
}

func (s crashSpool) Update(name string, h spool.Head) error {
	return s.around(func() error { return s.Spool.Update(name, h) })
}

func (s crashSpool) Remove(name string) error {
	return s.around(func() error { return s.Spool.Remove(name) })
}

func (s crashSpool) SetAside(name string) error {
	return s.around(func() error { return s.Spool.SetAside(name) })
}

// talk is a conversation: a client that keeps a counter and a growing number of
// files in its workspace, in one session after the other, and knows what was
// confirmed.
type talk struct {
	w   *world
	key string
	id  string // of the session that may still be there
	// confirmed is the last value that a 200 stands for, empty where there is none;
	// attempted is what was asked for since, without an answer.
	confirmed string
	attempted []string
	// files are those that must be there; a discard empties them. While one has no
	// answer, they may be there.
	files    []string
	doubtful bool
	n        int
	// checks counts how often what was there could be compared.
	checks int
}

// answered tells whether an answer came from a living process.
func (k *talk) answered(err error) bool { return err == nil && !k.w.power.cut() }

func (k *talk) confirm(value string) { k.confirmed, k.attempted = value, nil }

// turn goes through one session, from its creation to its end.
func (k *talk) turn(ctx context.Context, rnd func(int) int) {
	w := k.w
	req := conversation(k.key)
	req.IdleTTL = seconds(10)
	if k.id != "" { // it may have outlived the last process
		if err := w.Delete(ctx, k.id, DeleteRequest{}); !k.answered(err) {
			return
		}
	}
	unread := ""
	if rnd(4) == 0 {
		unread = k.key // and perhaps the other one too
	}
	w.bucket.set(func() { w.bucket.unread = unread })
	id, err := w.Create(ctx, req)
	if !k.answered(err) {
		return
	}
	k.id = id
	w.mu.Lock()
	partial := w.sessions[id].lineage.Partial
	w.mu.Unlock()
	if !partial {
		k.look(ctx)
	}
	k.n++
	value := fmt.Sprint(k.n)
	k.attempted = append(k.attempted, value)
	if err := w.WriteFile(ctx, id, "x", strings.NewReader(value), int64(len(value))); !k.answered(err) {
		return
	}
	k.confirm(value)
	file := "f" + value
	if err := w.WriteFile(ctx, id, file, strings.NewReader(value), int64(len(value))); !k.answered(err) {
		return
	}
	k.files = append(k.files, file)
	if rnd(3) == 0 {
		w.bucket.setFail("put", errors.New("store is down"))
	}
	switch rnd(5) {
	case 0, 1:
		time.Sleep(11 * time.Second) // reaped
	case 2:
		k.attempted = append(k.attempted, "")
		k.doubtful = true
		if err := w.Delete(ctx, id, DeleteRequest{Discard: true}); k.answered(err) {
			k.confirm("")
			k.files, k.doubtful = nil, false
		}
	default:
		if err := w.Delete(ctx, id, DeleteRequest{}); err != nil && !w.power.cut() {
			w.t.Errorf("delete: %v", err)
		}
	}
	w.bucket.set(func() { w.bucket.unread = "" })
	w.bucket.setFail("put", nil)
	time.Sleep(time.Duration(rnd(5)) * time.Second)
}

// look compares what a session holds with what was confirmed.
func (k *talk) look(ctx context.Context) {
	found := map[string]string{}
	list, err := k.w.ListFiles(ctx, k.id)
	if err != nil {
		return
	}
	for _, f := range list {
		body, _, err := k.w.ReadFile(ctx, k.id, f.Path)
		if err != nil {
			return
		}
		data, err := io.ReadAll(body)
		if err = errors.Join(err, body.Close()); err != nil {
			k.w.t.Error(err)
		}
		found[f.Path] = string(data)
	}
	if k.w.power.cut() {
		return
	}
	k.checks++
	x := found["x"]
	if x != k.confirmed && !slices.Contains(k.attempted, x) {
		k.w.t.Errorf("conversation %s, session %s: found %q, confirmed %q, attempted %q", k.key, k.id, x, k.confirmed, k.attempted)
	}
	for _, f := range k.files {
		if found[f] != f[1:] && !k.doubtful {
			k.w.t.Errorf("conversation %s, session %s: %s is missing of %v, found %v", k.key, k.id, f, k.files, found)
		}
	}
	k.confirm(x)
	k.files = slices.DeleteFunc(k.files, func(f string) bool { return found[f] == "" })
	k.doubtful = false
}

// TestCrashes cuts the power at every step of some conversations, and again in
// the recovery. What was confirmed is there afterwards, and nothing is left over.
// With AIVORY_SOAK set it does so with other conversations each time, and longer.
func TestCrashes(t *testing.T) {
	const steps = 400
	seeds, stride := []uint64{7}, 5
	if os.Getenv("AIVORY_SOAK") != "" {
		seeds, stride = nil, 1
		for range 20 {
			seeds = append(seeds, rand.Uint64())
		}
	}
	checks := 0
	for _, seed := range seeds {
		for at := int(seed % 5); at < steps; at += stride {
			synctest.Test(t, func(t *testing.T) {
				checks += crashRound(t, at, rand.New(rand.NewPCG(uint64(at), seed)))
			})
			if t.Failed() {
				t.Fatalf("power was cut at step %d, seed %d", at, seed)
			}
		}
	}
	if checks < steps/stride*len(seeds) {
		t.Errorf("compared %d times only", checks)
	}
}

func crashRound(t *testing.T, at int, r *rand.Rand) (checks int) {
	cfg := testConfig()
	cfg.SweepInterval, cfg.PoolSize = 5*time.Second, r.IntN(3)
	w := newWorld(t, cfg, nil)
	w.stop() // so that records are complete
	var mu sync.Mutex
	rnd := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return r.IntN(n)
	}
	talks := []*talk{{w: w, key: "a"}, {w: w, key: "b"}}[:1+r.IntN(2)]
	for _, left := range []int{at, 1 + r.IntN(60), 1 + r.IntN(20)} {
		w.plug(&power{left: left})
		w.start(cfg)
		if w.power.cut() { // while it started
			w.crash()
			continue
		}
		var wg sync.WaitGroup
		for _, k := range talks {
			wg.Go(func() {
				for range 12 {
					if k.turn(t.Context(), rnd); w.power.cut() {
						return
					}
				}
			})
		}
		wg.Wait()
		w.crash()
		time.Sleep(time.Duration(r.IntN(15)) * time.Second)
	}

	w.bucket.setDown(false)
	w.bucket.set(func() { w.bucket.unread = "" })
	w.plug(&power{left: -1})
	w.start(cfg)
	time.Sleep(time.Hour) // all is stored and all sessions expire
	synctest.Wait()
	if n := w.used(); n != cfg.PoolSize || w.engine.count() != cfg.PoolSize || w.spooled() != 0 || len(w.store.records) != 0 {
		t.Errorf("left over: %d places, %d runners, %d in the spool, %d records", n, w.engine.count(), w.spooled(), len(w.store.records))
	}
	for key := range w.bucket.halves {
		// A copy that is kept beside has the same name when it is tried again.
		if !strings.Contains(key, ".kept-") {
			t.Errorf("left over: some of an upload to %s", key)
		}
	}
	for _, k := range talks {
		k.id = w.create(conversation(k.key))
		k.look(t.Context())
		checks += k.checks
	}
	w.stop()
	if t.Failed() {
		t.Logf("%s", w.logs)
	}
	return checks
}
