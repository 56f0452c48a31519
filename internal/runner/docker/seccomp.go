package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/google/renameio/v2"
	"github.com/moby/profiles/seccomp"
)

// defaultSeccomp renders the default profile that this program was built with.
// An older engine's own default allows what has proved dangerous since, io_uring
// for one. Conditions on kernel, architecture and capabilities are left in: the
// engine resolves them for its host, which need not be this one.
func defaultSeccomp() (string, error) {
	b, err := json.Marshal(seccomp.DefaultProfile())
	if err != nil {
		return "", fmt.Errorf("cannot render the default seccomp profile: %w", err)
	}
	return string(b), nil
}

// seccompProfile returns a profile as one line of JSON.
func seccompProfile(given []byte) (string, error) {
	if len(given) == 0 {
		return defaultSeccomp()
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(given, &object); err != nil {
		return "", errors.New("cannot use the seccomp profile: it is not a JSON object")
	}
	one, err := json.Marshal(object)
	return string(one), err
}

// profile is what runners' system calls are filtered by.
type profile struct {
	text string // one line of JSON
	file string // where Podman finds it

	mu      sync.Mutex
	written bool
}

// option returns the value of the security option for an engine.
func (p *profile) option(podman bool) (string, error) {
	if !podman {
		return p.text, nil
	}
	if p.file == "" {
		return "", errors.New("cannot give Podman a seccomp profile: no file is named for it")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.written {
		if err := renameio.WriteFile(p.file, []byte(p.text), 0o644); err != nil {
			return "", fmt.Errorf("cannot write the seccomp profile for Podman: %w", err)
		}
		p.written = true
	}
	return p.file, nil
}
