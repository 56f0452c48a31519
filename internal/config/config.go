// Package config reads the service's configuration from the environment into
// one typed, checked struct.
//
// [Default] holds every default, the table in variables.go says which variable
// sets which field and what it accepts, and [Load] puts the two together. A bad
// value never falls back to its default: Load names all of them in one error.
package config

import "time"

// Config is the whole configuration. Durations and sizes are in range and never
// negative; a limit that its variable lifts is zero.
type Config struct {
	// Listen is the address that the service listens on, host:port.
	Listen string
	// APIKey is the bearer key, without surrounding white space. It is empty only
	// where AllowNoAuth is on.
	APIKey string
	// AllowNoAuth turns authentication off where APIKey is empty.
	AllowNoAuth bool
	// MetricsKey is a bearer key for /metrics alone; empty is none.
	MetricsKey string
	// PprofListen is the loopback address, host:port, that profiles are served on;
	// empty is nowhere.
	PprofListen string
	// Docs serves the description of the HTTP interface, without a key.
	Docs bool
	// Instance labels this service's runners on a shared engine.
	Instance string
	// StateDir is an absolute path: what must survive a restart, and temporary files.
	StateDir string
	// LogLevel is "debug", "info", "warn" or "error".
	LogLevel string
	// LogFormat is "json", "text", or empty: text on a terminal, json elsewhere.
	LogFormat string

	// Driver is "docker" or "oci".
	Driver string
	// Runtime is the OCI runtime; empty is the driver's default.
	Runtime string
	// DockerCallTimeout bounds each control call to the daemon.
	DockerCallTimeout time.Duration
	// Image is the runner image's reference.
	Image string
	// ImageDir holds the images of the oci driver, an absolute path.
	ImageDir string
	// PullOnStart pulls Image in the background when the service starts.
	PullOnStart bool
	// Preload are modules that a runner imports before it is needed.
	Preload []string

	// Memory bounds a runner's memory and swap together, bytes; 0 is no limit.
	Memory int64
	// NanoCPUs is a runner's CPU quota in 1e-9 CPUs; 0 is no limit.
	NanoCPUs int64
	// PidsLimit bounds a runner's tasks; 0 is no limit.
	PidsLimit int64
	// NofileSoft and NofileHard bound open files; -1 is unlimited.
	NofileSoft, NofileHard int64
	// ReadOnlyRootfs makes a runner's root read-only, with tmpfs on /tmp, the home
	// directory and /workspace.
	ReadOnlyRootfs bool
	// TmpfsSize is the size of /tmp and of the home directory, each, bytes.
	TmpfsSize int64
	// WorkspaceSize is the size of /workspace, bytes.
	WorkspaceSize int64
	// DiskSize is the quota of the writable layer as the operator wrote it; empty
	// is none.
	DiskSize string
	// SeccompProfile is the path of a profile; empty is the built-in one.
	SeccompProfile string

	// MaxSessions, MaxConcurrentExecs and MaxConcurrentCreates are 0 for no limit.
	MaxSessions          int
	MaxConcurrentExecs   int
	MaxConcurrentCreates int
	// PoolSize is how many runners are kept ready.
	PoolSize int
	// QueueTimeout bounds the wait for a slot and for a session's lock, each.
	QueueTimeout time.Duration
	// IdleTTL is the idle time after which a session is reaped, where its creator
	// names none; IdleTTLCap bounds what a creator may name.
	IdleTTL, IdleTTLCap time.Duration
	// SweepInterval is the longest that an expired session waits to be reaped.
	SweepInterval time.Duration

	// ExecTimeoutCap and DefaultExecTimeout bound a run's wall clock.
	ExecTimeoutCap, DefaultExecTimeout time.Duration
	// MaxBodyBytes bounds a request body, MaxStorageBodyBytes that of /storage/put.
	MaxBodyBytes, MaxStorageBodyBytes int64
	// MaxCodeBytes bounds a program's source, in bytes of UTF-8.
	MaxCodeBytes int
	// MaxUploadBytes bounds an uploaded file, decoded.
	MaxUploadBytes int64
	// MaxOutputBytes bounds each of stdout and stderr.
	MaxOutputBytes int
	// MaxArtifactBytes, MaxFilesPerExec and MaxTotalArtifactBytes bound what a run
	// gives back; zero gives back nothing.
	MaxArtifactBytes      int64
	MaxFilesPerExec       int
	MaxTotalArtifactBytes int64
	// MaxCollect bounds collecting a run's artifacts, CollectFileTimeout the
	// longest silence while one of them is sent.
	MaxCollect, CollectFileTimeout time.Duration

	// LocalStorageDir is the directory of the "local" provider; empty makes that
	// provider ineffective.
	LocalStorageDir string
	// MaxArchiveBytes bounds a compressed archive, ArchiveTimeout making it.
	MaxArchiveBytes int64
	ArchiveTimeout  time.Duration
	// StorageDefaultTTL and StorageMaxTTL are for presigned URLs.
	StorageDefaultTTL, StorageMaxTTL time.Duration
	// S3MaxAttempts counts the first attempt too.
	S3MaxAttempts                   int
	S3ConnectTimeout, S3ReadTimeout time.Duration
	OSSConnectTimeout               time.Duration
}

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
	tib = 1 << 40
)

// Default returns the configuration of an empty environment. StateDir and
// ImageDir are left empty: they depend on who runs the service, and Load fills
// them in.
func Default() Config {
	return Config{
		Listen:   "127.0.0.1:48217",
		Docs:     true,
		Instance: "default",
		LogLevel: "info",

		Driver:            "docker",
		DockerCallTimeout: 30 * time.Second,
		Image:             "aivory-sandbox:latest",
		Preload:           []string{"numpy", "pandas", "matplotlib.pyplot"},

		Memory:         2 * gib,
		NanoCPUs:       1e9,
		PidsLimit:      256,
		NofileSoft:     1024,
		NofileHard:     1024,
		ReadOnlyRootfs: true,
		TmpfsSize:      256 * mib,
		WorkspaceSize:  512 * mib,

		MaxSessions:          16,
		MaxConcurrentExecs:   4,
		MaxConcurrentCreates: 2,
		PoolSize:             1,
		QueueTimeout:         150 * time.Second,
		IdleTTL:              30 * time.Minute,
		IdleTTLCap:           24 * time.Hour,
		SweepInterval:        5 * time.Minute,

		ExecTimeoutCap:        2 * time.Minute,
		DefaultExecTimeout:    2 * time.Minute,
		MaxBodyBytes:          56 * mib,
		MaxStorageBodyBytes:   300 * mib,
		MaxCodeBytes:          mib,
		MaxUploadBytes:        40 * mib,
		MaxOutputBytes:        32 * kib,
		MaxArtifactBytes:      20 * mib,
		MaxFilesPerExec:       20,
		MaxTotalArtifactBytes: 50 * mib,
		MaxCollect:            time.Minute,
		CollectFileTimeout:    30 * time.Second,

		MaxArchiveBytes:   200 * mib,
		ArchiveTimeout:    2 * time.Minute,
		StorageDefaultTTL: time.Hour,
		StorageMaxTTL:     24 * time.Hour,
		S3MaxAttempts:     3,
		S3ConnectTimeout:  10 * time.Second,
		S3ReadTimeout:     2 * time.Minute,
		OSSConnectTimeout: 30 * time.Second,
	}
}
