package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/config"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci"
)

// trial makes a runner apart from any service's.
type trial struct {
	cfg    config.Config
	driver runner.Driver
	state  string // directory
	handle string
}

// trialResult is what a runner says of itself. Figures are 0 where it cannot see
// them.
type trialResult struct {
	made, ran time.Duration
	Python    string
	Memory    int64
	Pids      int64
	Missing   []string // of the modules to preload
}

// newTrial makes the driver that is configured, under an instance name of its
// own, so that no service takes the runner for its own.
func newTrial(cfg config.Config) (*trial, error) {
	dir, err := os.MkdirTemp("", "aivory-doctor-")
	if err != nil {
		return nil, err
	}
	cfg.StateDir, cfg.PullOnStart = dir, false
	cfg.Instance = fmt.Sprintf("doctor-%d", os.Getpid())
	t := &trial{cfg: cfg, state: dir}
	if t.driver, err = newDriver(cfg, slog.New(slog.DiscardHandler)); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return t, nil
}

// trialCode says what limits a runner sees: of cgroup v2, else of v1.
const trialCode = `
import importlib.util, json, sys
def first(*paths):
    for path in paths:
        try:
            return int(open("/sys/fs/cgroup/" + path).read())
        except (OSError, ValueError):
            pass
    return 0
print(json.dumps({
    "Python": sys.version.split()[0],
    "Memory": first("memory.max", "memory/memory.limit_in_bytes"),
    "Pids": first("pids.max", "pids/pids.max"),
    "Missing": [m for m in %s if importlib.util.find_spec(m.split(".")[0]) is None]}))`

// run makes the runner and runs a program in it.
func (t *trial) run(ctx context.Context) (result trialResult, err error) {
	began := time.Now()
	limits := sessionConfig(t.cfg).Limits
	t.handle, err = t.driver.Create(ctx, runner.Spec{SessionID: trialID(), CreatedAt: began, Limits: limits})
	if err != nil {
		return result, fmt.Errorf("cannot make a runner: %w", err)
	}
	r := runner.New(t.driver, t.handle, runner.Options{DialTimeout: t.cfg.DockerCallTimeout})
	defer r.Close()
	if err := r.Open(ctx); err != nil {
		return result, fmt.Errorf("cannot start an agent in a runner: %w", err)
	}
	result.made = time.Since(began)
	modules, err := json.Marshal(append([]string{}, t.cfg.Preload...))
	if err != nil {
		return result, err
	}
	began = time.Now()
	x, err := r.Exec(ctx, runner.ExecRequest{
		Code: fmt.Appendf(nil, trialCode, modules), Timeout: time.Minute, MaxOutputBytes: 32 << 10,
		Artifacts: runner.ArtifactLimits{MaxDuration: time.Minute},
	})
	if err != nil {
		return result, fmt.Errorf("cannot run a program: %w", err)
	}
	defer x.Close()
	result.ran = time.Since(began)
	if x.ExitCode != 0 {
		return result, fmt.Errorf("a program ended with exit code %d (%s): %.500s", x.ExitCode, x.Reason, x.Stderr)
	}
	return result, json.Unmarshal(x.Stdout, &result)
}

// trialID is a session id that no service knows.
func trialID() string {
	return fmt.Sprintf("%016x%016x", uint64(time.Now().UnixNano()), uint64(os.Getpid()))
}

// close removes the runner and all that the trial made.
func (t *trial) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if t.handle != "" {
		err = t.driver.Destroy(ctx, t.handle)
	}
	err = errors.Join(err, t.driver.Close(), os.RemoveAll(t.state))
	if err == nil && t.cfg.Driver == "oci" {
		err = os.RemoveAll(filepath.Join(strings.TrimSuffix(oci.Bundles(), "/*/bundles/*"), t.cfg.Instance))
	}
	return err
}
