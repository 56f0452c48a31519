//go:build integration

package main

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// process is a service in a process of its own.
type process struct {
	testService
	cmd    *exec.Cmd
	output *tailWriter
	ended  chan error
	// adopted is for when the service answers: it has looked for runners then.
	adopted func()
}

// newState returns what a service and its successors have in common: no process
// yet. The test's end removes their runners.
func newState(t *testing.T) *testService {
	t.Helper()
	s := &testService{key: randomHex(), instance: "test-" + randomHex()[:12], stateDir: t.TempDir(), http: newHTTPClient()}
	shown.add("an API key", s.key)
	t.Cleanup(func() {
		if _, err := s.removeContainers(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// spawn starts this test binary as the service, on the state of s with settings
// NAME=value over the tests' own, and waits until it is healthy.
func (s *testService) spawn(t *testing.T, settings ...string) *process {
	t.Helper()
	p := s.fork(t, "/proc/self/exe", settings...)
	p.healthy(t)
	return p
}

// fork starts a program that is the service. It ends with the test.
func (s *testService) fork(t *testing.T, program string, settings ...string) *process {
	t.Helper()
	adopted, err := adopting()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{testService: *s, output: new(tailWriter), ended: make(chan error, 1), adopted: adopted}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	p.url = "http://" + address
	orphansAreInits(t)
	p.cmd = exec.Command(program, "serve")
	p.cmd.Env = append(append(os.Environ(), actAsService+"=1",
		"SANDBOX_API_KEY="+s.key, "SANDBOX_INSTANCE="+s.instance, "SANDBOX_STATE_DIR="+s.stateDir,
		"SANDBOX_LISTEN="+address, "SANDBOX_LOG_FORMAT=text", "SANDBOX_POOL_SIZE=0"), append(runnerSettings(), settings...)...)
	p.cmd.Stderr = p.output
	// A test that is killed takes its services along.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	t.Cleanup(func() {
		p.kill()
		adopted()
		if t.Failed() {
			t.Logf("the service's log ends with:\n%s", p.output.since(0))
		}
	})
	return p
}

// healthy waits until the service answers.
func (p *process) healthy(t *testing.T) {
	t.Helper()
	environ := []string{"SANDBOX_LISTEN=" + strings.TrimPrefix(p.url, "http://")}
	for range 600 {
		if healthcheck(t.Context(), environ) == nil {
			p.adopted()
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	p.kill()
	t.Fatalf("the service does not become healthy:\n%s", p.output.since(0))
}

// orphansAreInits has the processes of a runner whose service ends go to the
// host's init, as they do in the field. This process would be their parent, and
// wait for none of them, once it has had a driver that needs no engine.
func orphansAreInits(t *testing.T) {
	t.Helper()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
}

// kill ends the process as a crash does, unless it has ended.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	p.ended <- <-p.ended
}

// terminate ends the process in order.
func (p *process) terminate(t *testing.T) {
	t.Helper()
	p.lookAtMetrics()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.wait(t, time.Minute); err != nil {
		t.Errorf("the service ended with %v", err)
	}
}

// wait returns how the process ended.
func (p *process) wait(t *testing.T, within time.Duration) error {
	t.Helper()
	select {
	case err := <-p.ended:
		p.ended <- err // for the cleanup
		return err
	case <-time.After(within):
		t.Fatalf("the service has not ended after %v", within)
		return nil
	}
}

func TestSignals(t *testing.T) {
	s := newState(t)
	first := s.spawn(t)
	id, err := first.create()
	if err != nil {
		t.Fatal(err)
	}
	on := func(p *process) testSession { return testSession{&p.testService, id} }
	if a := on(first).put("uploads/kept.txt", []byte("kept")); a.status != 200 {
		t.Fatalf("put: %v", a)
	}

	var run answer
	var wg sync.WaitGroup
	wg.Go(func() { run = on(first).exec(context.Background(), span(3), 20*time.Second) })
	time.Sleep(time.Second)
	if err := first.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	if a := on(first).exec(context.Background(), "print(1)", time.Second); a.err == nil && a.status == 200 {
		t.Errorf("a stopping service takes new work: %v", a)
	}
	wg.Wait()
	if from, to := spanOf(t, run); to-from < 3 {
		t.Errorf("the run in hand was cut short: %v", run)
	}
	if err := first.wait(t, 20*time.Second); err != nil {
		t.Errorf("the service ended with %v", err)
	}

	// As a shell starts it with & in a script: SIGINT is ignored from the start.
	signal.Ignore(syscall.SIGINT)
	second := s.spawn(t)
	signal.Reset(syscall.SIGINT)
	on(second).alive(t)
	if got := on(second).read(t, "uploads/kept.txt"); string(got) != "kept" {
		t.Errorf("after the restart the file holds %q", got)
	}
	wg.Go(func() { run = on(second).exec(context.Background(), "import time; time.sleep(100)", 110*time.Second) })
	time.Sleep(time.Second)
	for range 2 {
		if err := second.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
	}
	var exit *exec.ExitError
	if err := second.wait(t, 10*time.Second); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("a second signal ended it with %v", err)
	}
	wg.Wait()
	if run.err == nil {
		t.Errorf("the run in hand was answered: %v", run)
	}

	third := s.spawn(t)
	on(third).alive(t)
	on(third).quiet(t)
	if got := on(third).read(t, "uploads/kept.txt"); string(got) != "kept" {
		t.Errorf("after the second restart the file holds %q", got)
	}
	if a := third.release(id); a.status != 200 {
		t.Errorf("delete: %v", a)
	}
	if err := third.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := third.wait(t, 20*time.Second); err != nil {
		t.Errorf("the service ended with %v", err)
	}
	if ids, err := s.containers(); err != nil || len(ids) != 0 {
		t.Errorf("left: %q, %v", ids, err)
	}
}
