package oci

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	runc "github.com/containerd/go-runc"
	"github.com/opencontainers/runtime-spec/specs-go"
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
	configs := make(map[string]*specs.Spec, len(entries))
	for _, e := range entries {
		if id := e.Name(); handlePattern.MatchString(id) {
			configs[id], _ = d.readConfig(id) // nil where it is not all there
		}
	}
	running, err := d.running(ctx, configs)
	if err != nil {
		return nil, err
	}
	var list []runner.Instance
	for _, e := range entries {
		id := e.Name()
		config, ours := configs[id]
		if !ours {
			continue
		}
		in := runner.Instance{ID: id, SessionID: id[len(runner.NamePrefix):], Running: running[id]}
		if info, err := e.Info(); err == nil {
			in.CreatedAt = info.ModTime()
		}
		if config == nil {
			in.Running = false // it cannot be dialled without
		} else if sec, err := strconv.ParseInt(config.Annotations[noteCreated], 10, 64); err == nil {
			in.CreatedAt = time.Unix(sec, 0)
		}
		list = append(list, in)
	}
	return list, nil
}

// running tells of which runners process 1 lives. One that is paused holds its
// files; somebody means to wake it.
func (d *Driver) running(ctx context.Context, configs map[string]*specs.Spec) (map[string]bool, error) {
	running := map[string]bool{}
	made := map[*runtime][]string{}
	for id, config := range configs {
		r, err := d.runtimeFor(config)
		if err != nil {
			d.log.Warn("runner cannot be reached", "runner", id, "error", err)
			running[id] = d.lives(id)
			continue
		}
		made[r] = append(made[r], id)
	}
	for r, ids := range made {
		found, err := listAll(ctx, r)
		if err != nil && ctx.Err() == nil {
			found = d.listEach(ctx, r, ids)
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("cannot list runners: %w", context.Cause(ctx))
		}
		maps.Copy(running, found)
	}
	return running, nil
}

// listTimeout is how long a runtime may take to list all runners before they are
// asked for one by one, and each of them then.
const listTimeout = 10 * time.Second

var errListTimeout = errors.New("the runtime does not list runners in time")

// listAll has a runtime list its runners: which of them run. It fails at all where
// the state of one comes or goes meanwhile, so it is asked again.
func listAll(ctx context.Context, r *runtime) (map[string]bool, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, listTimeout, errListTimeout)
	defer cancel()
	for try := 0; ; try++ {
		found, err := r.list(ctx)
		if err == nil {
			running := map[string]bool{}
			for _, c := range found {
				running[c.ID] = runs(c)
			}
			return running, nil
		}
		if ctx.Err() != nil || try == 3 {
			return nil, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func runs(c *runc.Container) bool {
	return (c.Status == "running" || c.Status == "paused") && !leaving(c.Pid)
}

// listEach asks for each runner by itself: gVisor's runtime asks their sandboxes,
// and one that hangs keeps it from telling of the others. That one is taken for
// dead. Where the runtime does not tell of one, its process 1 does: none that
// lives is to be taken for dead for that.
func (d *Driver) listEach(ctx context.Context, r *runtime, ids []string) map[string]bool {
	var mu sync.Mutex
	running := map[string]bool{}
	var jobs errgroup.Group
	jobs.SetLimit(8)
	for _, id := range ids {
		jobs.Go(func() error {
			short, cancel := context.WithTimeoutCause(ctx, listTimeout, errListTimeout)
			defer cancel()
			c, err := r.client.State(short, id)
			alive := false
			switch {
			case err == nil:
				alive = runs(c)
			case short.Err() != nil:
				d.log.Warn("runner does not tell its state and is taken for dead", "runner", id)
			default:
				if alive = d.lives(id); alive {
					d.log.Warn("the runtime does not tell a runner's state", "runner", id, "error", err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			running[id] = alive
			return nil
		})
	}
	_ = jobs.Wait() // nothing fails
	return running
}

// lives tells whether a runner's process 1 is there.
func (d *Driver) lives(id string) bool {
	pid, err := readPid(filepath.Join(d.bundle(id), pidFile))
	return err == nil && inside(id, pid) && !leaving(pid)
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
	config, _ := d.readConfig(id) // nil where it is not all there
	r, err := d.runtimeFor(config)
	if err != nil {
		r = d.runtime // whose files go by the runner's name, as the other's do
	}
	ctx, cancel := r.limited(ctx)
	defer cancel()
	if err := d.end(ctx, r, id); err != nil {
		return err
	}
	if err := r.remove(ctx, id); err != nil {
		return err
	}
	err = errors.Join(removeCgroups(id), r.forget(id), d.removeLayer(id))
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
func (d *Driver) end(ctx context.Context, r *runtime, id string) error {
	if r.name == crun || d.host.rootless != nil {
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
