package oci

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// A service that is not root makes runners in user namespaces: root in there is
// the service's user outside, and all others are numbers that the machine has set
// aside for it. Such a user has no cgroups, so nothing bounds a runner as a whole.

// rootless is what a user namespace of this service is made of; nil for root.
type rootless struct {
	users, groups []specs.LinuxIDMapping
}

// neededIDs is how many users a runner has to know, process 1's the last.
const neededIDs = runner.InitUID + 1

// lookForRootless finds out whether this user can make runners, and with which
// numbers. What is missing is an error that says what to do about it.
func lookForRootless(runtime string) (*rootless, error) {
	const doing = "cannot use the oci driver without root: "
	if runner.GVisor(runtime) {
		return nil, errors.New(doing + "gVisor needs root, to make namespaces and cgroups; use runc or crun, or start the service as root")
	}
	if filepath.Base(runtime) == crun && mixedCgroups() {
		return nil, errors.New(doing + "crun refuses cgroups of version 1 with controllers of version 2 beside them, and only root can hide those from it; " +
			"use runc, or start the service as root")
	}
	if b, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); err == nil && strings.TrimSpace(string(b)) == "0" {
		return nil, errors.New(doing + "user namespaces are turned off; sysctl user.max_user_namespaces=10000, or start the service as root")
	}
	for _, name := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, errors.New(doing + name + " is missing; install it (on Debian: apt-get install uidmap)")
		}
	}
	me, err := user.Current()
	if err != nil {
		return nil, fmt.Errorf(doing+"%w", err)
	}
	r := &rootless{}
	for _, of := range []struct {
		file, option string
		own          int
		mapping      *[]specs.LinuxIDMapping
	}{
		{"/etc/subuid", "--add-subuids", os.Geteuid(), &r.users},
		{"/etc/subgid", "--add-subgids", os.Getegid(), &r.groups},
	} {
		first, count := subordinate(of.file, me)
		if count < neededIDs-1 {
			return nil, fmt.Errorf(doing+"%s gives user %s %d numbers, and %d are needed; usermod %s 100000-165535 %s, with numbers that nobody has",
				of.file, me.Username, count, neededIDs-1, of.option, me.Username)
		}
		*of.mapping = []specs.LinuxIDMapping{
			{ContainerID: 0, HostID: uint32(of.own), Size: 1},
			{ContainerID: 1, HostID: first, Size: neededIDs - 1},
		}
	}
	return r, nil
}

// subordinate returns the first range of numbers that a file gives a user.
func subordinate(path string, u *user.User) (first uint32, count uint64) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) != 3 || fields[0] != u.Username && fields[0] != u.Uid {
			continue
		}
		start, startErr := strconv.ParseUint(fields[1], 10, 32)
		n, countErr := strconv.ParseUint(fields[2], 10, 32)
		if startErr == nil && countErr == nil {
			return uint32(start), n
		}
	}
	return 0, 0
}

// enter puts a runner into a user namespace, and takes from its configuration
// what needs root.
func (r *rootless) enter(c *specs.Spec, l runner.Limits) {
	c.Linux.Namespaces = append(c.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	c.Linux.UIDMappings, c.Linux.GIDMappings = r.users, r.groups
	c.Linux.CgroupsPath, c.Linux.Resources = "", nil
	var mounts []specs.Mount
	for _, m := range c.Mounts {
		if m.Type != "cgroup" && m.Destination != cgroupRoot {
			mounts = append(mounts, m)
		}
	}
	c.Mounts = mounts
	// Not RLIMIT_AS: runc itself has far more address space than memory. Of
	// processes the kernel counts those of one user in one user namespace.
	c.Process.Rlimits = append(c.Process.Rlimits, rlimit("RLIMIT_DATA", l.MemoryBytes)...)
	c.Process.Rlimits = append(c.Process.Rlimits, rlimit("RLIMIT_NPROC", max(l.PidsLimit, 0))...)
}

// waitForEntry waits until a new process 1 can be entered, which is a moment after
// its runtime has ended: as long as it is the runtime's own program, only root can
// look at it.
func (*rootless) waitForEntry(ctx context.Context, pid int) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for pause := time.Millisecond; ; pause *= 2 {
		if _, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid)); !errors.Is(err, os.ErrPermission) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// runDirectory holds the bundles and the runtime's state. It is on a tmpfs that a
// restart of the machine clears, as it ends the runners.
func runDirectory() string {
	if os.Geteuid() == 0 {
		return "/run/aivory-sandbox"
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "aivory-sandbox")
	}
	return fmt.Sprintf("/tmp/aivory-sandbox-%d", os.Geteuid())
}

// Bundles matches the bundles of all instances of this user on this host.
func Bundles() string { return filepath.Join(runDirectory(), "*", "bundles", "*") }
