package oci

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// reaper waits for processes that the runtime has left to this one: each
// runner's process 1, agents, and whatever has lost its parent in a runner. No
// thread is kept for it.
type reaper struct {
	done   chan struct{} // closed by close
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
	close(r.done)
	r.jobs.Wait()
}

// start has the dead looked for from now on, until close: what a runtime had
// started in a runner when it was killed itself, the processes that gVisor has for
// those of a program, and what a runtime keeps beside process 1. As long as they
// are not waited for, their numbers are taken, a pid namespace does not end, and
// gVisor's runtime takes its sandbox for alive.
func (r *reaper) start() {
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	r.done = make(chan struct{})
	r.jobs.Go(func() {
		defer signal.Stop(died)
		for {
			reapStrays()
			select {
			case <-r.done:
				return
			case <-died:
			}
		}
	})
}

// reapStrays waits for dead children that nobody else waits for.
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

// isStray reports whether a child is dead and was not started here. What this
// process starts stays in its session, and in its process group or, like a
// runtime, at the head of one; what a runtime leaves behind has a session of its
// own or is a member of the runtime's group.
func isStray(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	rest := string(b[bytes.LastIndexByte(b, ')')+1:]) // a name may hold anything
	var state string
	var parent, group, session int
	if n, _ := fmt.Sscan(rest, &state, &parent, &group, &session); n < 4 || state != "Z" {
		return false
	}
	ours, err := unix.Getsid(0)
	return err == nil && (session != ours || group != pid && group != unix.Getpgrp())
}
