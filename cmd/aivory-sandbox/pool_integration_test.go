//go:build integration

package main

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// runners returns the sessions that this service's runners bear, dead ones
// included, in order.
func (s *testService) runners(t *testing.T) []string {
	t.Helper()
	found, err := s.outsides()
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, o := range found {
		ids = append(ids, o.session)
	}
	slices.Sort(ids)
	return ids
}

// come waits until there are n runners and none is being made or removed.
func (s *testService) come(t *testing.T, n int) []string {
	t.Helper()
	var ids []string
	quiet := 0
	for range 600 {
		now := s.runners(t)
		if len(now) == n && slices.Equal(now, ids) {
			if quiet++; quiet == 5 {
				return ids
			}
		} else {
			quiet = 0
		}
		ids = now
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("%d runners, want %d: %q", len(ids), n, ids)
	return nil
}

// TestPool claims runners of the pool, kills one, and restarts the service.
func TestPool(t *testing.T) {
	settings := []string{"SANDBOX_POOL_SIZE=2", "SANDBOX_MAX_SESSIONS=3", "SANDBOX_PRELOAD=json"}
	service := startService(t, settings...)
	before := service.come(t, 2)
	a := service.session(t)
	if !slices.Contains(before, a.id) {
		t.Errorf("session %s was not made ahead of need: %q", a.id, before)
	}
	a.alive(t)
	if r := a.put("x.txt", []byte("x")); r.status != 200 {
		t.Fatal(r)
	}

	// The oldest one is next in turn, and dead.
	pooled := slices.DeleteFunc(service.come(t, 3), func(id string) bool { return id == a.id })
	dead := pooled[0]
	if !slices.Contains(before, dead) {
		dead = pooled[1]
	}
	service.killContainer(t, dead)
	time.Sleep(500 * time.Millisecond)
	b := service.session(t)
	if b.id == dead || !slices.Contains(pooled, b.id) {
		t.Errorf("session %s, the dead one is %s of %q", b.id, dead, pooled)
	}
	b.alive(t)
	if ids := service.come(t, 3); slices.Contains(ids, dead) {
		t.Error("the dead one is still there")
	}

	c := service.session(t)
	if r := service.post("/sessions", nil); r.status != 429 {
		t.Errorf("a fourth session: %v", r)
	}
	if err := service.halt(); err != nil {
		t.Fatal(err)
	}
	again, err := launch(service.stateDir, append(settings, "SANDBOX_API_KEY="+service.key, "SANDBOX_INSTANCE="+service.instance)...)
	if err != nil {
		t.Fatal(err)
	}
	*service = *again // its cleanup is the first one's
	for _, s := range []testSession{a, b, c} {
		s.alive(t)
	}
	if got := a.read(t, "x.txt"); string(got) != "x" {
		t.Errorf("x.txt holds %q", got)
	}
	if a := service.release(c.id); a.status != 200 {
		t.Error(a)
	}
	before = slices.DeleteFunc(service.come(t, 3), func(id string) bool { return id == a.id || id == b.id })

	// An orderly stop leaves sessions alone.
	if err := service.halt(); err != nil {
		t.Fatal(err)
	}
	left := []string{a.id, b.id}
	slices.Sort(left)
	if ids := service.runners(t); !slices.Equal(ids, left) {
		t.Errorf("left by a stop: %q, sessions %q", ids, left)
	}
	if again, err = launch(service.stateDir, append(settings, "SANDBOX_API_KEY="+service.key, "SANDBOX_INSTANCE="+service.instance)...); err != nil {
		t.Fatal(err)
	}
	*service = *again
	if ids := service.come(t, 3); slices.Contains(ids, before[0]) {
		t.Error("a runner of the last pool is still there")
	}
	a.alive(t)
}

// TestPoolOfAKilledService kills the service with a filled pool, and then over
// and over while it fills the pool and hands it out: every session that was
// answered goes on, and each runner is one that a record names.
func TestPoolOfAKilledService(t *testing.T) {
	s := newState(t)
	settings := []string{"SANDBOX_POOL_SIZE=2", "SANDBOX_MAX_SESSIONS=0", "SANDBOX_PRELOAD="}
	p := s.spawn(t, settings...)
	filled := s.come(t, 2)
	p.kill()
	p = s.spawn(t, settings...)
	for _, id := range s.come(t, 2) {
		if slices.Contains(filled, id) {
			t.Errorf("%s is still there", id)
		}
	}
	claimed, err := p.create()
	if err != nil {
		t.Fatal(err)
	}
	p.kill()

	var mu sync.Mutex
	answered := []string{claimed}
	for range times(6, 100) {
		p := s.fork(t, "/proc/self/exe", settings...)
		p.healthy(t)
		var creating sync.WaitGroup
		for range 2 {
			creating.Go(func() {
				for {
					a := p.post("/sessions", nil)
					if a.err != nil {
						return
					}
					id, err := sessionID(a)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					keep := len(answered) < times(8, 20)
					if keep {
						answered = append(answered, id)
					}
					mu.Unlock()
					if !keep {
						p.release(id)
					}
					time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
				}
			})
		}
		time.Sleep(time.Duration(500+rand.IntN(3500)) * time.Millisecond)
		p.kill()
		creating.Wait()
	}

	p = s.spawn(t, "SANDBOX_POOL_SIZE=0")
	for _, id := range answered {
		testSession{&p.testService, id}.alive(t)
	}
	var ids, records []string
	for range 300 { // what was to be removed goes meanwhile
		ids, records = s.runners(t), nil
		for _, path := range must(filepath.Glob(filepath.Join(s.stateDir, "sessions", "*.session"))) {
			records = append(records, strings.TrimSuffix(filepath.Base(path), ".session"))
		}
		if slices.Sort(records); slices.Equal(ids, records) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if !slices.Equal(ids, records) {
		t.Errorf("runners %q, records %q", ids, records)
	}
	t.Logf("%d sessions were answered, %d are kept", len(answered), len(records))
	p.terminate(t)
}
