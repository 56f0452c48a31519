package oci

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// reaper waits for processes that the runtime has left to this one: each
// runner's process 1, and agents. A dead agent that nobody waits for would hold
// up the end of its runner's pid namespace. No thread is kept for it.
type reaper struct {
	mu     sync.Mutex
	held   map[*os.File]struct{}
	closed bool
	jobs   sync.WaitGroup
}

// add waits for a process in the background. One that is not a child of this
// process is somebody else's to wait for.
func (r *reaper) add(pid int) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return // it was waited for already
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		f.Close()
		return
	}
	if r.held == nil {
		r.held = map[*os.File]struct{}{}
	}
	r.held[f] = struct{}{}
	r.jobs.Go(func() {
		wait(f)
		r.mu.Lock()
		delete(r.held, f)
		r.mu.Unlock()
		f.Close()
	})
}

// wait returns when the process has ended and was waited for, or f is closed.
func wait(f *os.File) {
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Read(func(fd uintptr) bool {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PIDFD, int(fd), &info, unix.WEXITED|unix.WNOHANG, nil)
		return err != nil || info.Signo != 0
	})
}

// close leaves what is being waited for to whoever comes after this process.
func (r *reaper) close() {
	r.mu.Lock()
	r.closed = true
	for f := range r.held {
		f.Close()
	}
	r.mu.Unlock()
	r.jobs.Wait()
}

// reapMeanwhile calls reapStrays all the time, until the function that it returns
// is called.
func reapMeanwhile() (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			reapStrays()
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	return func() { close(done); <-ended }
}

// reapStrays waits for dead children that nobody else waits for: what a runtime
// had started in a runner when it was killed itself, and processes that a runtime
// keeps beside process 1. As long as they are not waited for, a pid namespace
// does not end and gVisor's runtime takes its sandbox for alive. A process that
// was started here is not in another pid namespace.
func reapStrays() {
	lists, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is well-formed
	for _, list := range lists {
		b, _ := os.ReadFile(list) // its thread may have ended
		for field := range strings.FieldsSeq(string(b)) {
			pid, err := strconv.Atoi(field)
			if err == nil && isStray(pid) {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			}
		}
	}
}

// isStray reports whether a child has died in another pid namespace.
func isStray(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	dead, elsewhere := false, false
	for line := range strings.Lines(string(b)) {
		switch f := strings.Fields(line); {
		case len(f) > 1 && f[0] == "State:":
			dead = f[1] == "Z"
		case len(f) > 2 && f[0] == "NSpid:":
			elsewhere = true
		}
	}
	return dead && elsewhere
}
