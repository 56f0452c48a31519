package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A runner has a cgroup of the same path in every hierarchy. Runtimes make them
// and remove them; what is done here works whatever the runtime, and where its
// process was killed in between.

// cgroups returns the directories of a runner's cgroups.
func cgroups(id string) []string {
	// Some hierarchies are there under two names; nothing here minds.
	found, _ := filepath.Glob(filepath.Join(cgroupRoot, "*", cgroupParent, id)) // the pattern is well-formed
	if _, err := os.Stat(filepath.Join(cgroupRoot, cgroupParent, id)); err == nil {
		found = append(found, filepath.Join(cgroupRoot, cgroupParent, id))
	}
	return found
}

// members returns the processes in a runner's cgroups, by this host's numbers.
func members(id string) map[int]bool {
	pids := map[int]bool{}
	for _, dir := range cgroups(id) {
		// Programs can make no cgroups: none has children.
		b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs")) // gone meanwhile is empty
		for line := range strings.Lines(string(b)) {
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
				pids[pid] = true
			}
		}
	}
	return pids
}

// kill sends SIGKILL to a process if it is still what mine says. Numbers are used
// again: the look comes after the process is held.
func kill(pid int, mine func(pid int) bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("cannot open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !mine(pid) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return fmt.Errorf("cannot kill process %d: %w", pid, err)
	}
	return nil
}

// inside reports whether a process is in a cgroup of the runner.
func inside(id string, pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if strings.HasSuffix(strings.TrimRight(line, "\n"), "/"+cgroupParent+"/"+id) {
			return true
		}
	}
	return false
}

// killAll kills what is in a runner's cgroups until nothing is, or ctx ends. The
// end of process 1 takes the rest along, however fast it forks.
func killAll(ctx context.Context, id string) error {
	return killEach(ctx, id, func() map[int]bool { return members(id) }, func(pid int) bool { return inside(id, pid) })
}

// killMakers kills what is at work on a bundle outside of the runner's cgroups,
// until nothing is or ctx ends: crun makes a runner in a process that does not
// end with the one that was started, and would go on making what is removed.
func killMakers(ctx context.Context, id, bundle string) error {
	makes := func(pid int) bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return err == nil && strings.Contains(string(b), "\x00"+bundle+"\x00")
	}
	return killEach(ctx, id, func() map[int]bool {
		found := map[int]bool{}
		paths, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well-formed
		for _, path := range paths {
			if pid, err := strconv.Atoi(filepath.Base(path)); err == nil && makes(pid) {
				found[pid] = true
			}
		}
		return found
	}, makes)
}

// killEach kills what find finds until it finds nothing, or ctx ends.
func killEach(ctx context.Context, id string, find func() map[int]bool, mine func(pid int) bool) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		pids := find()
		if len(pids) == 0 {
			return nil
		}
		for pid := range pids {
			if err := kill(pid, mine); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot end the processes of runner %s: %w", id, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// waitForEnd waits until a process has ended, whoever's child it is, or ctx ends.
func waitForEnd(ctx context.Context, pidfd int) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 5)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("cannot wait for a process: %w", err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("a process does not end: %w", context.Cause(ctx))
		}
	}
}

// removeCgroups removes a runner's empty cgroups.
func removeCgroups(id string) error {
	var errs []error
	for _, dir := range cgroups(id) {
		// The last process may be on its way out.
		for pause := time.Millisecond; ; pause *= 2 {
			err := os.Remove(dir)
			if err == nil || errors.Is(err, os.ErrNotExist) {
				break
			}
			if pause > time.Second {
				errs = append(errs, fmt.Errorf("cannot remove a cgroup: %w", err))
				break
			}
			time.Sleep(pause)
		}
	}
	return errors.Join(errs...)
}
