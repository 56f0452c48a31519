package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/moby/moby/client"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

const (
	// createGrace is how long a create that nobody waits for any more may take
	// to answer: cut off, the engine would go on and leave the container behind.
	createGrace = 5 * time.Second
	// cleanupTimeout bounds the removal of a container that came to nothing.
	cleanupTimeout = 10 * time.Second
)

// Create implements runner.Driver. The image is looked for, and pulled, where
// this process has not seen it or the engine has lost it since. A caller that
// goes away while the engine makes the container is held for a few seconds, so
// that it can be removed. Where the engine does not answer at all, the container
// may come to be later; it never runs.
func (d *Driver) Create(ctx context.Context, spec runner.Spec) (string, error) {
	if !runner.ValidSessionID(spec.SessionID) {
		return "", fmt.Errorf("cannot create a runner for session %q: not 32 hexadecimal digits", spec.SessionID)
	}
	img, err := d.ensureImage(ctx)
	if err != nil {
		return "", err
	}
	id, err := d.makeContainer(ctx, spec, img)
	if noSuchImage(err) {
		d.image.set(nil)
		if img, err = d.ensureImage(ctx); err == nil {
			id, err = d.makeContainer(ctx, spec, img)
		}
		if noSuchImage(err) {
			d.image.set(nil)
			err = fault.Wrap(fault.Internal, detailNoImage, err)
		}
	}
	if err != nil {
		return "", err
	}
	if err := d.startContainer(ctx, spec, id); err != nil {
		d.discard(ctx, id)
		return "", err
	}
	return id, nil
}

// makeContainer makes a container and returns its name. After an error there is
// none.
func (d *Driver) makeContainer(ctx context.Context, spec runner.Spec, img *image) (string, error) {
	withQuota := spec.Limits.DiskSize != "" && !d.quotaRefused.Load()
	id, err := d.postCreate(ctx, spec, img, withQuota)
	if withQuota && refused(err) && !noSuchImage(err) && ctx.Err() == nil {
		reason := err
		if id, err = d.postCreate(ctx, spec, img, false); err == nil && aboutQuota(reason) && d.quotaRefused.CompareAndSwap(false, true) {
			d.log.Warn("the engine's storage driver has no disk quota, runners are made without",
				"size", spec.Limits.DiskSize, "reason", reason)
		}
	}
	return id, err
}

// aboutQuota reports whether the engine refused the size of the writable layer
// as such, so that it would refuse it every time.
func aboutQuota(err error) bool {
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "storage-opt") || strings.Contains(text, "storage opt") || strings.Contains(text, "quota")
}

func (d *Driver) postCreate(ctx context.Context, spec runner.Spec, img *image, withQuota bool) (string, error) {
	seccomp, err := d.seccomp.option(d.engine.podman.Load())
	if err != nil {
		return "", err
	}
	options := d.containerOptions(spec, img, withQuota, seccomp)
	lasting, cancel := runner.Outlast(ctx, createGrace)
	defer cancel()
	made, err := call(lasting, d.engine, "create container "+options.Name, func(ctx context.Context, c *client.Client) (client.ContainerCreateResult, error) {
		return c.ContainerCreate(ctx, options)
	})
	if err == nil && ctx.Err() != nil {
		err = fmt.Errorf("cannot create container %s: %w", options.Name, context.Cause(ctx))
	}
	if err == nil {
		d.noteWarnings(made.Warnings)
		// Not its identifier: a name shows a proxy that it is a runner's.
		return options.Name, nil
	}
	if !refused(err) {
		d.discard(ctx, options.Name)
	}
	return "", err
}

// startContainer starts a container that was made.
func (d *Driver) startContainer(ctx context.Context, spec runner.Spec, id string) error {
	if !spec.Limits.ReadOnlyRootfs {
		err := do(ctx, d.engine, "prepare directories in container "+id, func(ctx context.Context, c *client.Client) error {
			_, err := c.CopyToContainer(ctx, id, client.CopyToContainerOptions{
				DestinationPath:           "/",
				Content:                   writableDirs(spec.CreatedAt),
				AllowOverwriteDirWithFile: true, // a symlink in the image gives way
			})
			return err
		})
		if err != nil {
			return err
		}
	}
	err := do(ctx, d.engine, "start container "+id, func(ctx context.Context, c *client.Client) error {
		_, err := c.ContainerStart(ctx, id, client.ContainerStartOptions{})
		return err
	})
	if err != nil || !d.engine.podman.Load() || !spec.Limits.ReadOnlyRootfs {
		return err
	}
	return d.giveAway(ctx, id)
}

// writableDirs is a tar of the directories that a program writes to, for the
// writable layer of an ordinary image, which has them not or as root's.
func writableDirs(now time.Time) *bytes.Buffer {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, dir := range runner.Writable {
		// Writing a directory's header to memory cannot fail.
		_ = w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeDir,
			Name:     strings.TrimPrefix(dir.Path, "/") + "/",
			Mode:     int64(dir.Mode),
			Uid:      runner.ProgramUID,
			Gid:      runner.ProgramGID,
			ModTime:  now,
		})
	}
	_ = w.Close()
	return &b
}

// discard removes a container that came to nothing, whatever became of ctx.
func (d *Driver) discard(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := d.Destroy(ctx, id); err != nil {
		d.log.Warn("container left behind after a failed create", "container", id, "error", err)
	}
}
