package oci

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// Dial implements runner.Driver. Besides the context the call timeout bounds the
// start. The command holds the other ends of the stream's pipes itself, so it
// sees their end when this process ends, however that comes.
func (d *Driver) Dial(ctx context.Context, id string, command, env []string) (runner.Stream, error) {
	if !handlePattern.MatchString(id) {
		return nil, fmt.Errorf("cannot dial %q: %w", id, runner.ErrNotFound)
	}
	config, err := d.readConfig(id)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: %w", runner.ErrNotFound, err)
	}
	if err != nil {
		return nil, err
	}
	process := *config.Process
	// gVisor runs a command as root where no user is given.
	process.User = specs.User{UID: runner.ProgramUID, GID: runner.ProgramGID, AdditionalGids: []uint32{runner.ProgramGID}}
	if d.host.rootless != nil {
		process.User.AdditionalGids = nil // runc would not try to set them
	}
	process.Args = command
	process.Env = mergeEnv(process.Env, env)

	var s *stream
	r, err := d.runtimeFor(config)
	if err == nil {
		s, err = d.start(ctx, r, id, process)
		for try := 1; unsealed(err) && try < sealTries; try++ {
			s, err = d.start(ctx, r, id, process)
		}
	} else {
		err = fmt.Errorf("cannot start a command in runner %s: %w", id, err)
	}
	if err == nil {
		return s, nil
	}
	if ctx.Err() != nil {
		return nil, err
	}
	// Runtimes have different words for a runner that is gone or has stopped.
	if running, listErr := d.running(ctx, map[string]*specs.Spec{id: config}); listErr == nil && !running[id] {
		err = fmt.Errorf("%w: %w", runner.ErrNotFound, err)
	}
	return nil, err
}

// start starts a process in a runner, with a stream to it. Where ctx ends before,
// the runtime goes on behind it: cut off, it would leave half a process.
func (d *Driver) start(ctx context.Context, r *runtime, id string, process specs.Process) (*stream, error) {
	s, files, err := newStream()
	if err != nil {
		return nil, fmt.Errorf("cannot dial runner %s: %w", id, err)
	}
	started := make(chan error, 1)
	d.jobs.Go(func() {
		defer files.close()
		pid, err := d.exec(context.WithoutCancel(ctx), r, id, process, files)
		if err == nil {
			d.reaper.add(pid)
		}
		started <- err
	})
	select {
	case err = <-started:
	case <-ctx.Done():
		err = fmt.Errorf("cannot dial runner %s: %w", id, context.Cause(ctx))
	}
	if err != nil {
		if said := s.lastWords(ctx); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// exec starts a process in a runner.
func (d *Driver) exec(ctx context.Context, r *runtime, id string, process specs.Process, files stdio) (int, error) {
	f, err := os.CreateTemp(d.bundle(id), "exec-")
	if err != nil {
		return 0, fmt.Errorf("cannot start a command in runner %s: %w", id, err)
	}
	f.Close()
	defer os.Remove(f.Name())
	return r.exec(ctx, id, f.Name(), process, files)
}
