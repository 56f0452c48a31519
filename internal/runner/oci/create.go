package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci/image"
)

const detailNoImage = "the runner image is not available"

const (
	// createGrace is how long a create that nobody waits for any more may go on
	// before its runtime is killed, so that most end in order.
	createGrace = 5 * time.Second
	// cleanupTimeout bounds the removal of a runner that came to nothing.
	cleanupTimeout = 10 * time.Second
)

// handlePattern is what this driver calls runners. Handles become paths and
// come from stored state.
var handlePattern = regexp.MustCompile(`^` + runner.NamePrefix + `[0-9a-f]{32}$`)

// handle is the runner's name for the runtime, its bundle and its cgroup.
func handle(sessionID string) string { return runner.NamePrefix + sessionID }

func (d *Driver) bundle(id string) string { return filepath.Join(d.bundles, id) }

// Create implements runner.Driver. The image must have been imported.
func (d *Driver) Create(ctx context.Context, spec runner.Spec) (string, error) {
	if !runner.ValidSessionID(spec.SessionID) {
		return "", fmt.Errorf("cannot create a runner for session %q: not 32 hexadecimal digits", spec.SessionID)
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("cannot create a runner: %w", context.Cause(ctx))
	}
	id := handle(spec.SessionID)
	if err := d.prepare(spec, id); err != nil {
		return "", err
	}
	lasting, cancel := runner.Outlast(ctx, createGrace)
	defer cancel()
	pid, err := d.run(lasting, id)
	if err == nil {
		d.reaper.add(pid)
		if d.host.rootless != nil {
			d.host.rootless.waitForEntry(lasting, pid)
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("cannot create runner %s: %w", id, context.Cause(ctx))
		}
	}
	if err != nil {
		d.discard(ctx, id)
		return "", err
	}
	return id, nil
}

// run starts a runner from its bundle and returns its process identifier on this
// host. After an error the runtime may know of the runner.
func (d *Driver) run(ctx context.Context, id string) (int, error) {
	pid, err := d.runtime.run(ctx, id, d.bundle(id))
	for try := 1; unsealed(err) && try < sealTries; try++ {
		if removeErr := d.runtime.remove(ctx, id); removeErr != nil {
			return 0, errors.Join(err, removeErr)
		}
		pid, err = d.runtime.run(ctx, id, d.bundle(id))
	}
	return pid, err
}

// prepare makes the bundle. After an error there is none. From here on, the
// image is in use.
func (d *Driver) prepare(spec runner.Spec, id string) (err error) {
	img, release, err := d.cfg.Images.Hold(d.cfg.Image)
	if err != nil {
		return fault.Wrap(fault.Internal, detailNoImage, err)
	}
	defer release()
	d.imageSeen.Store(true)
	if err := os.Mkdir(d.bundle(id), 0o700); err != nil {
		return fmt.Errorf("cannot make the bundle of runner %s: %w", id, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.removeLayer(id), os.RemoveAll(d.bundle(id)))
		}
	}()
	root := img.Root
	if !spec.Limits.ReadOnlyRootfs {
		if root, err = d.makeLayer(id, img, spec.Limits); err != nil {
			return err
		}
	}
	config, err := d.config(spec, img, root)
	if err != nil {
		return err
	}
	b, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("cannot render the configuration of runner %s: %w", id, err)
	}
	if err := os.WriteFile(filepath.Join(d.bundle(id), image.BundleConfig), b, 0o600); err != nil {
		return fmt.Errorf("cannot write the configuration of runner %s: %w", id, err)
	}
	return nil
}

// readConfig reads what the runtime was told of a runner.
func (d *Driver) readConfig(id string) (*specs.Spec, error) {
	b, err := os.ReadFile(filepath.Join(d.bundle(id), image.BundleConfig))
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration of runner %s: %w", id, err)
	}
	c := &specs.Spec{}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("cannot read the configuration of runner %s: %w", id, err)
	}
	return c, nil
}

// runtimeFor returns the runtime that has made a runner: an earlier service may have
// used another. One that is only kept elsewhere now is the same, and where there is
// no configuration any will do, to remove what there is.
func (d *Driver) runtimeFor(config *specs.Spec) (*runtime, error) {
	if config == nil {
		return d.runtime, nil
	}
	path := config.Annotations[noteRuntime]
	if path == "" || filepath.Base(path) == d.runtime.name {
		return d.runtime, nil
	}
	if r, ok := d.others.Load(path); ok {
		return r.(*runtime), nil
	}
	r, err := newRuntime(path, d.runtime.root, d.cfg.CallTimeout)
	if err != nil {
		return nil, err
	}
	kept, _ := d.others.LoadOrStore(path, r)
	return kept.(*runtime), nil
}

// discard removes a runner that came to nothing, whatever became of ctx.
func (d *Driver) discard(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := d.Destroy(ctx, id); err != nil {
		d.log.Warn("runner left behind after a failed create", "runner", id, "error", err)
	}
}
