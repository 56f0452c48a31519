package runnertest

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// trickTools are what the tricks below have in common. A trick that works prints
// a line; one that fails says nothing.
const trickTools = `
import ctypes, errno, os, socket, stat, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *args):
    return libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
def works(what, f, *args, **named):
    try:
        result = f(*args, **named)
    except (OSError, ValueError):
        return
    if not (isinstance(result, int) and not isinstance(result, bool) and result < 0):
        print('works:', what, result)
def write(path, text='1'):
    with open(path, 'w') as f: f.write(text)
def overwrite(path):
    os.close(os.open(path, os.O_WRONLY))
`

// tricks are known ways out of a container, or to what is the host's. Each must
// fail.
var tricks = []struct{ name, code string }{
	{"KernelSettings", `
for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/kernel/modprobe', '/proc/sys/kernel/hotplug', '/proc/sys/kernel/hostname',
             '/proc/sys/vm/overcommit_memory', '/proc/sys/vm/drop_caches', '/proc/sys/fs/binfmt_misc/register', '/proc/sys/net/ipv4/ip_forward',
             '/proc/sysrq-trigger', '/proc/1/oom_score_adj', '/proc/irq/default_smp_affinity', '/proc/bus/pci/00/00.0',
             '/sys/kernel/uevent_helper', '/sys/kernel/mm/transparent_hugepage/enabled', '/sys/power/state', '/sys/module/kernel/parameters/panic'):
    works(path, write, path, '|/tmp/evil')
for path in ('/proc/kcore', '/proc/kmsg', '/proc/keys', '/proc/latency_stats', '/proc/timer_list', '/proc/sched_debug', '/proc/1/mem', '/proc/1/environ'):
    try:
        with open(path, 'rb') as f: start = f.read(16)
    except OSError: continue
    if start: print('works: reading', path, start)
for path in ('/sys/firmware', '/proc/scsi', '/proc/acpi'):
    try: found = os.listdir(path)
    except OSError: continue
    if found: print('works: listing', path, found)
`},
	{"Init", `
for name in ('root', 'cwd', 'fd', 'map_files', 'task/1/root'):
    works('/proc/1/' + name, os.listdir, '/proc/1/' + name)
works('exe', os.readlink, '/proc/1/exe')
for sig in (0, 9, 15, 19): works('kill %d' % sig, os.kill, 1, sig)
works('attach', libc.ptrace, 16, 1, 0, 0)
works('seize', libc.ptrace, 0x4206, 1, 0, 0)
class vec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
b = ctypes.create_string_buffer(8)
v = vec(ctypes.addressof(b), 8)
works('read memory', libc.process_vm_readv, 1, ctypes.byref(v), 1, ctypes.byref(v), 1, 0)
try: fd = os.pidfd_open(1)
except OSError: pass
else: works('getfd', call, 438, fd, 0, 0)
for ns in ('mnt', 'net', 'pid', 'ipc', 'uts', 'user', 'cgroup'):
    works('setns ' + ns, lambda: os.setns(os.open('/proc/1/ns/' + ns, os.O_RDONLY), 0))
`},
	{"Devices", `
for major, minor, kind in ((1, 1, 'CHR'), (1, 11, 'CHR'), (8, 0, 'BLK'), (254, 0, 'BLK'), (259, 0, 'BLK'), (10, 229, 'CHR'), (10, 232, 'CHR')):
    for d in ('/tmp', '/workspace', '/dev', '/dev/shm'):
        works('mknod %s %d:%d in %s' % (kind, major, minor, d), os.mknod, d + '/evil', 0o666 | getattr(stat, 'S_IF' + kind), os.makedev(major, minor))
for top, dirs, files in os.walk('/dev'):
    for name in files:
        path = os.path.join(top, name)
        mode = os.lstat(path).st_mode
        if (stat.S_ISBLK(mode) or stat.S_ISCHR(mode)) and path not in ('/dev/null', '/dev/zero', '/dev/full', '/dev/random', '/dev/urandom', '/dev/tty', '/dev/ptmx', '/dev/pts/ptmx'):
            works('open ' + path, os.open, path, os.O_RDONLY)
`},
	{"Mounts", `
works('mount tmpfs', libc.mount, b'none', b'/tmp', b'tmpfs', 0, None)
works('mount proc', libc.mount, b'proc', b'/tmp', b'proc', 0, None)
works('mount cgroup', libc.mount, b'cgroup', b'/tmp', b'cgroup', 0, b'rdma')
works('bind', libc.mount, b'/proc', b'/tmp', None, 4096, None)
works('remount the root', libc.mount, None, b'/', None, 32 | 4096, None)
works('remount /proc/sys', libc.mount, None, b'/proc/sys', None, 32 | 4096, None)
works('remount cgroups', libc.mount, None, b'/sys/fs/cgroup', None, 32 | 4096, None)
works('umount /proc/sys', libc.umount2, b'/proc/sys', 2)
works('umount /proc/kcore', libc.umount2, b'/proc/kcore', 2)
works('umount /workspace', libc.umount2, b'/workspace', 2)
works('pivot_root', call, 155, b'/tmp', b'/tmp')
works('chroot', os.chroot, '/tmp')
works('fsopen', call, 430, b'tmpfs', 0)
works('open_tree', call, 428, -100, b'/', 1)
works('mount_setattr', call, 442, -100, b'/', 0, ctypes.create_string_buffer(32), 32)
for path in ('/workspace', '/tmp', '/home/sandbox', '/proc', '/dev/shm'):
    works('rename ' + path, os.rename, path, path + '2')
    works('rmdir ' + path, os.rmdir, path)
`},
	{"Namespaces", `
for name, flag in (('user', 0x10000000), ('mnt', 0x20000), ('net', 0x40000000), ('pid', 0x20000000), ('uts', 0x4000000), ('ipc', 0x8000000), ('cgroup', 0x2000000)):
    works('unshare ' + name, libc.unshare, flag)
    works('unshare user and ' + name, libc.unshare, flag | 0x10000000)
args = struct.pack('=QQQQQQQQ', 0x10000000, 0, 0, 0, 17, 0, 0, 0)
pid = call(435, ctypes.create_string_buffer(args, 64), 64)
if pid == 0: os._exit(0)
if pid > 0: print('works: clone3 with a user namespace')
`},
	{"Cgroups", `
for top, dirs, files in os.walk('/sys/fs/cgroup'):
    works('mkdir in ' + top, os.mkdir, top + '/evil')
    for name in files:
        if name in ('release_agent', 'notify_on_release', 'cgroup.procs', 'tasks', 'memory.limit_in_bytes', 'memory.max', 'pids.max', 'cpu.max',
                    'cpu.cfs_quota_us', 'devices.allow', 'cgroup.subtree_control', 'cgroup.freeze', 'freezer.state', 'memory.oom.group'):
            works(top + '/' + name, overwrite, top + '/' + name)
`},
	{"Rights", `
works('setuid', os.setuid, 0)
works('setgid', os.setgid, 0)
works('setresuid', os.setresuid, 0, 0, 0)
works('setgroups', os.setgroups, [0])
header, data = struct.pack('=Ii', 0x20080522, 0), struct.pack('=IIIIII', *[0xffffffff] * 6)
works('capset', libc.capset, ctypes.create_string_buffer(header, 8), ctypes.create_string_buffer(data, 24))
works('drop no_new_privs', libc.prctl, 38, 0, 0, 0, 0)
works('ambient', libc.prctl, 47, 2, 21, 0, 0)
works('nice', os.nice, -5)
works('real time', os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))
works('oom_score_adj', write, '/proc/self/oom_score_adj', '-500')
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
works('more files', resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard + 1))
works('core files', resource.setrlimit, resource.RLIMIT_CORE, (1, 1))
os.makedirs('/workspace/d', exist_ok=True)
works('chown', os.chown, '/workspace/d', 0, 0)
works('chown a file of root', os.chown, '/etc/passwd', 1000, 1000)
for path in ('/etc/passwd', '/etc/shadow', '/usr/bin/python3', '/bin/sh', '/etc/ld.so.preload', '/lib64/evil', '/evil'):
    works('write ' + path, write, path)
`},
	{"SystemCalls", `
zero = ctypes.create_string_buffer(256)
for name, number, *args in (
        ('bpf', 321, 0, zero, 120), ('userfaultfd', 323, 0), ('io_uring_setup', 425, 8, zero), ('perf_event_open', 298, zero, 0, -1, -1, 0),
        ('add_key', 248, b'user', b'evil', b'x', 1, -2), ('request_key', 249, b'user', b'evil', 0, -2), ('keyctl', 250, 0, -3, 1),
        ('kexec_load', 246, 0, 0, 0, 0), ('init_module', 175, zero, 0, b''), ('finit_module', 313, 0, b'', 0), ('delete_module', 176, b'evil', 0),
        ('open_by_handle_at', 304, -100, zero, 0), ('iopl', 172, 3), ('ioperm', 173, 0x3f8, 8, 1), ('swapon', 167, b'/tmp/x', 0), ('swapoff', 168, b'/tmp/x'),
        ('reboot', 169, 0xfee1dead, 672274793, 0, 0), ('settimeofday', 164, zero, 0), ('clock_settime', 227, 0, zero), ('adjtimex', 159, struct.pack('=I', 1) + bytes(200)),
        ('sethostname', 170, b'evil', 4), ('setdomainname', 171, b'evil', 4), ('acct', 163, b'/tmp/x'), ('quotactl', 179, 0, b'/', 0, 0),
        ('fanotify_init', 300, 0, 0), ('lookup_dcookie', 212, 0, zero, 1), ('vhangup', 153), ('personality', 135, 0x0400000),
        ('move_pages', 279, 1, 1, zero, 0, zero, 0), ('kcmp', 312, 1, 1, 0, 0, 0), ('process_madvise', 440, 1, zero, 1, 0, 0)):
    works(name, call, number, *args)
`},
	{"Network", `
for name, *args in (('raw', socket.AF_INET, socket.SOCK_RAW, 1), ('raw v6', socket.AF_INET6, socket.SOCK_RAW, 58), ('packet', 17, socket.SOCK_RAW, 3),
                    ('vsock', 40, socket.SOCK_STREAM, 0)):
    works(name, socket.socket, *args)
if os.listdir('/sys/class/net') != ['lo']: print('works: interfaces', os.listdir('/sys/class/net'))
for address in (('169.254.169.254', 80), ('1.1.1.1', 53), ('10.0.0.1', 80), ('172.17.0.1', 80)):
    s = socket.socket()
    s.settimeout(1)
    works('connect to %s' % (address,), s.connect, address)
import fcntl
works('add an address', fcntl.ioctl, socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8916, struct.pack('16sHH4s8x', b'lo', 2, 0, bytes([10, 9, 8, 7])))
`},
}

// testEscape tries to get out.
func testEscape(t *testing.T, s *suite) {
	b := s.sandbox(t)
	for _, trick := range tricks {
		t.Run(trick.name, func(t *testing.T) {
			s.skip(t)
			expectNothing(t, b, trick.code)
		})
	}
	// The host's abstract sockets belong to its network, not to its files.
	t.Run("AbstractSockets", func(t *testing.T) {
		s.skip(t)
		name := "aivory-escape-" + RandomHex(16)
		l, err := net.Listen("unix", "@"+name)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		expectNothing(t, b, fmt.Sprintf("works('connect', socket.socket(socket.AF_UNIX).connect, '\\0%s')", name))
	})
	// A process that an engine brings in is the engine's own program for a moment;
	// a program may wait for it, to write over the engine's file.
	t.Run("TheEnginesProgram", func(t *testing.T) {
		s.skip(t)
		done := make(chan outcome, 1)
		var running sync.WaitGroup
		defer running.Wait() // also where a command fails
		running.Go(func() {
			o, err := b.try(t.Context(), trickTools+`
own = os.readlink('/proc/self/exe')
end = time.monotonic() + 4
seen = set()
while time.monotonic() < end:
    for pid in os.listdir('/proc'):
        if not pid.isdigit() or pid in ('1', str(os.getpid()), str(os.getppid())): continue
        for name in ('exe', 'cwd', 'root', 'fd/3', 'fd/4', 'fd/5', 'fd/6', 'fd/7', 'fd/8'):
            path = '/proc/%s/%s' % (pid, name)
            try: target = os.readlink(path)
            except OSError: continue
            if name == 'exe' and ('runc' in target or 'crun' in target or 'runsc' in target or 'memfd' in target or '(deleted)' in target):
                seen.add(target)
                try: fd = os.open(path, os.O_RDONLY)
                except OSError: continue
                try: print('works: opened for writing', target, os.open('/proc/self/fd/%d' % fd, os.O_WRONLY))
                except OSError: pass
            elif name.startswith('fd') or name in ('cwd', 'root'):
                try: found = os.listdir(path + '/..')
                except OSError: continue
                if 'workspace' not in found and target not in ('/', '/workspace') and os.stat(path + '/..').st_dev != os.stat('/').st_dev and not target.startswith(('/proc', '/sys', '/dev', '/tmp', '/workspace', '/home')):
                    print('works: reached', path, target, found[:5])
`)
			if err != nil {
				t.Error(err)
			}
			done <- o
		})
		time.Sleep(500 * time.Millisecond)
		for range 12 {
			b.command(t, "", "true")
		}
		if o := <-done; o.Execution != nil && strings.Contains(o.out, "works:") || o.Execution != nil && o.ExitCode != 0 {
			t.Errorf("%s%s", o.out, o.err)
		}
	})
	// Descriptors that an engine leaves open in what it starts lead to the host.
	t.Run("LeftDescriptors", func(t *testing.T) {
		s.skip(t)
		got := b.command(t, "", "python3", "-c", "import os\nfor fd in range(3, 4096):\n    try: print(fd, os.readlink('/proc/self/fd/%d' % fd))\n    except OSError: pass")
		if got != "" {
			t.Errorf("open in a new process:\n%s", got)
		}
	})
}

// expectNothing runs a trick, which must end by itself and print nothing.
func expectNothing(t *testing.T, b *sandbox, code string) {
	t.Helper()
	o := b.run(t, trickTools+code)
	if out := b.suite.excepted(t, o.out); out != "" || o.ExitCode != 0 {
		t.Errorf("exit code %d\n%s%s", o.ExitCode, out, o.err)
	}
	b.works(t)
}
