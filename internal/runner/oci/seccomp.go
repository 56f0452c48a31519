package oci

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// seccompProfile checks an operator's profile, or renders the default one that
// this program was built with.
func seccompProfile(given []byte) ([]byte, error) {
	if len(given) == 0 {
		b, err := json.Marshal(seccomp.DefaultProfile())
		if err != nil {
			return nil, fmt.Errorf("cannot render the default seccomp profile: %w", err)
		}
		return b, nil
	}
	var profile seccomp.Seccomp
	if err := json.Unmarshal(given, &profile); err != nil {
		return nil, fmt.Errorf("cannot use the seccomp profile: %w", err)
	}
	if profile.DefaultAction == "" {
		return nil, errors.New("cannot use the seccomp profile: it names no defaultAction")
	}
	return given, nil
}

// filter resolves a profile's conditions on architecture, kernel and
// capabilities for what spec is to run on this host.
func filter(profile []byte, spec *specs.Spec) (*specs.LinuxSeccomp, error) {
	// Made anew each time: the library changes what it is given.
	f, err := seccomp.LoadProfile(string(profile), spec)
	if err != nil {
		return nil, fmt.Errorf("cannot use the seccomp profile: %w", err)
	}
	return f, nil
}
