package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/docker/go-units"
)

// environment is what a list of NAME=value holds; as for a process, the last of
// two values counts.
type environment map[string]string

func parseEnvironment(environ []string) environment {
	env := make(environment, len(environ))
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok {
			env[name] = value
		}
	}
	return env
}

// value returns the value for v, trimmed, and the name that it was found under.
func (env environment) value(v variable) (name, value string, ok bool) {
	for _, name := range []string{v.name, olderNames[v.name]} {
		value, set := env[name]
		if value = strings.TrimSpace(value); set && (value != "" || v.keepsEmpty) {
			return name, value, true
		}
	}
	return "", "", false
}

// Load reads the configuration from environ, a list of NAME=value as
// os.Environ returns it.
//
// The warnings are sentences about what is accepted but looks like a mistake;
// they are for the log. With an error, they are about names alone. The error names every variable whose value is not
// accepted, with the value and what is accepted; it never holds the key.
func Load(environ []string) (c Config, warnings []string, err error) {
	env := parseEnvironment(environ)
	c = Default()
	var problems []error
	for _, v := range variables {
		name, value, ok := env.value(v)
		if !ok || v.set(&c, value) {
			continue
		}
		shown := fmt.Sprintf(" %.200q", value)
		if v.secret {
			shown = ""
		}
		problems = append(problems, fmt.Errorf("%s:%s is not accepted; accepted is %s", name, shown, v.accepts))
	}
	if c.APIKey == "" && !c.AllowNoAuth && strings.TrimSpace(env["SANDBOX_API_KEY"]) == "" {
		problems = append(problems, errors.New("SANDBOX_API_KEY: is not set; "+
			"set it to a secret that clients send as a bearer key (SANDBOX_ALLOW_NO_AUTH=1 does without, on a trusted machine alone)"))
	}
	if err := c.fillDirs(env); err != nil {
		problems = append(problems, err)
	}
	if len(problems) > 0 {
		return c, unknown(env), fmt.Errorf("bad configuration:\n%w", errors.Join(problems...))
	}
	return c, append(c.warnings(), unknown(env)...), nil
}

// fillDirs sets the directories whose defaults depend on who runs the service.
func (c *Config) fillDirs(env environment) (err error) {
	if c.StateDir == "" {
		c.StateDir, err = defaultStateDir(env, os.Geteuid())
	}
	if c.ImageDir == "" {
		c.ImageDir = filepath.Join(c.StateDir, "images")
	}
	return err
}

// ListenAddress returns the address to listen on alone, for a caller that needs
// no more than to reach the service.
func ListenAddress(environ []string) (string, error) {
	c, err := some(parseEnvironment(environ), "SANDBOX_LISTEN")
	return c.Listen, err
}

// Images returns the directory of images, and the reference of the one for
// runners, for a caller that handles images alone.
func Images(environ []string) (dir, image string, err error) {
	env := parseEnvironment(environ)
	c, err := some(env, "SANDBOX_STATE_DIR", "SANDBOX_IMAGE_DIR", "SANDBOX_IMAGE")
	if err == nil {
		err = c.fillDirs(env)
	}
	return c.ImageDir, c.Image, err
}

// some reads a few variables; the rest has its default.
func some(env environment, names ...string) (Config, error) {
	c := Default()
	for _, v := range variables {
		if !slices.Contains(names, v.name) {
			continue
		}
		if name, value, ok := env.value(v); ok && !v.set(&c, value) {
			return c, fmt.Errorf("%s: %.200q is not accepted; accepted is %s", name, value, v.accepts)
		}
	}
	return c, nil
}

// defaultStateDir is where the platform wants state to be kept.
func defaultStateDir(env environment, uid int) (string, error) {
	const name = "aivory-sandbox"
	if uid == 0 {
		return filepath.Join("/var/lib", name), nil
	}
	if dir := env["XDG_STATE_HOME"]; filepath.IsAbs(dir) {
		return filepath.Join(dir, name), nil
	}
	if home := env["HOME"]; filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", name), nil
	}
	return "", errors.New("SANDBOX_STATE_DIR: is not set, and neither XDG_STATE_HOME nor HOME tells where state is kept")
}

// agentBytes is room for the agent and a small program beside full tmpfs.
const agentBytes = 128 * mib

// warnings names combinations that are allowed but probably not meant.
func (c *Config) warnings() []string {
	var w []string
	if need := 2*c.TmpfsSize + c.WorkspaceSize + agentBytes; c.ReadOnlyRootfs && c.Memory > 0 && need > c.Memory {
		w = append(w, fmt.Sprintf("SANDBOX_MEMORY (%s) is less than twice SANDBOX_TMPFS_SIZE, SANDBOX_WORKSPACE_SIZE and 128 MiB together (%s): "+
			"files in /tmp, the home directory and /workspace count as memory, so a session that fills them runs out of it",
			units.BytesSize(float64(c.Memory)), units.BytesSize(float64(need))))
	}
	if !c.ReadOnlyRootfs && c.DiskSize == "" {
		w = append(w, "SANDBOX_READ_ONLY_ROOTFS is off and SANDBOX_DISK_SIZE not set: a session can fill the host's disk")
	}
	if c.Memory == 0 {
		w = append(w, "SANDBOX_MEMORY is 0: a session can use all of the host's memory")
	}
	if c.PidsLimit == 0 {
		w = append(w, "SANDBOX_PIDS_LIMIT lifts the limit: a session can use up the host's processes")
	}
	if c.APIKey == "" {
		host, _, _ := net.SplitHostPort(c.Listen)
		where := "on " + c.Listen
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			where += ", which is not a loopback address"
		}
		w = append(w, "SANDBOX_ALLOW_NO_AUTH is on: whoever reaches the service "+where+" can run programs")
	}
	return w
}

// unknown names variables of the service's prefix that it does not read: a
// misspelled limit is no limit.
func unknown(env environment) []string {
	known := append(Names(), clientNames...)
	var w []string
	for name := range env {
		if strings.HasPrefix(name, "SANDBOX_") && !slices.Contains(known, name) {
			w = append(w, name+" is set, but the service reads no variable of that name")
		}
	}
	slices.Sort(w)
	return w
}
