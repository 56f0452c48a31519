// Package runner turns one duplex byte stream into a place to run Python.
//
// A Driver isolates: it makes a runner (a container, later a pod or a microVM)
// and opens a stream to the agent in it. Everything above the stream is written
// once, in this package: the frame codec, the agent and the portable Runner.
package runner

import (
	"context"
	"io"
	"time"
)

// Identities inside every runner, on every driver.
const (
	// ProgramUID and ProgramGID own the agent, the program and the workspace.
	ProgramUID, ProgramGID = 1000, 1000
	// InitUID and InitGID own process 1, so that a program of ProgramUID can
	// neither kill nor trace it.
	InitUID, InitGID = 65534, 65534
)

// Workspace is where a program's files are, and its working directory.
const Workspace = "/workspace"

// Writable are the directories of a runner that a program may write to. They are
// the program's, and all else is read-only where Limits.ReadOnlyRootfs is set.
var Writable = []struct {
	Path string
	Mode uint32
}{
	{"/tmp", 0o1777},
	{"/home/sandbox", 0o755},
	{Workspace, 0o755},
}

// Environment is every runner's, whatever its image sets.
var Environment = []string{
	"HOME=/home/sandbox",
	"LANG=C.UTF-8",
	"MPLBACKEND=Agg",
	"MPLCONFIGDIR=/home/sandbox/.config/matplotlib",
	"PYTHONDONTWRITEBYTECODE=1",
	"PYTHONUNBUFFERED=1",
}

// NamePrefix is what a runner's name begins with; its session's id follows.
const NamePrefix = "aivory-sbx-"

// ValidSessionID tells whether id is what a session id looks like: 32 lower-case
// hexadecimal digits.
func ValidSessionID(id string) bool {
	if len(id) != 32 {
		return false
	}
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// InitCommand is process 1 of every runner: it outlives everything and reaps
// orphans. The kernel shields it from SIGKILL of its own namespace.
var InitCommand = []string{"sh", "-c", "while :; do sleep 2147483647 & wait; done"}

// Limits bound one runner. A zero value means no limit of that kind, but for
// the tmpfs sizes, which are always set when ReadOnlyRootfs is.
type Limits struct {
	MemoryBytes    int64 // memory and memory+swap, bytes
	NanoCPUs       int64 // CPU quota in 1e-9 CPUs
	PidsLimit      int64 // tasks; -1 is unlimited
	NofileSoft     int64 // open files
	NofileHard     int64
	ReadOnlyRootfs bool
	TmpfsBytes     int64  // size of /tmp and of /home/sandbox, each, bytes
	WorkspaceBytes int64  // size of /workspace, bytes
	DiskSize       string // writable-layer quota in the engine's format, best effort; empty is none
}

// Spec describes a runner to be made.
type Spec struct {
	// SessionID is 32 lower-case hexadecimal digits. It names the runner.
	SessionID string
	// CreatedAt goes into the runner's label, in whole seconds.
	CreatedAt time.Time
	Limits    Limits
}

// Instance is a runner that a driver found.
type Instance struct {
	ID        string // driver's handle, as Create returned it
	SessionID string // empty where the label is missing or malformed
	CreatedAt time.Time
	Running   bool
	// Legacy marks a runner that the older service made: it bears no instance
	// label and its process 1 has the program's uid.
	Legacy bool
}

// Info is what a driver says of itself.
type Info struct {
	Driver  string // "docker", "oci"
	Runtime string // OCI runtime, empty for the engine's default
	// Version is the engine's or runtime's version.
	Version string
	// Image is the configured image reference.
	Image string
	// ImageReady tells whether this process has seen the image in place.
	ImageReady bool
}

// Driver makes, reaches and removes runners. It knows no sessions, HTTP or
// frames, and keeps no state that it can ask its engine for. Methods are safe
// for concurrent use. Errors carry a fault.Kind where the driver can tell;
// ErrNotFound is wrapped where a runner does not exist.
type Driver interface {
	// Create makes and starts a runner, pulling or checking the image first
	// where this process has not yet, and returns its handle. On any error,
	// cancellation included, nothing is left behind, or List reports it as not
	// running so that recovery removes it.
	Create(ctx context.Context, spec Spec) (id string, err error)

	// Dial starts command in the runner as ProgramUID:ProgramGID in directory
	// "/", with env added to the runner's environment, and returns its standard
	// input and output as one stream. ctx bounds the start alone. The caller
	// closes the stream. Closing need not end the command; the next agent does.
	// A runner that is gone or stopped is ErrNotFound.
	Dial(ctx context.Context, id string, command, env []string) (Stream, error)

	// Destroy kills and removes a runner with all that it holds. Removing one
	// that does not exist succeeds.
	Destroy(ctx context.Context, id string) error

	// List returns this instance's runners and those without an instance label,
	// running or not.
	List(ctx context.Context) ([]Instance, error)

	// Info asks the engine for its version. An error means that the engine
	// cannot be reached; the returned Info then still names driver and image.
	Info(ctx context.Context) (Info, error)

	// Close releases connections. Runners live on.
	Close() error
}

// Stream is the duplex stream to an agent.
//
// Close ends both directions and unblocks pending calls. Diagnostics returns
// the tail, bounded to a few KiB, of what the command wrote to its standard
// error: it comes from inside the runner, is not to be trusted, and is for a
// debug log only.
type Stream interface {
	io.ReadWriteCloser
	Diagnostics() string
}
