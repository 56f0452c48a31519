package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	runc "github.com/containerd/go-runc"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// List implements runner.Driver. A bundle is a runner: it is made first and
// removed last, so one without a running process 1 is what a killed service or
// an ended machine left.
func (d *Driver) List(ctx context.Context) ([]runner.Instance, error) {
	entries, err := os.ReadDir(d.bundles)
	if err != nil {
		return nil, fmt.Errorf("cannot list runners: %w", err)
	}
	if len(entries) == 0 {
		return nil, nil
	}
	running, err := d.running(ctx)
	if err != nil {
		return nil, err
	}
	var list []runner.Instance
	for _, e := range entries {
		id := e.Name()
		if !handlePattern.MatchString(id) {
			continue
		}
		in := runner.Instance{ID: id, SessionID: id[len(runner.NamePrefix):], Running: running[id]}
		if info, err := e.Info(); err == nil {
			in.CreatedAt = info.ModTime()
		}
		config, err := d.readConfig(id)
		if err != nil {
			in.Running = false // it cannot be dialled without
		} else if sec, err := strconv.ParseInt(config.Annotations[noteCreated], 10, 64); err == nil {
			in.CreatedAt = time.Unix(sec, 0)
		}
		list = append(list, in)
	}
	return list, nil
}

// running returns the runners whose process 1 lives. One that is paused holds
// its files; somebody means to wake it.
func (d *Driver) running(ctx context.Context) (map[string]bool, error) {
	short, cancel := context.WithTimeoutCause(ctx, listTimeout, errListTimeout)
	defer cancel()
	found, err := d.runtime.list(short)
	for try := 0; err != nil && short.Err() == nil && try < 3; try++ {
		time.Sleep(50 * time.Millisecond)
		found, err = d.runtime.list(short)
	}
	if err != nil && ctx.Err() == nil {
		found, err = d.listEach(ctx)
	}
	if err != nil {
		return nil, err
	}
	running := map[string]bool{}
	for _, c := range found {
		running[c.ID] = (c.Status == "running" || c.Status == "paused") && !leaving(c.Pid)
	}
	return running, nil
}

// listTimeout is how long a runtime may take to list all runners before they are
// asked for one by one, and each of them then.
const listTimeout = 10 * time.Second

var errListTimeout = errors.New("the runtime does not list runners in time")

// listEach asks for each runner by itself: gVisor's runtime asks their sandboxes,
// and one that hangs keeps it from telling of the others, as does one whose state
// comes or goes meanwhile. One that hangs is left out. Where the runtime does not
// tell of one, its process 1 does: none that lives is to be taken for dead.
func (d *Driver) listEach(ctx context.Context) ([]*runc.Container, error) {
	entries, err := os.ReadDir(d.bundles)
	if err != nil {
		return nil, fmt.Errorf("cannot list runners: %w", err)
	}
	found := make([]*runc.Container, len(entries))
	var jobs errgroup.Group
	jobs.SetLimit(8)
	for i, e := range entries {
		jobs.Go(func() error {
			short, cancel := context.WithTimeoutCause(ctx, listTimeout, errListTimeout)
			defer cancel()
			c, err := d.runtime.client.State(short, e.Name())
			pid, pidErr := readPid(filepath.Join(d.bundle(e.Name()), pidFile))
			switch {
			case err == nil:
				found[i] = c
			case short.Err() != nil:
				d.log.Warn("runner does not tell its state and is taken for dead", "runner", e.Name())
			case pidErr == nil && inside(e.Name(), pid):
				d.log.Warn("the runtime does not tell a runner's state", "runner", e.Name(), "error", err)
				found[i] = &runc.Container{ID: e.Name(), Status: "running", Pid: pid}
			}
			return nil
		})
	}
	_ = jobs.Wait() // nothing fails
	return slices.DeleteFunc(found, func(c *runc.Container) bool { return c == nil }), context.Cause(ctx)
}

// leaving tells whether a process is on its way out, though not dead: process 1
// of a pid namespace waits for all others there, who may wait for a parent
// outside. It has given up its namespaces by then, so nobody can enter any more.
func leaving(pid int) bool {
	_, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/ipc", pid))
	return errors.Is(err, os.ErrNotExist)
}

// Destroy implements runner.Driver. It does not rely on the runtime to know the
// runner: a create that was killed half-way is removed as well.
func (d *Driver) Destroy(ctx context.Context, id string) error {
	if !handlePattern.MatchString(id) {
		return nil // no runner has that name
	}
	ctx, cancel := d.runtime.limited(ctx)
	defer cancel()
	if err := d.end(ctx, id); err != nil {
		return err
	}
	if err := d.runtime.remove(ctx, id); err != nil {
		return err
	}
	err := errors.Join(removeCgroups(id), d.runtime.forget(id), d.removeLayer(id))
	if err != nil {
		return fmt.Errorf("cannot remove all of runner %s: %w", id, err)
	}
	if err := os.RemoveAll(d.bundle(id)); err != nil {
		return fmt.Errorf("cannot remove the bundle of runner %s: %w", id, err)
	}
	return nil
}

// end kills all processes of a runner and waits for process 1 to end. It is
// quicker than the runtimes' own ways, which look ten times a second.
func (d *Driver) end(ctx context.Context, id string) error {
	if d.runtime.name == crun || d.host.rootless != nil {
		if err := killMakers(ctx, id, d.bundle(id)); err != nil {
			return err
		}
	}
	if d.host.rootless != nil {
		return nil // the runtime has to find what there is
	}
	pid, err := readPid(filepath.Join(d.bundle(id), pidFile))
	if err != nil {
		return killAll(ctx, id) // it never came to run
	}
	// Held before it dies, for numbers are used again.
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return killAll(ctx, id)
	}
	defer unix.Close(fd)
	ours := inside(id, pid)
	if ours {
		// It takes all others along at once. One by one, an agent could outlive its
		// program for long enough to tell that somebody has killed that.
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // what remains is killed all the same
	}
	if err := killAll(ctx, id); err != nil || !ours {
		return err
	}
	return waitForEnd(ctx, fd)
}
