package config

// variable ties an environment variable to a field.
type variable struct {
	name string
	// accepts completes "accepted is …" in the message about a bad value.
	accepts string
	// set parses a value, trimmed of white space, into c; false where it is not
	// accepted.
	set func(c *Config, value string) bool
	// keepsEmpty says that a value which is set but empty means something of its
	// own. Elsewhere it is as if it were not set.
	keepsEmpty bool
	// secret keeps the value out of every message.
	secret bool
}

// longestSeconds bounds what has no bound of its own, so that no sum overflows.
const longestSeconds = 30 * 24 * 60 * 60

// variables is every variable that the service reads, but for
// SANDBOX_WORKSPACE_TMPFS_SIZE, an older name (see olderNames), and those of
// the Docker client.
var variables = []variable{
	{name: "SANDBOX_LISTEN", accepts: "host:port, such as 127.0.0.1:48217 or [::1]:48217",
		set: matches(func(c *Config) *string { return &c.Listen }, isListenAddress)},
	{name: "SANDBOX_API_KEY", accepts: "a key without spaces or control characters", secret: true,
		set: matches(func(c *Config) *string { return &c.APIKey }, isPlain)},
	{name: "SANDBOX_ALLOW_NO_AUTH", keepsEmpty: true,
		set: func(c *Config, v string) bool { on, known := parseBool(v); c.AllowNoAuth = on && known; return true }},
	{name: "SANDBOX_METRICS_KEY", accepts: "a key without spaces or control characters", secret: true,
		set: matches(func(c *Config) *string { return &c.MetricsKey }, isPlain)},
	{name: "SANDBOX_PPROF_LISTEN", accepts: "a loopback address and a port, such as 127.0.0.1:6060",
		set: matches(func(c *Config) *string { return &c.PprofListen }, isLoopbackAddress)},
	boolean("SANDBOX_DOCS", func(c *Config) *bool { return &c.Docs }),
	{name: "SANDBOX_INSTANCE", accepts: "1 to 63 letters, digits, '_', '.' or '-', the first a letter or digit",
		set: matches(func(c *Config) *string { return &c.Instance }, instancePattern.MatchString)},
	{name: "SANDBOX_STATE_DIR", accepts: "a directory's path",
		set: path(func(c *Config) *string { return &c.StateDir })},
	{name: "SANDBOX_LOG_LEVEL", accepts: "debug, info, warn or error",
		set: oneOf(func(c *Config) *string { return &c.LogLevel }, "debug", "info", "warn", "error")},
	{name: "SANDBOX_LOG_FORMAT", accepts: "json or text",
		set: oneOf(func(c *Config) *string { return &c.LogFormat }, "json", "text")},

	{name: "SANDBOX_DRIVER", accepts: "docker or oci",
		set: oneOf(func(c *Config) *string { return &c.Driver }, "docker", "oci")},
	{name: "SANDBOX_RUNTIME", accepts: "a runtime's name or path, without spaces",
		set: matches(func(c *Config) *string { return &c.Runtime }, isPlain)},
	seconds("SANDBOX_DOCKER_CALL_TIMEOUT_S", func(c *Config) *dur { return &c.DockerCallTimeout }, 1, 3600),
	{name: "SANDBOX_IMAGE", accepts: "an image reference, without spaces",
		set: matches(func(c *Config) *string { return &c.Image }, isPlain)},
	{name: "SANDBOX_IMAGE_DIR", accepts: "a directory's path",
		set: path(func(c *Config) *string { return &c.ImageDir })},
	boolean("SANDBOX_PULL_ON_START", func(c *Config) *bool { return &c.PullOnStart }),
	{name: "SANDBOX_PRELOAD", accepts: "module names separated by commas, or nothing", keepsEmpty: true,
		set: func(c *Config, v string) (ok bool) { c.Preload, ok = parseModules(v); return ok }},

	{name: "SANDBOX_MEMORY", accepts: "a size of at least 6m, such as 512m, 2G or bytes without a unit, or 0 for no limit",
		set: func(c *Config, v string) bool { return parseSize(v, 6*mib, 1024*tib, true, &c.Memory) }},
	{name: "SANDBOX_CPUS", accepts: "a number of CPUs of at least 0.01, such as 0.75, or 0 for no limit",
		set: func(c *Config, v string) (ok bool) { c.NanoCPUs, ok = parseCPUs(v); return ok }},
	{name: "SANDBOX_PIDS_LIMIT", accepts: "a number of at least 16, or 0 or -1 for no limit",
		set: func(c *Config, v string) bool { return parsePids(v, &c.PidsLimit) }},
	{name: "SANDBOX_NOFILE_ULIMIT", accepts: "soft:hard or one number for both, each at least 64, soft not above hard, or -1 for no limit",
		set: func(c *Config, v string) bool { return parseNofile(v, &c.NofileSoft, &c.NofileHard) }},
	boolean("SANDBOX_READ_ONLY_ROOTFS", func(c *Config) *bool { return &c.ReadOnlyRootfs }),
	bytes("SANDBOX_TMPFS_SIZE", func(c *Config) *int64 { return &c.TmpfsSize }, mib, tib),
	bytes("SANDBOX_WORKSPACE_SIZE", func(c *Config) *int64 { return &c.WorkspaceSize }, mib, tib),
	{name: "SANDBOX_DISK_SIZE", accepts: "a size of at least 1m, such as 10G, or nothing", set: setDiskSize},
	{name: "SANDBOX_SECCOMP_PROFILE", accepts: "the path of a file that can be read",
		set: file(func(c *Config) *string { return &c.SeccompProfile })},

	limit("SANDBOX_MAX_SESSIONS", func(c *Config) *int { return &c.MaxSessions }),
	limit("SANDBOX_MAX_CONCURRENT_EXECS", func(c *Config) *int { return &c.MaxConcurrentExecs }),
	limit("SANDBOX_MAX_CONCURRENT_CREATES", func(c *Config) *int { return &c.MaxConcurrentCreates }),
	count("SANDBOX_POOL_SIZE", func(c *Config) *int { return &c.PoolSize }, 0, 1000),
	seconds("SANDBOX_QUEUE_TIMEOUT_SECONDS", func(c *Config) *dur { return &c.QueueTimeout }, 0, longestSeconds),
	seconds("SANDBOX_IDLE_TTL_SECONDS", func(c *Config) *dur { return &c.IdleTTL }, 1, 366*24*3600),
	seconds("SANDBOX_IDLE_TTL_CAP_SECONDS", func(c *Config) *dur { return &c.IdleTTLCap }, 1, 366*24*3600),
	seconds("SANDBOX_IDLE_REAPER_SWEEP_INTERVAL", func(c *Config) *dur { return &c.SweepInterval }, 1, longestSeconds),

	milliseconds("SANDBOX_EXEC_TIMEOUT_CAP_MS", func(c *Config) *dur { return &c.ExecTimeoutCap }, 1000, longestSeconds*1000),
	milliseconds("SANDBOX_DEFAULT_EXEC_TIMEOUT_MS", func(c *Config) *dur { return &c.DefaultExecTimeout }, 1000, longestSeconds*1000),
	bytes("SANDBOX_MAX_BODY_BYTES", func(c *Config) *int64 { return &c.MaxBodyBytes }, kib, tib),
	bytes("SANDBOX_MAX_STORAGE_BODY_BYTES", func(c *Config) *int64 { return &c.MaxStorageBodyBytes }, kib, tib),
	bytes("SANDBOX_MAX_CODE_BYTES", func(c *Config) *int { return &c.MaxCodeBytes }, 1, 64*mib),
	bytes("SANDBOX_MAX_UPLOAD_BYTES", func(c *Config) *int64 { return &c.MaxUploadBytes }, 0, tib),
	bytes("SANDBOX_MAX_OUTPUT_BYTES", func(c *Config) *int { return &c.MaxOutputBytes }, kib, 64*mib),
	bytes("SANDBOX_MAX_ARTIFACT_BYTES", func(c *Config) *int64 { return &c.MaxArtifactBytes }, 0, tib),
	count("SANDBOX_MAX_FILES_PER_EXEC", func(c *Config) *int { return &c.MaxFilesPerExec }, 0, 10000),
	bytes("SANDBOX_MAX_TOTAL_ARTIFACT_BYTES", func(c *Config) *int64 { return &c.MaxTotalArtifactBytes }, 0, tib),
	seconds("SANDBOX_MAX_COLLECT_SECONDS", func(c *Config) *dur { return &c.MaxCollect }, 1, longestSeconds),
	seconds("SANDBOX_COLLECT_FILE_TIMEOUT_S", func(c *Config) *dur { return &c.CollectFileTimeout }, 1, longestSeconds),

	{name: "SANDBOX_LOCAL_STORAGE_DIR", accepts: "a directory's path, or nothing",
		set: path(func(c *Config) *string { return &c.LocalStorageDir })},
	bytes("SANDBOX_MAX_ARCHIVE_BYTES", func(c *Config) *int64 { return &c.MaxArchiveBytes }, kib, tib),
	seconds("SANDBOX_ARCHIVE_TIMEOUT_S", func(c *Config) *dur { return &c.ArchiveTimeout }, 1, longestSeconds),
	// Signatures of S3 and OSS are good for seven days at most.
	seconds("SANDBOX_STORAGE_DEFAULT_TTL", func(c *Config) *dur { return &c.StorageDefaultTTL }, 1, 7*24*3600),
	seconds("SANDBOX_STORAGE_MAX_TTL", func(c *Config) *dur { return &c.StorageMaxTTL }, 1, 7*24*3600),
	count("SANDBOX_S3_MAX_ATTEMPTS", func(c *Config) *int { return &c.S3MaxAttempts }, 1, 100),
	seconds("SANDBOX_S3_CONNECT_TIMEOUT_S", func(c *Config) *dur { return &c.S3ConnectTimeout }, 1, longestSeconds),
	seconds("SANDBOX_S3_READ_TIMEOUT_S", func(c *Config) *dur { return &c.S3ReadTimeout }, 1, longestSeconds),
	seconds("SANDBOX_OSS_CONNECT_TIMEOUT_S", func(c *Config) *dur { return &c.OSSConnectTimeout }, 1, longestSeconds),
}

// olderNames are read where the newer variable is not set.
var olderNames = map[string]string{
	"SANDBOX_WORKSPACE_SIZE": "SANDBOX_WORKSPACE_TMPFS_SIZE",
}

// clientNames are variables that clients of the service read; a shell that runs
// both may well have them.
var clientNames = []string{"SANDBOX_URL", "SANDBOX_BASE_URL"}

// Names returns the name of every variable that Load reads.
func Names() []string {
	names := make([]string, 0, len(variables)+len(olderNames))
	for _, v := range variables {
		names = append(names, v.name)
	}
	for _, older := range olderNames {
		names = append(names, older)
	}
	return names
}
