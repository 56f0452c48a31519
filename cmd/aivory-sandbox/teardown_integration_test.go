//go:build integration

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"
)

// span is a program that runs for so many seconds and tells when.
func span(seconds float64) string {
	return fmt.Sprintf("import time\na = time.time()\ntime.sleep(%v)\nprint([a, time.time()])", seconds)
}

func spanOf(t *testing.T, a answer) (from, to float64) {
	t.Helper()
	r, err := parseResult(a)
	var at [2]float64
	if err == nil {
		err = json.Unmarshal([]byte(r.Stdout), &at)
	}
	if err != nil {
		t.Fatalf("%v: %v", err, a)
	}
	return at[0], at[1]
}

func TestRunsOfOneSessionFollowEachOther(t *testing.T) {
	service := sharedService(t)
	s, other := service.session(t), service.session(t)
	var answers [3]answer
	var elsewhere answer
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = s.exec(context.Background(), span(1), 20*time.Second) })
	}
	wg.Go(func() { elsewhere = other.exec(context.Background(), span(1), 20*time.Second) })
	wg.Wait()
	for i := range answers {
		for j := range i {
			fromA, toA := spanOf(t, answers[i])
			fromB, toB := spanOf(t, answers[j])
			if fromA < toB && fromB < toA {
				t.Errorf("runs overlap: %v to %v, %v to %v", fromA, toA, fromB, toB)
			}
		}
	}
	// Containers share the machine's clock.
	beside := false
	from, to := spanOf(t, elsewhere)
	for _, a := range answers {
		start, end := spanOf(t, a)
		beside = beside || from < end && start < to
	}
	if !beside {
		t.Errorf("another session waited: %v", elsewhere)
	}
	s.alive(t)
}

func TestDeleteDuringARun(t *testing.T) {
	service := sharedService(t)
	s := service.session(t)
	var run, second, deleted answer
	var wg sync.WaitGroup
	began := time.Now()
	wg.Go(func() { run = s.exec(context.Background(), span(3), 20*time.Second) })
	time.Sleep(500 * time.Millisecond)
	wg.Go(func() { second = s.exec(context.Background(), "print('too late')", 20*time.Second) }) // waits when the DELETE comes
	time.Sleep(300 * time.Millisecond)
	wg.Go(func() { deleted = service.release(s.id) })
	time.Sleep(500 * time.Millisecond)
	for name, a := range map[string]answer{
		"exec": s.exec(context.Background(), "print(1)", time.Second), "list": s.post("/files/list", map[string]any{"session_id": s.id}),
		"get": s.get("x"), "put": s.put("x", []byte("x")),
	} {
		if a.status != 404 || a.took > 2*time.Second {
			t.Errorf("%s meanwhile: %v", name, a)
		}
	}
	if a := s.post("/files/reset-inputs", map[string]any{"session_id": s.id}); a.status != 200 || string(a.body) != `{"ok":false,"session_gone":true}` {
		t.Errorf("reset-inputs meanwhile: %v", a)
	}
	wg.Wait()
	if from, to := spanOf(t, run); to-from < 3 {
		t.Errorf("the run was cut short: %v", run)
	}
	if second.status != 404 {
		t.Errorf("the run that waited: %v", second)
	}
	if deleted.status != 200 || time.Since(began) < 3*time.Second {
		t.Errorf("the DELETE did not wait: %v", deleted)
	}
	if a := service.release(s.id); a.status != 200 {
		t.Errorf("a second DELETE: %v", a)
	}
}

func TestDeleteThatGivesUp(t *testing.T) {
	service := startService(t, "SANDBOX_QUEUE_TIMEOUT_SECONDS=1", "SANDBOX_POOL_SIZE=0")
	s := service.session(t)
	var run answer
	var wg sync.WaitGroup
	wg.Go(func() { run = s.exec(context.Background(), span(4), 20*time.Second) })
	time.Sleep(500 * time.Millisecond)
	if a := service.release(s.id); a.status != 429 {
		t.Errorf("a DELETE that cannot have the lock: %v", a)
	}
	wg.Wait()
	spanOf(t, run)
	s.alive(t)
}

func TestCreatesNeverExceedTheLimit(t *testing.T) {
	service := startService(t, "SANDBOX_MAX_SESSIONS=3", "SANDBOX_QUEUE_TIMEOUT_SECONDS=20", "SANDBOX_POOL_SIZE=1")
	watch, stop := context.WithCancel(t.Context())
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for watch.Err() == nil {
			ids, err := service.containers()
			if err != nil || len(ids) > 3 {
				t.Errorf("%d runners at once, %v", len(ids), err)
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	for range times(2, 20) {
		var answers [10]answer
		var wg sync.WaitGroup
		for i := range answers {
			wg.Go(func() { answers[i] = service.post("/sessions", nil) })
		}
		wg.Wait()
		var made []string
		for _, a := range answers {
			if id, err := sessionID(a); err == nil {
				made = append(made, id)
			} else if a.status != 429 {
				t.Error(err)
			}
		}
		if len(made) != 3 {
			t.Errorf("%d sessions were made", len(made))
		}
		for _, id := range made {
			if a := service.release(id); a.status != 200 {
				t.Errorf("delete: %v", a)
			}
		}
	}
	stop()
	watcher.Wait()
}

func TestAClientThatGoesAwayFreesItsSlot(t *testing.T) {
	service := startService(t, "SANDBOX_MAX_CONCURRENT_EXECS=1", "SANDBOX_QUEUE_TIMEOUT_SECONDS=20", "SANDBOX_POOL_SIZE=0")
	s, other := service.session(t), service.session(t)
	for range times(3, 50) {
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		a := s.exec(ctx, "import time; time.sleep(60)", 90*time.Second)
		cancel()
		if a.err == nil {
			t.Fatalf("answered: %v", a)
		}
		began := time.Now()
		other.alive(t)
		s.alive(t)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the slot was free after %v", took)
		}
	}
	r := s.run(t, "import os; print([p for p in os.listdir('/proc') if p.isdigit() and b'time.sleep(60)' in open(f'/proc/{p}/cmdline', 'rb').read()], [n for n in os.listdir('/tmp') if n != os.path.basename(__file__)])", 0)
	if r.Stdout != "[] []\n" {
		t.Errorf("left of the abandoned runs: %v", r)
	}
}
