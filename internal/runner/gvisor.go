package runner

import (
	"path"
	"strings"
)

// GVisor tells whether a runtime is gVisor's, by its name or path. One that an
// engine knows by another name is told by "runsc" or "gvisor" at its beginning.
func GVisor(runtime string) bool {
	name := path.Base(runtime)
	return strings.HasPrefix(name, "runsc") || strings.HasPrefix(name, "gvisor")
}

// sandboxBytes is what gVisor and the agent need of a runner's memory.
const sandboxBytes = 128 << 20

// OwnLimits are limits that programs meet in gVisor's kernel. What the host's
// kernel refuses or ends under gVisor is not a program but the whole sandbox, so
// that these have to come first.
type OwnLimits struct {
	AddressSpace int64 // RLIMIT_AS of each process, bytes; 0 is none
	Processes    int64 // RLIMIT_NPROC; 0 is none
	// HostTasks bounds the sandbox's tasks on the host, as Limits.PidsLimit does a
	// program's elsewhere: gVisor has some for each process, and several of its own.
	HostTasks int64
}

// UnderGVisor returns what these limits become under gVisor.
func (l Limits) UnderGVisor() OwnLimits {
	own := OwnLimits{HostTasks: l.PidsLimit}
	if l.MemoryBytes > 0 {
		own.AddressSpace = max(l.MemoryBytes-sandboxBytes, l.MemoryBytes/2)
	}
	if l.PidsLimit > 0 {
		own.Processes = l.PidsLimit
		own.HostTasks = 4*l.PidsLimit + 256
	}
	return own
}

// GVisorLacks are directories, the outer first, that programs know from the
// kernel's /sys and that gVisor's has not: where they look for the interfaces that
// there are, which is loopback. Each is an empty mount there, read-only.
var GVisorLacks = []string{"/sys/class/net", "/sys/class/net/lo"}
