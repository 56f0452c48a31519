package session

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// TestStorm lets many clients do everything at once, many of them going away
// half-way and the engine failing now and then, and looks for a limit that was
// exceeded, two calls on one runner, an answer that nobody promised, and
// leftovers. The fakes report the first two.
func TestStorm(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 3
	}
	sessions, runs := 0, 0
	for round := range rounds {
		synctest.Test(t, func(t *testing.T) {
			s, r := storm(t, rand.New(rand.NewPCG(1, uint64(round))))
			sessions, runs = sessions+s, runs+r
		})
	}
	t.Logf("%d sessions, %d runs", sessions, runs)
	if sessions < 10*rounds || runs < 15*rounds {
		t.Error("too little has happened")
	}
}

func storm(t *testing.T, rnd *rand.Rand) (sessions, ran int) {
	e := newEngine(t)
	ms := func(n int) time.Duration { return time.Duration(rnd.IntN(n)) * time.Millisecond }
	e.createDelay, e.openDelay, e.destroyDelay = ms(500), ms(500), ms(500)
	cfg := testConfig()
	cfg.MaxSessions, cfg.MaxExecs, cfg.MaxCreates = 1+rnd.IntN(6), rnd.IntN(4), rnd.IntN(3)
	cfg.QueueTimeout, cfg.SweepInterval = 200*time.Millisecond+ms(3000), time.Second
	cfg.PoolSize = rnd.IntN(4)
	w := newWorld(t, cfg, e)

	var mu sync.Mutex
	ids := []string{strings.Repeat("0", 32)}
	anyID := func() string {
		mu.Lock()
		defer mu.Unlock()
		return ids[max(0, len(ids)-1-rnd.IntN(cfg.MaxSessions+1))]
	}
	random := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(n)
	}
	var runs, most int // concurrent runs, in the order that the fake saw them
	e.onExec = func(delta int) {
		mu.Lock()
		defer mu.Unlock()
		runs += delta
		ran += max(delta, 0)
		most = max(most, runs)
	}
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			for range 150 {
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				if random(4) == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(random(1500))*time.Millisecond)
				}
				id, op := anyID(), random(16)
				var err error
				switch op {
				case 0, 1, 2, 3:
					var made string
					req := CreateRequest{}
					if random(2) == 0 {
						req = conversation("abc"[random(3):][:1])
					}
					req.IdleTTL = seconds(int64(random(4)))
					made, err = w.Create(ctx, req)
					if err == nil {
						mu.Lock()
						ids = append(ids, made)
						mu.Unlock()
					}
				case 4, 5:
					err = w.Delete(ctx, id, DeleteRequest{Discard: random(3) == 0})
				case 6:
					e.setFail([]string{"create", "start", "open", "destroy", "list", "exec", "pack", "unpack"}[random(8)], errors.New("engine failure"))
					w.bucket.setFail([]string{"put", "put end", "get", "read", "delete", "list"}[random(6)], errors.New("store failure"))
					time.Sleep(time.Duration(random(300)) * time.Millisecond)
					e.set(func() { clear(e.fail) })
					w.bucket.setDown(false)
				case 7:
					err = w.WriteFile(ctx, id, "f", strings.NewReader("x"), 1)
				case 8:
					body, _, rerr := w.ReadFile(ctx, id, "f")
					if err = rerr; err == nil {
						time.Sleep(time.Duration(random(300)) * time.Millisecond)
						err = body.Close()
					}
				case 9:
					if c := e.bySession(id); c != nil && random(8) == 0 {
						e.set(func() { delete(e.containers, c.ID) })
					}
				default:
					x, xerr := w.Exec(ctx, id, ExecRequest{Code: []byte("sleep " + (time.Duration(random(800)) * time.Millisecond).String())})
					if err = xerr; err == nil {
						time.Sleep(time.Duration(random(50)) * time.Millisecond)
						err = x.Close()
					}
				}
				cancel()
				checkAnswer(t, ctx, err)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		checkAnswer(t, t.Context(), w.Delete(t.Context(), id, DeleteRequest{}))
	}
	time.Sleep(time.Hour)
	synctest.Wait()
	pool := w.cfg.PoolSize
	if n := w.used(); n != pool || e.count() != pool || w.Stats().Pooled != pool || w.spooled() != 0 || len(w.store.copy()) != 0 || len(w.keys.locks) != 0 {
		t.Errorf("left: %d places, %d runners, %d in the spool, %d records, %d locks", n, e.count(), w.spooled(), len(w.store.copy()), len(w.keys.locks))
	}
	for key, o := range w.bucket.objects {
		if !json.Valid([]byte(o.data)) {
			t.Errorf("%s is torn: %q", key, o.data)
		}
	}
	if e.peak > cfg.MaxSessions+e.dead {
		t.Errorf("%d runners at once, limit %d", e.peak, cfg.MaxSessions)
	}
	if cfg.MaxExecs > 0 && most > cfg.MaxExecs {
		t.Errorf("%d runs at once, limit %d", most, cfg.MaxExecs)
	}
	w.stop()
	if e.count() != 0 {
		t.Errorf("%d runners left by the shutdown", e.count())
	}
	return len(ids), ran
}

// checkAnswer fails the test for an answer that the contract does not know.
func checkAnswer(t *testing.T, ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	var f *fault.Error
	if !errors.As(err, &f) {
		t.Errorf("unclassified: %v", err)
		return
	}
	switch f.Detail {
	case DetailNotFound, DetailBusy, DetailExecQueue, DetailCreateQueue, DetailMaxSessions, DetailRunnerFailure, DetailFileNotFound:
	default:
		t.Errorf("unexpected answer: %v", err)
	}
	if errors.Is(err, runner.ErrNotFound) && f.Kind != fault.NotFound {
		t.Errorf("a lost runner is %v", err)
	}
}
