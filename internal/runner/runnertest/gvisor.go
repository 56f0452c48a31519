package runnertest

// GVisor says what is different on gVisor, on any driver: the tests that it makes
// impossible, and what a runner shows of itself.
func GVisor(opts Options) Options {
	// A fork bomb's processes need more memory than on the host's kernel.
	opts.Limits = DefaultLimits
	opts.Limits.MemoryBytes = 2 << 30
	opts.OwnMemory = true
	opts.Except = exceptGVisor
	opts.Posture = postureGVisor
	return opts
}

var exceptGVisor = map[string]string{
	"Driver/FailedStart":     "it grants any number of open files",
	"Driver/OperatorProfile": "it applies no seccomp profile to what enters a sandbox; the agent's own filter does for programs",
	"Memory/Children":        "several processes together can use up the sandbox's memory, which ends it",

	"Agent/Memory: reached by environ":                      "/proc shows that of any process of the user; there is no secret in it",
	"Agent/Memory: reached by maps":                         "the same, and mem is out of reach",
	"Agent/Memory: reached by fd":                           "the same, and they cannot be opened",
	"Escape/KernelSettings: works: reading /proc/1/environ": "there is no secret in it",
	"Escape/Init: works: /proc/1/fd ":                       "what is listed there cannot be opened",
	"Escape/Devices: works: open /dev/fuse":                 "a device of gVisor's own; mounts are refused",
	"Escape/Devices: works: open /dev/net/tun":              "a device of gVisor's own, on a network of its own",
	"Escape/Rights: works: oom_score_adj":                   "gVisor's own, with no effect",
}

// postureGVisor is what commands see, which the agent's filter is not on yet.
var postureGVisor = map[string]any{
	"caps":         []any{"0000000000000000", "0000000000000000", "0000000000000000", "0000000000000000", nil},
	"no_new_privs": nil, // not told
	"seccomp":      "0", "init_seccomp": "0",
	"nosuid_nodev": false, // not told; there is no setuid and no device
	"root":         "EACCES", "usr": "EACCES",
	"bpf": "ENOSYS", "io_uring_setup": "ENOSYS",
	"keyctl": "ok", "unshare": "ok",
}
