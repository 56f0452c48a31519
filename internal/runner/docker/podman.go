package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/moby/moby/client"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// Podman speaks the engine's API, but for this: a seccomp profile is the name of
// a file, a tmpfs has no owner, a limit that is not asked for is raised to a
// million, which not every root may, and errors have words of its own.

// processesOfAll is a limit on the processes of all runners of a user together,
// so that it is no use as a limit on one. It is what Podman has itself where it
// may not raise limits.
const processesOfAll = 1 << 15

// giveAway makes the tmpfs of a new runner the program's: Podman refuses the
// options that would. It takes rights that runners do not have; nothing but
// process 1 runs there yet.
func (d *Driver) giveAway(ctx context.Context, id string) error {
	var script strings.Builder
	script.WriteString("set -e")
	for _, dir := range runner.Writable {
		fmt.Fprintf(&script, "; chown %d:%d %s; chmod %o %s", runner.ProgramUID, runner.ProgramGID, dir.Path, dir.Mode, dir.Path)
	}
	s, err := d.exec(ctx, id, client.ExecCreateOptions{
		User: "0:0", Privileged: true, AttachStdout: true, AttachStderr: true, WorkingDir: "/", Cmd: []string{"sh", "-c", script.String()},
	})
	if err != nil {
		return err
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	_, err = io.ReadAll(s)
	if said := s.Diagnostics(); err == nil && said != "" {
		err = errors.New(strings.TrimSpace(said))
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("cannot give the program its directories in container %s: %w", id, err)
	}
	return nil
}

// warnOfRootless says what Podman leaves out without a word to its callers where it
// runs without root.
func (d *Driver) warnOfRootless(ctx context.Context) {
	info, err := call(ctx, d.engine, "ask Podman about itself", func(ctx context.Context, c *client.Client) (client.SystemInfoResult, error) {
		return c.Info(ctx, client.InfoOptions{})
	})
	switch {
	case err != nil:
		d.log.Warn("Podman does not tell whether it runs without root, where it does not bound runners as it is asked to", "error", err)
	case !slices.Contains(info.Info.SecurityOptions, "name=rootless"):
	case info.Info.CgroupVersion == "1":
		d.log.Warn("Podman runs without root and with cgroups of version 1: it bounds neither memory, CPU and processes of runners nor their open files and core files")
	default:
		d.log.Warn("Podman runs without root: it may not bound open files and core files of runners as it is asked to")
	}
}

// stateImproper is Podman's word for a container that is stopped, and for one that
// is paused.
const stateImproper = "container state improper"

// listedHalf reports whether Podman gave up on a list because a container on it,
// anybody's, was removed meanwhile.
func listedHalf(err error) bool {
	return said(err, http.StatusInternalServerError, "container not known") ||
		said(err, http.StatusInternalServerError, "no such container")
}

// asStopped marks an error that means that the container is stopped.
func (d *Driver) asStopped(ctx context.Context, id string, err error) error {
	list, listErr := d.List(ctx)
	if listErr == nil && !slices.ContainsFunc(list, func(in runner.Instance) bool { return in.ID == id && in.Running }) {
		return fmt.Errorf("%w: %w", runner.ErrNotFound, err)
	}
	return err
}
