package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/docker/go-units"
	"golang.org/x/sys/unix"

	"github.com/hjxwz123/aivory-sandbox/internal/config"
)

// lowSpace is how much free disk space a directory of the service ought to have,
// in bytes: some of the largest archives.
const lowSpace = 1 << 30

// directory looks whether the service can write in a directory, or make it.
func (d *doctor) directory(what, variable, path string) {
	there := path
	info, err := os.Stat(there)
	for errors.Is(err, fs.ErrNotExist) && there != filepath.Dir(there) {
		there = filepath.Dir(there) // it will be made in here
		info, err = os.Stat(there)
	}
	switch {
	case err != nil:
		d.say(bad, what, "%v; correct %s", err, variable)
		return
	case !info.IsDir():
		d.say(bad, what, "%s is not a directory; correct %s", there, variable)
		return
	case unix.Access(there, unix.W_OK|unix.X_OK) != nil:
		d.say(bad, what, "%s cannot be written by this user; change its owner, or set %s to another directory", there, variable)
		return
	}
	var space unix.Statfs_t
	if err := unix.Statfs(there, &space); err != nil {
		d.say(bad, what, "%v", err)
		return
	}
	free := space.Bavail * uint64(space.Bsize)
	text := fmt.Sprintf("%s, %s free", path, units.BytesSize(float64(free)))
	if there != path {
		text += ", will be made"
	}
	if free < lowSpace {
		d.say(warning, what, "%s: archives that wait for their store may not fit; make room, or set %s to another disk", text, variable)
		return
	}
	d.say(good, what, "%s", text)
}

// host holds the limits against what the host has.
func (d *doctor) host(cfg config.Config) {
	total, err := hostMemory("/proc/meminfo")
	if err != nil {
		d.say(warning, "host memory", "%v", err)
	} else {
		d.memory(cfg, total)
	}
	d.processors(cfg, runtime.NumCPU())
}

// memory tells whether all sessions fit in the host's memory, in bytes.
func (d *doctor) memory(cfg config.Config, total int64) {
	have := units.BytesSize(float64(total))
	if cfg.MaxSessions == 0 || cfg.Memory == 0 {
		d.say(warning, "host memory", "%s, and no limit for sessions together: set SANDBOX_MAX_SESSIONS and SANDBOX_MEMORY", have)
		return
	}
	need := int64(cfg.MaxSessions) * cfg.Memory
	if cfg.Memory > total {
		d.say(bad, "host memory", "%s, less than one session may use: lower SANDBOX_MEMORY (%s)", have, units.BytesSize(float64(cfg.Memory)))
		return
	}
	if need > total {
		d.say(warning, "host memory", "%s, but %d sessions may use %s: when they all do, the host runs out; "+
			"SANDBOX_MAX_SESSIONS=%d fits, or a smaller SANDBOX_MEMORY", have, cfg.MaxSessions, units.BytesSize(float64(need)), max(total/cfg.Memory, 1))
		return
	}
	d.say(good, "host memory", "%s, enough for %d sessions of %s", have, cfg.MaxSessions, units.BytesSize(float64(cfg.Memory)))
}

func (d *doctor) processors(cfg config.Config, count int) {
	each := float64(cfg.NanoCPUs) / 1e9
	busy := float64(cfg.MaxConcurrentExecs) * each
	switch {
	case each > float64(count):
		d.say(bad, "processors", "%d, fewer than one runner may use: Docker refuses that; lower SANDBOX_CPUS (%g)", count, each)
	case busy > float64(count):
		d.say(warning, "processors", "%d, while %d runs at a time may use %g: they slow each other down; lower SANDBOX_MAX_CONCURRENT_EXECS where that matters",
			count, cfg.MaxConcurrentExecs, busy)
	default:
		d.say(good, "processors", "%d", count)
	}
}

// hostMemory reads the memory of the host, in bytes.
func hostMemory(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("cannot find out: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), "MemTotal:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("cannot find out: %w", err)
		}
		return kib << 10, nil
	}
	return 0, errors.Join(errors.New("cannot find out: there is no MemTotal"), lines.Err())
}
