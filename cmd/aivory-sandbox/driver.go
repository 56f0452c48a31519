package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/hjxwz123/aivory-sandbox/internal/config"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/docker"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci/image"
)

// newDriver makes the configured driver. It waits for no engine.
func newDriver(cfg config.Config, log *slog.Logger) (runner.Driver, error) {
	profile, err := readProfile(cfg.SeccompProfile)
	if err != nil {
		return nil, err
	}
	if cfg.Driver == "oci" {
		return newOCI(cfg, profile, log)
	}
	return newDocker(cfg, profile, log)
}

func newDocker(cfg config.Config, profile []byte, log *slog.Logger) (runner.Driver, error) {
	d, err := docker.New(docker.Config{
		Image:          cfg.Image,
		Runtime:        cfg.Runtime,
		Instance:       cfg.Instance,
		SeccompProfile: profile,
		ProfileFile:    filepath.Join(cfg.StateDir, "seccomp.json"),
		CallTimeout:    cfg.DockerCallTimeout,
		Logger:         log,
	})
	if err != nil {
		return nil, err
	}
	if cfg.PullOnStart {
		d.PullOnStart()
	}
	return d, nil
}

func newOCI(cfg config.Config, profile []byte, log *slog.Logger) (runner.Driver, error) {
	images, err := image.Open(cfg.ImageDir, oci.Bundles())
	if err != nil {
		return nil, err
	}
	d, err := oci.New(oci.Config{
		Images:         images,
		Image:          cfg.Image,
		Runtime:        cfg.Runtime,
		Instance:       cfg.Instance,
		LayerDir:       filepath.Join(cfg.StateDir, "layers"),
		SeccompProfile: profile,
		CallTimeout:    cfg.DockerCallTimeout,
		Logger:         log,
	})
	if err != nil {
		return nil, err
	}
	if cfg.PullOnStart {
		d.PullOnStart()
	} else if err := d.CheckImage(); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot find the runner image in %s: %w; import it with `aivory-sandbox image import SOURCE`, "+
			"or pull it with SANDBOX_PULL_ON_START=1", cfg.ImageDir, err), d.Close())
	}
	return d, nil
}

// readProfile reads the operator's seccomp profile, nothing where there is none.
func readProfile(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	profile, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read SANDBOX_SECCOMP_PROFILE: %w", err)
	}
	if len(profile) == 0 {
		return nil, fmt.Errorf("SANDBOX_SECCOMP_PROFILE: %s is empty", path)
	}
	return profile, nil
}
