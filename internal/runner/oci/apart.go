package oci

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"

	runc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
)

// Some hosts have cgroups of version 1 with a hierarchy of version 2 beside them
// that has a controller or two of its own. crun refuses to work there. What it
// needs are those of version 1, so it is not shown the other.

// unifiedBeside is where that hierarchy is mounted.
var unifiedBeside = filepath.Join(cgroupRoot, "unified")

// mixedCgroups tells whether this host is such a one.
var mixedCgroups = sync.OnceValue(func() bool {
	b, err := os.ReadFile(filepath.Join(unifiedBeside, "cgroup.controllers"))
	return err == nil && strings.TrimSpace(string(b)) != ""
})

// startApart starts a process in a mount namespace of its own, without that
// hierarchy.
func startApart(m runc.ProcessMonitor, cmd *exec.Cmd) (chan runc.Exit, error) {
	started, ended := make(chan error), make(chan runc.Exit, 1)
	go func() {
		// Never unlocked: nothing else is to run on this thread, and it has to stay
		// as long as the process, which dies with it.
		goruntime.LockOSThread()
		err := hideUnified()
		var exit chan runc.Exit
		if err == nil {
			exit, err = m.Start(cmd)
		}
		started <- err
		if err == nil {
			ended <- <-exit
			close(ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return ended, nil
}

// hideUnified gives the calling thread mounts of its own, and takes that
// hierarchy away from them.
func hideUnified() error {
	err := unix.Unshare(unix.CLONE_NEWNS)
	// What the host unmounts is unmounted here too, and nothing the other way round.
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
	}
	if err == nil {
		err = unix.Unmount(unifiedBeside, unix.MNT_DETACH)
	}
	if err != nil {
		return fmt.Errorf("cannot hide %s from the runtime: %w", unifiedBeside, err)
	}
	return nil
}
