package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hjxwz123/aivory-sandbox/internal/config"
)

// examine returns what a doctor says by one check.
func examine(check func(d *doctor)) (text string, failed bool) {
	var out bytes.Buffer
	d := &doctor{out: &out}
	check(d)
	return out.String(), d.failed
}

func TestDoctorOnLimits(t *testing.T) {
	const gib = 1 << 30
	cfg := func(sessions int, memory int64, execs int, cpus int64) config.Config {
		return config.Config{MaxSessions: sessions, Memory: memory, MaxConcurrentExecs: execs, NanoCPUs: cpus * 1e9}
	}
	for _, test := range []struct {
		check func(d *doctor)
		want  string
	}{
		{func(d *doctor) { d.memory(cfg(4, gib, 0, 0), 8*gib) }, "ok    host memory: 8GiB, enough for 4 sessions of 1GiB"},
		{func(d *doctor) { d.memory(cfg(16, gib, 0, 0), 8*gib) }, "warn  host memory: 8GiB, but 16 sessions may use 16GiB: when they all do, the host runs out; SANDBOX_MAX_SESSIONS=8 fits"},
		{func(d *doctor) { d.memory(cfg(1, 9*gib, 0, 0), 8*gib) }, "FAIL  host memory: 8GiB, less than one session may use: lower SANDBOX_MEMORY"},
		{func(d *doctor) { d.memory(cfg(0, gib, 0, 0), 8*gib) }, "warn  host memory: 8GiB, and no limit"},
		{func(d *doctor) { d.memory(cfg(4, 0, 0, 0), 8*gib) }, "warn  host memory: 8GiB, and no limit"},
		{func(d *doctor) { d.processors(cfg(0, 0, 2, 1), 2) }, "ok    processors: 2"},
		{func(d *doctor) { d.processors(cfg(0, 0, 4, 1), 2) }, "warn  processors: 2, while 4 runs"},
		{func(d *doctor) { d.processors(cfg(0, 0, 1, 4), 2) }, "FAIL  processors: 2, fewer than one runner"},
		{func(d *doctor) { d.limit("x", "V", 5, 5) }, "ok    x: holds in a runner: 5"},
		{func(d *doctor) { d.limit("x", "V", 5, 1<<62) }, "FAIL  x: is 4611686018427387904 in a runner, not 5"},
		{func(d *doctor) { d.limit("x", "V", 5, 0) }, "ok    x: cannot be seen from inside"},
		{func(d *doctor) { d.limit("x", "V", 0, 0) }, "warn  x: V lifts it"},
	} {
		text, failed := examine(test.check)
		if !strings.HasPrefix(text, test.want) || failed != strings.HasPrefix(test.want, "FAIL") {
			t.Errorf("says %q, wanted %q", text, test.want)
		}
	}
	if total, err := hostMemory("/proc/meminfo"); err != nil || total < 64<<20 {
		t.Errorf("this host has %d bytes, %v", total, err)
	}
	if _, err := hostMemory("/dev/null"); err == nil {
		t.Error("memory without a figure")
	}
}

func TestDoctorOnDirectories(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir:                          " state: " + dir + ", ",
		filepath.Join(dir, "a", "b"): "will be made",
		file:                         "FAIL  state: " + file + " is not a directory; correct V",
		filepath.Join(file, "a"):     "FAIL  state: ",
	} {
		text, failed := examine(func(d *doctor) { d.directory("state", "V", path) })
		if !strings.Contains(text, want) || failed != strings.HasPrefix(want, "FAIL") {
			t.Errorf("%s: says %q", path, text)
		}
		if _, err := os.Stat(filepath.Join(dir, "a")); err == nil {
			t.Error("the doctor made a directory")
		}
	}
}

func TestDoctorOnConfiguration(t *testing.T) {
	for environ, want := range map[string]string{
		"SANDBOX_API_KEY=k":                                    "ok    configuration: driver docker",
		"SANDBOX_PIDS_LIMIT=100":                               "FAIL  configuration: bad configuration:\n      SANDBOX_API_KEY",
		"SANDBOX_API_KEY=k SANDBOX_MEMORY=0":                   "warn  configuration: SANDBOX_MEMORY",
		"SANDBOX_API_KEY=k SANDBOX_CPUS=many":                  "FAIL  configuration: bad configuration:\n      SANDBOX_CPUS",
		"SANDBOX_API_KEY=k SANDBOX_CPUS=many SANDBOX_MEMRY=1g": "warn  configuration: SANDBOX_MEMRY is set",
		"SANDBOX_APIKEY=k":                                     "warn  configuration: SANDBOX_APIKEY is set",
	} {
		text, failed := examine(func(d *doctor) { d.configuration(append(strings.Fields(environ), "SANDBOX_STATE_DIR=/x")) })
		if !strings.HasPrefix(text, want) || failed != strings.Contains(text, "FAIL  configuration: bad configuration") {
			t.Errorf("%s: says %q", environ, text)
		}
	}
}
