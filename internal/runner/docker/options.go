package docker

import (
	"fmt"
	"strconv"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// containerOptions is the security posture: all that is asked of the engine for
// one runner.
func (d *Driver) containerOptions(spec runner.Spec, img *image, withQuota bool, seccomp string) client.ContainerCreateOptions {
	l := spec.Limits
	oomKillDisable, init := false, false
	host := &container.HostConfig{
		NetworkMode: "none",
		CapDrop:     []string{"ALL"},
		SecurityOpt: []string{"no-new-privileges", "seccomp=" + seccomp},
		// What the runner prints is nobody's, least of all the host disk's.
		LogConfig:    container.LogConfig{Type: "none"},
		IpcMode:      container.IPCModePrivate,
		CgroupnsMode: container.CgroupnsModePrivate,
		// Process 1 must be the shell of runner.InitCommand itself.
		Init:           &init,
		Runtime:        d.cfg.Runtime,
		ReadonlyRootfs: l.ReadOnlyRootfs,
		Tmpfs:          tmpfs(l, img, d.engine.podman.Load()),
		Resources: container.Resources{
			Memory:         l.MemoryBytes,
			MemorySwap:     l.MemoryBytes,
			OomKillDisable: &oomKillDisable,
			NanoCPUs:       l.NanoCPUs,
			Ulimits:        ulimits(l),
		},
	}
	tasks := l.PidsLimit
	if runner.GVisor(d.cfg.Runtime) {
		own := l.UnderGVisor()
		tasks = own.HostTasks
		host.Ulimits = append(host.Ulimits, ulimit("as", own.AddressSpace)...)
		host.Ulimits = append(host.Ulimits, ulimit("nproc", own.Processes)...)
		if host.Tmpfs == nil {
			host.Tmpfs = map[string]string{}
		}
		for _, dir := range runner.GVisorLacks {
			host.Tmpfs[dir] = "ro,noexec,nosuid,nodev,size=4096,mode=755"
		}
	}
	if d.engine.podman.Load() {
		host.Ulimits = append(host.Ulimits, ulimit("nproc", processesOfAll)...)
	}
	if tasks != 0 {
		host.PidsLimit = &tasks
	}
	if withQuota {
		host.StorageOpt = map[string]string{"size": l.DiskSize}
	}
	return client.ContainerCreateOptions{
		Name: runner.NamePrefix + spec.SessionID,
		Config: &container.Config{
			Image: d.cfg.Image,
			User:  fmt.Sprintf("%d:%d", runner.InitUID, runner.InitGID),
			// As the entrypoint, it leaves nothing of the image's own to be added.
			Entrypoint:      runner.InitCommand,
			Cmd:             []string{},
			Env:             runner.Environment,
			WorkingDir:      "/",
			Healthcheck:     &container.HealthConfig{Test: []string{"NONE"}},
			NetworkDisabled: img.localhost,
			Labels: map[string]string{
				labelSandbox:  sandboxMarking,
				labelSession:  spec.SessionID,
				labelCreated:  strconv.FormatInt(spec.CreatedAt.Unix(), 10),
				labelInstance: d.cfg.Instance,
			},
		},
		HostConfig: host,
	}
}

// tmpfs returns the mounts of a runner whose root is read-only. Volumes that
// the image declares would be writable without a bound on the host's disk; they
// become tmpfs as well.
//
// The owner is given because runc 1.1.5 keeps the mode of a directory that is
// there already and ignores mode=. The engine's own default is noexec, but
// programs build and run things.
func tmpfs(l runner.Limits, img *image, podman bool) map[string]string {
	if !l.ReadOnlyRootfs {
		return nil
	}
	mounts := map[string]string{}
	add := func(path string, mode, size int64) {
		owner := fmt.Sprintf("uid=%d,gid=%d,", runner.ProgramUID, runner.ProgramGID)
		if podman {
			owner = "notmpcopyup," // see giveAway
		}
		mounts[path] = fmt.Sprintf("rw,exec,nosuid,nodev,size=%d,%smode=%o", size, owner, mode)
	}
	for _, v := range img.volumes {
		if v != "/" {
			add(v, 0o755, l.TmpfsBytes)
		}
	}
	for _, dir := range runner.Writable {
		size := l.TmpfsBytes
		if dir.Path == runner.Workspace {
			size = l.WorkspaceBytes
		}
		add(dir.Path, int64(dir.Mode), size)
	}
	return mounts
}

// ulimits bounds open files and rules out core files, which would fill the
// workspace, or the host's disk where its kernel hands them to a program.
func ulimits(l runner.Limits) []*container.Ulimit {
	limits := []*container.Ulimit{{Name: "core"}}
	if l.NofileHard != 0 {
		limits = append(limits, &container.Ulimit{Name: "nofile", Soft: l.NofileSoft, Hard: l.NofileHard})
	}
	return limits
}

// ulimit is one limit, soft and hard, none where it is 0.
func ulimit(name string, most int64) []*container.Ulimit {
	if most == 0 {
		return nil
	}
	return []*container.Ulimit{{Name: name, Soft: most, Hard: most}}
}
