package oci

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci/image"
)

// Annotations of a runner: the labels of other drivers, and its image.
const (
	noteSession  = "aivory.session_id"
	noteCreated  = "aivory.created_at"
	noteInstance = "aivory.instance"
	noteRuntime  = "aivory.runtime"
	noteImage    = image.Annotation
)

// cgroupParent is the cgroup that runners' own are in.
const cgroupParent = "aivory-sandbox"

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// masked and readonly are what Docker hides and protects.
var (
	masked = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi",
		"/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// config is the security posture: all that the runtime is told of one runner.
func (d *Driver) config(spec runner.Spec, img *image.Image, root string) (*specs.Spec, error) {
	l := spec.Limits
	process := d.process(l, img)
	process.User = specs.User{UID: runner.InitUID, GID: runner.InitGID}
	process.Args = runner.InitCommand
	c := &specs.Spec{
		Version:  "1.0.2",
		Process:  &process,
		Root:     &specs.Root{Path: root, Readonly: l.ReadOnlyRootfs},
		Hostname: spec.SessionID[:12],
		Mounts:   append(system(), tmpfs(l, img)...),
		Annotations: map[string]string{
			noteSession:  spec.SessionID,
			noteCreated:  strconv.FormatInt(spec.CreatedAt.Unix(), 10),
			noteRuntime:  d.runtime.path,
			noteInstance: d.cfg.Instance,
			noteImage:    img.Digest,
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.NetworkNamespace}, // with nothing but loopback in it
			},
			CgroupsPath:   "/" + path.Join(cgroupParent, handle(spec.SessionID)),
			Resources:     d.resources(l),
			MaskedPaths:   masked,
			ReadonlyPaths: readonly,
		},
	}
	if d.runtime.name == crun && !d.host.unified {
		// It mounts the hierarchies read-only, but on a tmpfs that anybody can write to.
		c.Mounts = append(c.Mounts, specs.Mount{Destination: cgroupRoot, Type: "tmpfs", Source: "cgroup",
			Options: []string{"remount", "nosuid", "noexec", "nodev", "relatime", "ro"}})
	}
	if runner.GVisor(d.runtime.name) {
		for _, dir := range runner.GVisorLacks {
			c.Mounts = append(c.Mounts, specs.Mount{Destination: dir, Type: "tmpfs", Source: "tmpfs",
				Options: []string{"ro", "nosuid", "noexec", "nodev", "mode=755", "size=4096"}})
		}
	}
	if d.host.cgroupNamespace {
		c.Linux.Namespaces = append(c.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	if d.host.rootless != nil {
		d.host.rootless.enter(c, l)
	}
	var err error
	c.Linux.Seccomp, err = filter(d.profile, c)
	return c, err
}

// process is what process 1 and the agents have in common.
func (d *Driver) process(l runner.Limits, img *image.Image) specs.Process {
	return specs.Process{
		Cwd:             "/",
		Env:             mergeEnv(append([]string{defaultPath}, img.Env...), runner.Environment),
		Capabilities:    &specs.LinuxCapabilities{},
		NoNewPrivileges: true,
		Rlimits:         d.rlimits(l),
	}
}

// mergeEnv returns base with the values of over in place of its own.
func mergeEnv(base, over []string) []string {
	var merged []string
	for _, entry := range slices.Concat(base, over) {
		name, _, ok := strings.Cut(entry, "=")
		if !ok {
			continue
		}
		merged = slices.DeleteFunc(merged, func(e string) bool { return strings.HasPrefix(e, name+"=") })
		merged = append(merged, entry)
	}
	return merged
}

// system are the file systems that every runner has.
func system() []specs.Mount {
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		// The agent counts there what the kernel killed for want of memory.
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
	}
}

// tmpfs are the writable directories of a runner whose root is read-only.
// Volumes that the image declares become tmpfs as well.
//
// The owner is given because runc 1.1.5 keeps the mode of a directory that is
// there already and ignores mode=.
func tmpfs(l runner.Limits, img *image.Image) []specs.Mount {
	if !l.ReadOnlyRootfs {
		return nil
	}
	var mounts []specs.Mount
	add := func(path string, mode uint32, size int64) {
		mounts = slices.DeleteFunc(mounts, func(m specs.Mount) bool { return m.Destination == path })
		mounts = append(mounts, specs.Mount{Destination: path, Type: "tmpfs", Source: "tmpfs", Options: []string{
			"rw", "exec", "nosuid", "nodev", fmt.Sprintf("size=%d", size),
			fmt.Sprintf("uid=%d", runner.ProgramUID), fmt.Sprintf("gid=%d", runner.ProgramGID), fmt.Sprintf("mode=%o", mode),
		}})
	}
	for _, v := range img.Volumes {
		add(v, 0o755, l.TmpfsBytes)
	}
	for _, dir := range runner.Writable {
		size := l.TmpfsBytes
		if dir.Path == runner.Workspace {
			size = l.WorkspaceBytes
		}
		add(dir.Path, dir.Mode, size)
	}
	// A mount hides what was mounted below it before.
	slices.SortFunc(mounts, func(a, b specs.Mount) int { return strings.Compare(a.Destination, b.Destination) })
	return mounts
}

// cpuPeriod is the length of the kernel's accounting period, microseconds.
const cpuPeriod = uint64(100_000)

func (d *Driver) resources(l runner.Limits) *specs.LinuxResources {
	r := &specs.LinuxResources{
		// No device but the few that the runtime makes itself.
		Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
	}
	if l.MemoryBytes > 0 {
		r.Memory = &specs.LinuxMemory{Limit: &l.MemoryBytes}
		if d.host.swapLimit {
			r.Memory.Swap = &l.MemoryBytes // memory and swap together
		}
	}
	if l.NanoCPUs > 0 {
		period := cpuPeriod
		quota := max(l.NanoCPUs*int64(period)/1e9, 1000) // the kernel's least
		r.CPU = &specs.LinuxCPU{Period: &period, Quota: &quota}
	}
	tasks := l.PidsLimit
	if runner.GVisor(d.runtime.name) {
		tasks = l.UnderGVisor().HostTasks
	}
	if tasks > 0 {
		r.Pids = &specs.LinuxPids{Limit: &tasks}
	}
	return r
}

// rlimits bounds open files and rules out core files.
func (d *Driver) rlimits(l runner.Limits) []specs.POSIXRlimit {
	limits := []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}}
	if l.NofileHard != 0 {
		limits = append(limits, specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: d.openFiles(l.NofileSoft), Hard: d.openFiles(l.NofileHard)})
	}
	if runner.GVisor(d.runtime.name) {
		own := l.UnderGVisor()
		limits = append(limits, rlimit("RLIMIT_AS", own.AddressSpace)...)
		limits = append(limits, rlimit("RLIMIT_NPROC", own.Processes)...)
	}
	return limits
}

// rlimit is one limit, soft and hard, none where it is 0.
func rlimit(kind string, most int64) []specs.POSIXRlimit {
	if most == 0 {
		return nil
	}
	return []specs.POSIXRlimit{{Type: kind, Soft: uint64(most), Hard: uint64(most)}}
}

// openFiles is a limit on open files. There is no such thing as none: the kernel
// has a bound of its own.
func (d *Driver) openFiles(n int64) uint64 {
	if n < 0 {
		return d.host.mostFiles
	}
	return uint64(n)
}
