// Package oci is the runner driver over an OCI runtime such as runc, without any
// daemon: each call is one short-lived process of the runtime.
//
// A runner is a bundle, a directory with the runtime's config.json in it, below
// the run directory of the service's instance, and what the runtime and the
// kernel keep for it: a state directory, a cgroup, namespaces. All runners share
// one unpacked image, read-only. Nothing is kept in this process that cannot be
// found there again.
package oci

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci/image"
)

// Config is what New needs.
type Config struct {
	// Images holds the unpacked images. It must be set.
	Images *image.Store
	// Image is the runner image's reference. It must be set.
	Image string
	// Runtime is an OCI runtime's name or path; empty is "runc".
	Runtime string
	// Instance names the runners of this service; empty is "default". Two
	// services of one name on one host see each other's runners.
	Instance string
	// LayerDir is where runners keep what they write to their root file system,
	// used without Limits.ReadOnlyRootfs only: a directory on a disk that overlayfs
	// can write to, of this service's own. It must be set.
	LayerDir string
	// SeccompProfile is a profile in Docker's JSON format; empty is Docker's
	// default profile of the day this program was built.
	SeccompProfile []byte
	// CallTimeout bounds each process of the runtime, 30 s where it is zero.
	CallTimeout time.Duration
	// Logger gets what an operator should know; nil discards it.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Runtime == "" {
		c.Runtime = "runc"
	}
	if c.Instance == "" {
		c.Instance = "default"
	}
	if c.CallTimeout == 0 {
		c.CallTimeout = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Driver is a runner.Driver. Make it with New, and call Close when done.
type Driver struct {
	cfg     Config
	log     *slog.Logger
	profile []byte // seccomp, in Docker's format
	host    host
	runtime *runtime
	bundles string   // directory of bundles, one for each runner
	others  sync.Map // runtimes that earlier services used, by their path
	reaper  reaper
	jobs    sync.WaitGroup // processes of the runtime that nobody waits for any more

	life context.Context // ends with Close
	stop context.CancelFunc

	imageSeen    atomic.Bool
	quotaRefused atomic.Bool
}

var _ runner.Driver = (*Driver)(nil)

// New returns a driver. What the host lacks for it, a runtime, privileges or
// cgroup controllers, is an error that says what to do about it. Runners are
// looked at by List alone; layers that no runner owns any more are removed here.
//
// New makes the process adopt orphans of the processes that it starts, so that
// what runs in runners can be waited for and leaves no zombie.
func New(cfg Config) (*Driver, error) {
	cfg = cfg.withDefaults()
	switch {
	case cfg.Image == "":
		return nil, errors.New("cannot set up the oci driver: no runner image is named")
	case cfg.Images == nil || cfg.LayerDir == "":
		return nil, errors.New("cannot set up the oci driver: no directories for images and layers are named")
	}
	h, err := lookAtHost(cfg.Runtime)
	if err != nil {
		return nil, err
	}
	profile, err := seccompProfile(cfg.SeccompProfile)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(runDirectory(), cfg.Instance)
	d := &Driver{cfg: cfg, log: cfg.Logger, profile: profile, host: h, bundles: filepath.Join(dir, "bundles")}
	if d.runtime, err = newRuntime(cfg.Runtime, filepath.Join(dir, "state"), cfg.CallTimeout); err != nil {
		return nil, err
	}
	for _, path := range []string{d.bundles, d.runtime.root, cfg.LayerDir} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("cannot make a directory of the oci driver: %w", err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("cannot become the parent of what runs in runners: %w", err)
	}
	if h.rootless != nil {
		d.log.Warn("runners are made without root: memory is bounded for each process and not for a runner as a whole, and CPU is not bounded")
	}
	if len(cfg.SeccompProfile) > 0 && runner.GVisor(d.runtime.name) {
		d.log.Warn("gVisor does not apply SANDBOX_SECCOMP_PROFILE to programs; its own kernel and the agent's filter are what holds them")
	}
	d.reaper.start()
	d.life, d.stop = context.WithCancel(context.Background())
	if err := d.removeLostLayers(); err != nil {
		d.log.Warn("layers of runners that are gone cannot be removed", "error", err)
	}
	return d, nil
}

// Info implements runner.Driver. The version is asked for once, and again when
// the runtime's program was replaced.
func (d *Driver) Info(ctx context.Context) (runner.Info, error) {
	info := runner.Info{Driver: "oci", Runtime: d.runtime.name, Image: d.cfg.Image, ImageReady: d.imageSeen.Load()}
	version, err := d.runtime.version(ctx)
	if err != nil {
		return info, fault.Wrap(fault.Unavailable, "the container runtime does not work", err)
	}
	info.Version = version
	return info, nil
}

// CheckImage looks for the image, which must have been imported; it is
// image.ErrNotFound otherwise.
func (d *Driver) CheckImage() error {
	_, err := d.cfg.Images.Find(d.cfg.Image)
	d.imageSeen.Store(err == nil)
	return err
}

// PullOnStart pulls the image in the background, so that a newer one is used
// from then on, and logs how that went. It returns at once. Close ends it.
func (d *Driver) PullOnStart() {
	d.jobs.Go(func() {
		img, err := d.cfg.Images.Pull(d.life, d.cfg.Image, "", nil)
		switch {
		case err == nil:
			d.imageSeen.Store(true)
			d.log.Info("runner image pulled", "image", d.cfg.Image, "digest", img.Digest)
		case d.life.Err() == nil:
			d.log.Warn("runner image not pulled at start", "image", d.cfg.Image, "error", err)
		}
	})
}

// Close implements runner.Driver. It ends a pull under way. Streams that were
// dialled stay open.
func (d *Driver) Close() error {
	d.stop()
	d.jobs.Wait()
	d.reaper.close()
	return nil
}
