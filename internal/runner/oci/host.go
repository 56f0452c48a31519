package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// host is what the driver needs to know of the machine.
type host struct {
	rootless        *rootless
	unified         bool   // cgroups are of version 2 alone
	swapLimit       bool   // swap can be limited
	cgroupNamespace bool   // the kernel knows cgroup namespaces
	mostFiles       uint64 // no limit on open files can be higher
}

// cgroupRoot is where cgroup hierarchies are mounted: the one of version 2, or
// one for each controller of version 1.
const cgroupRoot = "/sys/fs/cgroup"

// needed are the cgroup controllers that bound a runner.
var needed = []string{"memory", "cpu", "pids"}

// lookAtHost finds out what the machine can. What the driver cannot do without
// is an error.
func lookAtHost(runtime string) (host, error) {
	if os.Geteuid() != 0 {
		r, err := lookForRootless(runtime)
		return host{rootless: r, mostFiles: mostFiles()}, err
	}
	if err := checkPrivileges(); err != nil {
		return host{}, err
	}
	controllers, unified, err := controllers()
	if err != nil {
		return host{}, err
	}
	var missing []string
	for _, c := range needed {
		if !slices.Contains(controllers, c) {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		return host{}, fmt.Errorf("cannot bound runners: the cgroup controllers %s are not there; boot the kernel with them "+
			"(memory: cgroup_enable=memory), or, in a container, give it the host's cgroups", strings.Join(missing, ", "))
	}
	h := host{unified: unified, swapLimit: true, mostFiles: mostFiles()}
	if !unified {
		_, err := os.Stat(filepath.Join(cgroupRoot, "memory", "memory.memsw.limit_in_bytes"))
		h.swapLimit = err == nil
	}
	_, err = os.Stat("/proc/self/ns/cgroup")
	h.cgroupNamespace = err == nil
	return h, nil
}

// checkPrivileges looks for what every runtime needs of root to set a runner up.
func checkPrivileges() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("cannot read this process's capabilities: %w", err)
	}
	if data[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		return errors.New("cannot use the oci driver: this process lacks CAP_SYS_ADMIN; in a container, start it with --privileged")
	}
	return nil
}

// controllers returns the cgroup controllers that can be used, and whether they
// are those of version 2.
func controllers() (names []string, unified bool, err error) {
	if b, err := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return strings.Fields(string(b)), true, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil || len(entries) == 0 {
		return nil, false, fmt.Errorf("cannot bound runners: no cgroups are mounted at %s: %w; mount them, or, in a container, "+
			"give it the host's", cgroupRoot, errors.Join(err, os.ErrNotExist))
	}
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(cgroupRoot, e.Name(), "cgroup.procs")); err == nil {
			names = append(names, e.Name())
		}
	}
	return names, false, nil
}

func mostFiles() uint64 {
	if b, err := os.ReadFile("/proc/sys/fs/nr_open"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
			return n
		}
	}
	return 1 << 20
}
