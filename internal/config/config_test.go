package config

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// load is Load with a key and a state directory, which every start needs.
func load(t *testing.T, environ ...string) (Config, []string, error) {
	t.Helper()
	return Load(append([]string{"SANDBOX_API_KEY=key", "SANDBOX_STATE_DIR=/state"}, environ...))
}

func mustLoad(t *testing.T, environ ...string) Config {
	t.Helper()
	c, _, err := load(t, environ...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestEmptyEnvironmentIsDefault(t *testing.T) {
	want := Default()
	want.APIKey, want.StateDir, want.ImageDir = "key", "/state", "/state/images"
	if diff := cmp.Diff(want, mustLoad(t)); diff != "" {
		t.Error(diff)
	}
}

func TestValues(t *testing.T) {
	file, err := filepath.Abs("config_test.go")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		env  string
		want func(c *Config)
	}{
		{"SANDBOX_PPROF_LISTEN=[::1]:6060", func(c *Config) { c.PprofListen = "[::1]:6060" }},
		{"SANDBOX_PPROF_LISTEN=localhost:0", func(c *Config) { c.PprofListen = "localhost:0" }},
		{"SANDBOX_METRICS_KEY= watch ", func(c *Config) { c.MetricsKey = "watch" }},
		{"SANDBOX_DOCS=0", func(c *Config) { c.Docs = false }},
		{"SANDBOX_LISTEN=0.0.0.0:8000", func(c *Config) { c.Listen = "0.0.0.0:8000" }},
		{"SANDBOX_LISTEN=:0", func(c *Config) { c.Listen = ":0" }},
		{"SANDBOX_LISTEN=[::1]:80", func(c *Config) { c.Listen = "[::1]:80" }},
		{"SANDBOX_API_KEY=  padded\n", func(c *Config) { c.APIKey = "padded" }},
		{"SANDBOX_API_KEY=schlüssel", func(c *Config) { c.APIKey = "schlüssel" }},
		{"SANDBOX_ALLOW_NO_AUTH=ON", func(c *Config) { c.AllowNoAuth = true }},
		{"SANDBOX_ALLOW_NO_AUTH=y", func(*Config) {}},
		{"SANDBOX_ALLOW_NO_AUTH=", func(*Config) {}},
		{"SANDBOX_INSTANCE=blue-2", func(c *Config) { c.Instance = "blue-2" }},
		{"SANDBOX_INSTANCE=", func(*Config) {}},
		{"SANDBOX_LOG_LEVEL=WARN", func(c *Config) { c.LogLevel = "warn" }},
		{"SANDBOX_LOG_FORMAT=text", func(c *Config) { c.LogFormat = "text" }},
		{"SANDBOX_DRIVER=oci", func(c *Config) { c.Driver = "oci" }},
		{"SANDBOX_RUNTIME=runsc", func(c *Config) { c.Runtime = "runsc" }},
		{"SANDBOX_DOCKER_CALL_TIMEOUT_S=2.5", func(c *Config) { c.DockerCallTimeout = 2500 * time.Millisecond }},
		{"SANDBOX_IMAGE= registry:5000/a/b:c ", func(c *Config) { c.Image = "registry:5000/a/b:c" }},
		{"SANDBOX_IMAGE_DIR=/srv/images/", func(c *Config) { c.ImageDir = "/srv/images" }},
		{"SANDBOX_PULL_ON_START=Yes", func(c *Config) { c.PullOnStart = true }},
		{"SANDBOX_PRELOAD= json, a.b ,", func(c *Config) { c.Preload = []string{"json", "a.b"} }},
		{"SANDBOX_PRELOAD=", func(c *Config) { c.Preload = nil }},
		{"SANDBOX_MEMORY=512m", func(c *Config) { c.Memory = 512 << 20 }},
		{"SANDBOX_MEMORY=2G", func(c *Config) { c.Memory = 2 << 30 }},
		{"SANDBOX_MEMORY=1.5GiB", func(c *Config) { c.Memory = 3 << 29 }},
		{"SANDBOX_MEMORY=1073741824", func(c *Config) { c.Memory = 1 << 30 }},
		{"SANDBOX_MEMORY=6m", func(c *Config) { c.Memory = 6 << 20 }},
		{"SANDBOX_MEMORY=0", func(c *Config) { c.Memory = 0 }},
		{"SANDBOX_CPUS=0.75", func(c *Config) { c.NanoCPUs = 750_000_000 }},
		{"SANDBOX_CPUS=16", func(c *Config) { c.NanoCPUs = 16e9 }},
		{"SANDBOX_CPUS=0", func(c *Config) { c.NanoCPUs = 0 }},
		{"SANDBOX_PIDS_LIMIT=16", func(c *Config) { c.PidsLimit = 16 }},
		{"SANDBOX_PIDS_LIMIT=-1", func(c *Config) { c.PidsLimit = 0 }},
		{"SANDBOX_NOFILE_ULIMIT=256:512", func(c *Config) { c.NofileSoft, c.NofileHard = 256, 512 }},
		{"SANDBOX_NOFILE_ULIMIT=2048", func(c *Config) { c.NofileSoft, c.NofileHard = 2048, 2048 }},
		{"SANDBOX_NOFILE_ULIMIT=-1", func(c *Config) { c.NofileSoft, c.NofileHard = -1, -1 }},
		{"SANDBOX_NOFILE_ULIMIT=1024:-1", func(c *Config) { c.NofileSoft, c.NofileHard = 1024, -1 }},
		{"SANDBOX_READ_ONLY_ROOTFS=off", func(c *Config) { c.ReadOnlyRootfs = false }},
		{"SANDBOX_READ_ONLY_ROOTFS=", func(c *Config) { c.ReadOnlyRootfs = false }},
		{"SANDBOX_TMPFS_SIZE=64M", func(c *Config) { c.TmpfsSize = 64 << 20 }},
		{"SANDBOX_WORKSPACE_SIZE=1g", func(c *Config) { c.WorkspaceSize = 1 << 30 }},
		{"SANDBOX_WORKSPACE_TMPFS_SIZE=1g", func(c *Config) { c.WorkspaceSize = 1 << 30 }},
		{"SANDBOX_DISK_SIZE=10G", func(c *Config) { c.DiskSize = "10G" }},
		{"SANDBOX_DISK_SIZE=", func(*Config) {}},
		{"SANDBOX_SECCOMP_PROFILE=config_test.go", func(c *Config) { c.SeccompProfile = file }},
		{"SANDBOX_MAX_SESSIONS=2", func(c *Config) { c.MaxSessions = 2 }},
		{"SANDBOX_MAX_SESSIONS=0", func(c *Config) { c.MaxSessions = 0 }},
		{"SANDBOX_MAX_CONCURRENT_EXECS=-7", func(c *Config) { c.MaxConcurrentExecs = 0 }},
		{"SANDBOX_MAX_CONCURRENT_CREATES=9", func(c *Config) { c.MaxConcurrentCreates = 9 }},
		{"SANDBOX_POOL_SIZE=0", func(c *Config) { c.PoolSize = 0 }},
		{"SANDBOX_QUEUE_TIMEOUT_SECONDS=0", func(c *Config) { c.QueueTimeout = 0 }},
		{"SANDBOX_IDLE_TTL_SECONDS=60", func(c *Config) { c.IdleTTL = time.Minute }},
		{"SANDBOX_IDLE_TTL_CAP_SECONDS=3", func(c *Config) { c.IdleTTLCap = 3 * time.Second }},
		{"SANDBOX_IDLE_REAPER_SWEEP_INTERVAL=2", func(c *Config) { c.SweepInterval = 2 * time.Second }},
		{"SANDBOX_EXEC_TIMEOUT_CAP_MS=600000", func(c *Config) { c.ExecTimeoutCap = 10 * time.Minute }},
		{"SANDBOX_DEFAULT_EXEC_TIMEOUT_MS=1500", func(c *Config) { c.DefaultExecTimeout = 1500 * time.Millisecond }},
		{"SANDBOX_MAX_BODY_BYTES=200000", func(c *Config) { c.MaxBodyBytes = 200000 }},
		{"SANDBOX_MAX_STORAGE_BODY_BYTES=1g", func(c *Config) { c.MaxStorageBodyBytes = 1 << 30 }},
		{"SANDBOX_MAX_CODE_BYTES=2000", func(c *Config) { c.MaxCodeBytes = 2000 }},
		{"SANDBOX_MAX_UPLOAD_BYTES=1000", func(c *Config) { c.MaxUploadBytes = 1000 }},
		{"SANDBOX_MAX_OUTPUT_BYTES=2048", func(c *Config) { c.MaxOutputBytes = 2048 }},
		{"SANDBOX_MAX_ARTIFACT_BYTES=100", func(c *Config) { c.MaxArtifactBytes = 100 }},
		{"SANDBOX_MAX_FILES_PER_EXEC=3", func(c *Config) { c.MaxFilesPerExec = 3 }},
		{"SANDBOX_MAX_TOTAL_ARTIFACT_BYTES=250", func(c *Config) { c.MaxTotalArtifactBytes = 250 }},
		{"SANDBOX_MAX_COLLECT_SECONDS=5", func(c *Config) { c.MaxCollect = 5 * time.Second }},
		{"SANDBOX_COLLECT_FILE_TIMEOUT_S=6", func(c *Config) { c.CollectFileTimeout = 6 * time.Second }},
		{"SANDBOX_LOCAL_STORAGE_DIR=/srv/x/../archives", func(c *Config) { c.LocalStorageDir = "/srv/archives" }},
		{"SANDBOX_MAX_ARCHIVE_BYTES=200000", func(c *Config) { c.MaxArchiveBytes = 200000 }},
		{"SANDBOX_ARCHIVE_TIMEOUT_S=7", func(c *Config) { c.ArchiveTimeout = 7 * time.Second }},
		{"SANDBOX_STORAGE_DEFAULT_TTL=8", func(c *Config) { c.StorageDefaultTTL = 8 * time.Second }},
		{"SANDBOX_STORAGE_MAX_TTL=604800", func(c *Config) { c.StorageMaxTTL = 7 * 24 * time.Hour }},
		{"SANDBOX_S3_MAX_ATTEMPTS=1", func(c *Config) { c.S3MaxAttempts = 1 }},
		{"SANDBOX_S3_CONNECT_TIMEOUT_S=11", func(c *Config) { c.S3ConnectTimeout = 11 * time.Second }},
		{"SANDBOX_S3_READ_TIMEOUT_S=12", func(c *Config) { c.S3ReadTimeout = 12 * time.Second }},
		{"SANDBOX_OSS_CONNECT_TIMEOUT_S=13", func(c *Config) { c.OSSConnectTimeout = 13 * time.Second }},
	}
	for _, tt := range tests {
		t.Run(tt.env, func(t *testing.T) {
			want := Default()
			want.APIKey, want.StateDir, want.ImageDir = "key", "/state", "/state/images"
			tt.want(&want)
			if diff := cmp.Diff(want, mustLoad(t, tt.env)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for _, env := range []string{
		"SANDBOX_PPROF_LISTEN=0.0.0.0:6060", "SANDBOX_PPROF_LISTEN=:6060", "SANDBOX_PPROF_LISTEN=10.0.0.1:1", "SANDBOX_PPROF_LISTEN=127.0.0.1", "SANDBOX_DOCS=maybe",
		"SANDBOX_LISTEN=localhost", "SANDBOX_LISTEN=1.2.3.4:x", "SANDBOX_LISTEN=1.2.3.4:65536", "SANDBOX_LISTEN=a b:1",
		"SANDBOX_INSTANCE=-x", "SANDBOX_INSTANCE=a b", "SANDBOX_INSTANCE=" + strings.Repeat("a", 64),
		"SANDBOX_LOG_LEVEL=loud", "SANDBOX_LOG_FORMAT=xml", "SANDBOX_DRIVER=podman", "SANDBOX_IMAGE=a b",
		"SANDBOX_PULL_ON_START=2", "SANDBOX_READ_ONLY_ROOTFS=nope", "SANDBOX_PRELOAD=os;sys", "SANDBOX_PRELOAD=a..b",
		"SANDBOX_MEMORY=2x", "SANDBOX_MEMORY=-1", "SANDBOX_MEMORY=5m", "SANDBOX_MEMORY=9223372036854775808", "SANDBOX_MEMORY=8388608t",
		"SANDBOX_MEMORY=99999999999999999999p", "SANDBOX_MEMORY=inf", "SANDBOX_MEMORY=nan", "SANDBOX_MEMORY=1e400",
		"SANDBOX_CPUS=two", "SANDBOX_CPUS=-1", "SANDBOX_CPUS=0.001", "SANDBOX_CPUS=0.7500000001", "SANDBOX_CPUS=1e9", "SANDBOX_CPUS=65537",
		"SANDBOX_CPUS=99999999999999999999", "SANDBOX_CPUS=" + strings.Repeat("1", 40), "SANDBOX_CPUS=1/0",
		"SANDBOX_PIDS_LIMIT=-2", "SANDBOX_PIDS_LIMIT=15", "SANDBOX_PIDS_LIMIT=1.5", "SANDBOX_PIDS_LIMIT=2147483648", "SANDBOX_PIDS_LIMIT=99999999999999999999",
		"SANDBOX_NOFILE_ULIMIT=1024:512", "SANDBOX_NOFILE_ULIMIT=1:2:3", "SANDBOX_NOFILE_ULIMIT=-2", "SANDBOX_NOFILE_ULIMIT=63", "SANDBOX_NOFILE_ULIMIT=-1:1024", "SANDBOX_NOFILE_ULIMIT=many",
		"SANDBOX_TMPFS_SIZE=0", "SANDBOX_WORKSPACE_SIZE=1023k", "SANDBOX_WORKSPACE_TMPFS_SIZE=big", "SANDBOX_DISK_SIZE=0", "SANDBOX_DISK_SIZE=large",
		"SANDBOX_MAX_SESSIONS=1.5", "SANDBOX_MAX_SESSIONS=many", "SANDBOX_MAX_SESSIONS=1000001", "SANDBOX_POOL_SIZE=-1",
		"SANDBOX_QUEUE_TIMEOUT_SECONDS=-1", "SANDBOX_QUEUE_TIMEOUT_SECONDS=1e3", "SANDBOX_QUEUE_TIMEOUT_SECONDS=NaN", "SANDBOX_QUEUE_TIMEOUT_SECONDS=2592001", "SANDBOX_QUEUE_TIMEOUT_SECONDS=5s",
		"SANDBOX_IDLE_TTL_SECONDS=0", "SANDBOX_EXEC_TIMEOUT_CAP_MS=999", "SANDBOX_EXEC_TIMEOUT_CAP_MS=1000.5", "SANDBOX_EXEC_TIMEOUT_CAP_MS=9223372036854775808",
		"SANDBOX_MAX_BODY_BYTES=1", "SANDBOX_MAX_BODY_BYTES=2t", "SANDBOX_MAX_CODE_BYTES=0", "SANDBOX_MAX_OUTPUT_BYTES=65m", "SANDBOX_MAX_FILES_PER_EXEC=-1",
		"SANDBOX_STORAGE_MAX_TTL=604801", "SANDBOX_S3_MAX_ATTEMPTS=0", "SANDBOX_SECCOMP_PROFILE=/no/such/file", "SANDBOX_SECCOMP_PROFILE=/",
	} {
		t.Run(env, func(t *testing.T) {
			name, value, _ := strings.Cut(env, "=")
			_, _, err := load(t, env)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range []string{name + ": ", `"` + value + `"`, "; accepted is "} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the message lacks %q: %v", want, err)
				}
			}
		})
	}
}

func TestOneMessageNamesAll(t *testing.T) {
	_, _, err := Load([]string{"SANDBOX_STATE_DIR=/s", "SANDBOX_API_KEY=se cret", "SANDBOX_MEMORY=lots", "SANDBOX_CPUS=-1", "SANDBOX_MAX_BODY_BYTES=" + strings.Repeat("9", 5000)})
	if err == nil {
		t.Fatal("accepted")
	}
	text := err.Error()
	for _, want := range []string{"SANDBOX_API_KEY: is not accepted", `SANDBOX_MEMORY: "lots"`, `SANDBOX_CPUS: "-1"`, "SANDBOX_MAX_BODY_BYTES: "} {
		if !strings.Contains(text, want) {
			t.Errorf("the message lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "cret") {
		t.Errorf("the message holds the key:\n%s", text)
	}
	if strings.Contains(text, "is not set") {
		t.Errorf("the message calls a bad key missing:\n%s", text)
	}
	if _, warnings, err := load(t, "SANDBOX_MEMORY=lots", "SANDBOX_MEMRY=1g"); err == nil || len(warnings) != 1 || !strings.Contains(warnings[0], "SANDBOX_MEMRY") {
		t.Errorf("warnings beside an error: %q, %v", warnings, err)
	}
	if len(text) > 2000 {
		t.Errorf("the message has %d bytes", len(text))
	}
}

func TestKeyIsNeeded(t *testing.T) {
	for _, env := range [][]string{{}, {"SANDBOX_API_KEY="}, {"SANDBOX_API_KEY= \t"}, {"SANDBOX_ALLOW_NO_AUTH=maybe"}} {
		_, _, err := Load(append(env, "SANDBOX_STATE_DIR=/s"))
		if err == nil || !strings.Contains(err.Error(), "SANDBOX_API_KEY: is not set") {
			t.Errorf("%q: %v", env, err)
		}
	}
	c, warnings, err := Load([]string{"SANDBOX_ALLOW_NO_AUTH=1", "SANDBOX_STATE_DIR=/s", "SANDBOX_LISTEN=0.0.0.0:1"})
	if err != nil || c.APIKey != "" || !c.AllowNoAuth {
		t.Errorf("without authentication: %+v, %v", c, err)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "not a loopback") {
		t.Errorf("warnings: %q", warnings)
	}
}

func TestOlderName(t *testing.T) {
	const older = "SANDBOX_WORKSPACE_TMPFS_SIZE=64m"
	if c := mustLoad(t, older, "SANDBOX_WORKSPACE_SIZE=1g"); c.WorkspaceSize != 1<<30 {
		t.Errorf("the older name won: %d", c.WorkspaceSize)
	}
	if c := mustLoad(t, older, "SANDBOX_WORKSPACE_SIZE="); c.WorkspaceSize != 64<<20 {
		t.Errorf("an empty newer variable hides the older: %d", c.WorkspaceSize)
	}
	_, _, err := load(t, "SANDBOX_WORKSPACE_TMPFS_SIZE=big")
	if err == nil || !strings.Contains(err.Error(), "SANDBOX_WORKSPACE_TMPFS_SIZE: ") {
		t.Errorf("the message does not name the variable that was set: %v", err)
	}
}

func TestWarnings(t *testing.T) {
	tests := []struct {
		env  []string
		want string // empty: no warning
	}{
		{nil, ""},
		{[]string{"SANDBOX_MEMORY=1152m"}, ""},
		{[]string{"SANDBOX_MEMORY=1151m"}, "SANDBOX_MEMORY (1.124GiB)"},
		{[]string{"SANDBOX_WORKSPACE_SIZE=2g"}, "SANDBOX_MEMORY (2GiB)"},
		{[]string{"SANDBOX_MEMORY=64m", "SANDBOX_READ_ONLY_ROOTFS=0", "SANDBOX_DISK_SIZE=1g"}, ""},
		{[]string{"SANDBOX_READ_ONLY_ROOTFS=0"}, "fill the host's disk"},
		{[]string{"SANDBOX_MEMORY=0"}, "all of the host's memory"},
		{[]string{"SANDBOX_PIDS_LIMIT=0"}, "host's processes"},
		{[]string{"SANDBOX_MEMRY=1g"}, "SANDBOX_MEMRY is set"},
		{[]string{"SANDBOX_URL=http://x", "OTHER=1"}, ""},
	}
	for _, tt := range tests {
		_, warnings, err := load(t, tt.env...)
		if err != nil {
			t.Errorf("%q: %v", tt.env, err)
		}
		if tt.want == "" && len(warnings) > 0 || tt.want != "" && (len(warnings) != 1 || !strings.Contains(warnings[0], tt.want)) {
			t.Errorf("%q: warnings %q, wanted one with %q", tt.env, warnings, tt.want)
		}
	}
}

func TestDefaultStateDir(t *testing.T) {
	tests := []struct {
		uid  int
		env  environment
		want string
	}{
		{0, environment{"HOME": "/root"}, "/var/lib/aivory-sandbox"},
		{1000, environment{"HOME": "/home/a"}, "/home/a/.local/state/aivory-sandbox"},
		{1000, environment{"HOME": "/home/a", "XDG_STATE_HOME": "/x"}, "/x/aivory-sandbox"},
		{1000, environment{"HOME": "/home/a", "XDG_STATE_HOME": "relative"}, "/home/a/.local/state/aivory-sandbox"},
	}
	for _, tt := range tests {
		if got, err := defaultStateDir(tt.env, tt.uid); err != nil || got != tt.want {
			t.Errorf("uid %d, %v: %q, %v; wanted %q", tt.uid, tt.env, got, err, tt.want)
		}
	}
	if _, err := defaultStateDir(nil, 1000); err == nil {
		t.Error("a user without a home gets a state directory")
	}
}

func TestListenAddress(t *testing.T) {
	for _, tt := range []struct{ env, want string }{{"X=1", "127.0.0.1:48217"}, {"SANDBOX_LISTEN=:1", ":1"}, {"SANDBOX_LISTEN=", "127.0.0.1:48217"}} {
		if got, err := ListenAddress([]string{"SANDBOX_MEMORY=bad", tt.env}); err != nil || got != tt.want {
			t.Errorf("%s: %q, %v", tt.env, got, err)
		}
	}
	if _, err := ListenAddress([]string{"SANDBOX_LISTEN=nowhere"}); err == nil || !strings.Contains(err.Error(), "SANDBOX_LISTEN") {
		t.Errorf("a bad address: %v", err)
	}
}

func TestNamesAreUnique(t *testing.T) {
	names := Names()
	slices.Sort(names)
	if len(slices.Compact(names)) != len(variables)+len(olderNames) {
		t.Error("a variable is listed twice")
	}
}
