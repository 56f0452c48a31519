package docker

import (
	"encoding/json"
	"fmt"

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
