package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/config"
)

// doctorTimeout bounds all of it; an image may have to be pulled.
const doctorTimeout = 10 * time.Minute

type doctorCommand struct{}

// Run makes each check and fails where one of them does.
func (doctorCommand) Run(i *invocation) error {
	ctx, cancel := context.WithTimeout(i.ctx, doctorTimeout)
	defer cancel()
	d := &doctor{out: i.stdout}
	cfg, ok := d.configuration(i.environ)
	if !ok {
		return exitCode(1)
	}
	d.listen(ctx, cfg, i.environ)
	d.directory("state directory", "SANDBOX_STATE_DIR", cfg.StateDir)
	if cfg.LocalStorageDir != "" {
		d.directory("local storage", "SANDBOX_LOCAL_STORAGE_DIR", cfg.LocalStorageDir)
	} else {
		d.say(good, "local storage", "none: SANDBOX_LOCAL_STORAGE_DIR is not set, so workspaces are kept only where requests name an object store")
	}
	d.host(cfg)
	d.runner(ctx, cfg)
	if d.failed {
		return exitCode(1)
	}
	return nil
}

// verdict is what a check comes to.
type verdict string

const (
	good    verdict = "ok"
	warning verdict = "warn"
	bad     verdict = "FAIL"
)

// doctor makes checks and prints a line for each. What is wrong comes with what
// to do.
type doctor struct {
	out    io.Writer
	failed bool
}

func (d *doctor) say(v verdict, what, format string, args ...any) {
	d.failed = d.failed || v == bad
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "\n      ")
	fmt.Fprintf(d.out, "%-4s  %s: %s\n", v, what, text)
}

// configuration reads the environment. A missing key is said and then done
// without, so that the other checks are made.
func (d *doctor) configuration(environ []string) (config.Config, bool) {
	cfg, warnings, err := config.Load(environ)
	for _, w := range warnings {
		d.say(warning, "configuration", "%s", w)
	}
	if err != nil {
		d.say(bad, "configuration", "%v", err)
		if cfg, _, err = config.Load(append(environ[:len(environ):len(environ)], "SANDBOX_ALLOW_NO_AUTH=1")); err != nil {
			return cfg, false
		}
		return cfg, true
	}
	d.say(good, "configuration", "driver %s, image %s", cfg.Driver, cfg.Image)
	return cfg, true
}

// listen looks whether the address is free, or whether it is the service that has it.
func (d *doctor) listen(ctx context.Context, cfg config.Config, environ []string) {
	l, err := listen(cfg.Listen)
	switch {
	case err == nil:
		if err := l.Close(); err != nil {
			d.say(bad, "address", "%v", err)
			return
		}
		d.say(good, "address", "%s is free", cfg.Listen)
	case healthcheck(ctx, environ) == nil:
		d.say(good, "address", "a healthy service is on %s already", cfg.Listen)
	default:
		d.say(bad, "address", "%v", err)
	}
}

// runner makes a runner as the service would, runs a program in it and removes
// it. That shows engine, runtime, image and limits at once.
func (d *doctor) runner(ctx context.Context, cfg config.Config) {
	t, err := newTrial(cfg)
	if err != nil {
		d.say(bad, "engine", "%v", err)
		return
	}
	defer func() {
		if err := t.close(); err != nil {
			d.say(bad, "engine", "the trial runner is not quite gone: %v", err)
		}
	}()
	info, err := t.driver.Info(ctx)
	if err != nil {
		d.say(bad, "engine", "%v\n%s", err, engineAdvice(cfg))
		return
	}
	name := info.Runtime
	if name == "" {
		name = "the engine's own choice"
	}
	d.say(good, "engine", "%s, version %s, runtime: %s", info.Driver, info.Version, name)
	result, err := t.run(ctx)
	if err != nil {
		d.say(bad, "runner", "%v\n%s", err, runnerAdvice(cfg))
		return
	}
	d.say(good, "runner", "made in %v, ran a program in %v, Python %s", result.made.Round(time.Millisecond), result.ran.Round(time.Millisecond), result.Python)
	d.limit("memory limit", "SANDBOX_MEMORY", cfg.Memory, result.Memory)
	d.limit("process limit", "SANDBOX_PIDS_LIMIT", cfg.PidsLimit, result.Pids)
	if missing := result.Missing; len(missing) > 0 {
		d.say(warning, "image", "%s cannot be imported there, though SANDBOX_PRELOAD names it: use an image that has it, or shorten the list", strings.Join(missing, ", "))
	}
}

// limit holds what a runner says of a limit, 0 for nothing, against the
// configuration.
func (d *doctor) limit(what, variable string, want, got int64) {
	switch {
	case want == 0:
		d.say(warning, what, "%s lifts it: one session can take down the host", variable)
	case got == 0:
		d.say(good, what, "cannot be seen from inside; the engine took %s=%d", variable, want)
	case got > want:
		d.say(bad, what, "is %d in a runner, not %d: the host's cgroups lack that controller; "+
			"boot with cgroup_enable=memory, or give the engine cgroup v2 with all controllers", got, want)
	default:
		d.say(good, what, "holds in a runner: %d", got)
	}
}

func engineAdvice(cfg config.Config) string {
	if cfg.Driver == "docker" {
		return "Start the Docker daemon, or name it in DOCKER_HOST, and see that this user may open its socket (group docker, or root). " +
			"SANDBOX_DRIVER=oci does without a daemon."
	}
	return "Install the runtime that SANDBOX_RUNTIME names (runc by default), and run this as root."
}

func runnerAdvice(cfg config.Config) string {
	if cfg.Driver == "docker" {
		return "If the image is missing: build it with `make image`, or `docker pull " + cfg.Image + "`. If the runtime is: register it with the daemon, " +
			"or correct SANDBOX_RUNTIME. If a limit is refused: lower it to what the host has."
	}
	return "If the image is missing: `aivory-sandbox image import SOURCE " + cfg.Image + "`. If a cgroup cannot be made: mount /sys/fs/cgroup, and run as root."
}
