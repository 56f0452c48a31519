# The agent: one process at the far end of the service's stream. It runs
# programs, moves files and keeps the runner clean. PROTOCOL.md says what goes
# over the stream; nothing else is known to the service.
#
# It is also the fork server: programs run in children forked ahead of need from
# this very process, so its modules are theirs. It may import the standard
# library alone, and must work on Python 3.9.
import _signal
import os
import signal
import time

# Whether process 1 belongs to another user, as in all runners but those of the
# older service.
OWN_INIT = os.stat("/proc/1").st_uid != os.getuid()

# gVisor's kernel says that it is one of Linux, of its own name or of this date.
GVISOR = "gvisor" in os.uname().release.lower() or os.uname().version == "#1 SMP Sun Jan 10 15:06:54 PST 2016"


def survivors(dead=False):
    """Whether a process of this user is left, this one aside: a living one, or
    also one that nobody has waited for yet."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            try:
                if os.stat("/proc/" + name).st_uid != os.getuid():
                    continue
                with open("/proc/%s/stat" % name, "rb") as f:
                    if dead or f.read().rpartition(b")")[2].split()[0] not in b"ZX":
                        return True
            except OSError:
                pass  # gone already
    return False


def sweep():
    """Kills all in the runner but process 1 and this process.

    kill(-1) is atomic against forks, but for gVisor's, which is repeated until it
    finds nothing a few times over, and spares process 1 since that belongs to
    another user. In a container of the
    older service process 1 and its `sleep` are of this user, and the container
    ends with them: there, kill one by one.
    """
    if OWN_INIT:
        quiet = 0
        for _ in range(2000):
            try:
                os.kill(-1, signal.SIGKILL)
            except OSError:
                pass  # nothing there to kill
            if not GVISOR:
                break
            quiet = 0 if survivors() else quiet + 1
            if quiet == 5:
                break
        return []
    spared = [1]
    for _ in range(200):
        others, sleeps = [], []
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) in (1, os.getpid()):
                continue
            try:
                with open("/proc/%s/stat" % name, "rb") as f:
                    fields = f.read().rpartition(b")")[2].split()
                with open("/proc/%s/cmdline" % name, "rb") as f:
                    command = f.read()
            except OSError:
                continue  # gone already
            if fields[0] != b"Z":
                others.append(int(name))
                if fields[1] == b"1" and command == b"sleep\0infinity\0":
                    sleeps.append((int(fields[19]), int(name)))
        if sleeps:
            spared = [1, min(sleeps)[1]]  # a younger one may be a disguise
            others.remove(spared[1])
        if not others:
            break
        for pid in others:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
    return spared


# Only in a runner, where the bootstrap gives this name: anywhere else the sweep
# would take down its caller's own processes.
IN_RUNNER = __name__ == "<sandbox>"
if IN_RUNNER:
    if os.getuid() == 0:
        os._exit(3)
    SPARED = sweep()  # what a predecessor left goes before anything else is done
    for _ in range(500):
        if not survivors(dead=OWN_INIT):
            break
        time.sleep(0.002)

import atexit
import ctypes
import errno
import fcntl
import gc
import importlib.machinery
import io
import json
import resource
import select
import site
import stat
import struct
import sys
import tarfile
import types
import weakref
import zlib

# The agent's own directory is the workspace: a name that is looked up from there
# does not pass the root's file system, which may be a slow one.
WORKSPACE, OUTPUTS, HOME = "/workspace", "outputs", "/home/sandbox"
INPUTS = ("uploads", "skills")
TEMP = ".aivory-"  # names of this agent's own files at the top of the workspace

SOURCE, REQUEST, DATA, END, CANCEL = 0, 1, 2, 3, 4
HELLO, STDOUT, STDERR, RESULT, ERROR, BEAT, FILE = 16, 17, 18, 19, 20, 21, 22
MAX_FRAME = 256 << 10
F_SETPIPE_SZ = 1031  # a name of Python 3.10
BEAT_SECONDS, FLUSH_SECONDS, GRACE_SECONDS = 1.0, 0.005, 2.0
MAX_SCAN = 200000  # entries below outputs that are looked at
MAX_LISTING = 1000000  # bytes of a listing, with what was looked at on the way
MAX_MEMBERS = 500000  # of an archive that is unpacked
MAX_TAR_HEADER = 1 << 20  # bytes of all extended headers of a member; names are far shorter
MAX_EXTENTS = 8192  # of a sparse file; one with more is carried as a dense one

libc = ctypes.CDLL(None, use_errno=True)
FIONREAD = 0x541B
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38


class Refused(Exception):
    """Ends a request with an ERROR frame of this kind."""

    def __init__(self, kind, detail=""):
        super().__init__(kind, detail)
        self.kind, self.detail = kind, detail


# ---------------------------------------------------------------- the stream


class Stream:
    """Frames over two file descriptors: type, length, payload."""

    def __init__(self, fd_in, fd_out):
        self.fd_in, self.fd_out = fd_in, fd_out
        self.inbox, self.outbox, self.outsize = bytearray(), [], 0
        self.wide = []

    def widen(self, fd):
        """Lets the pipe hold more while a file passes: whoever is at its other
        end then need not be woken for every 64 KiB. Not for good, for what all
        pipes of a user may hold is bounded."""
        if fd not in self.wide:
            try:
                fcntl.fcntl(fd, F_SETPIPE_SZ, 1 << 20)
                self.wide.append(fd)
            except OSError:
                pass  # no pipe, or no more room for one

    def narrow(self):
        """Gives that back. It returns whether a pipe holds too much as yet."""
        for fd in self.wide[:]:
            try:
                fcntl.fcntl(fd, F_SETPIPE_SZ, 1 << 16)
                self.wide.remove(fd)
            except OSError:
                pass
        return bool(self.wide)

    def fill(self):
        chunk = os.read(self.fd_in, 1 << 16)
        if not chunk:  # the service hung up
            if IN_RUNNER:
                sweep()  # a fork bomb would not let a successor in
            os._exit(0)
        self.inbox += chunk

    def pending(self):
        """Whether a whole frame is here or bytes are waiting."""
        if len(self.inbox) >= 5 + self._length():
            return True
        return bool(select.select([self.fd_in], [], [], 0)[0])

    def _length(self):
        if len(self.inbox) < 5:
            return 0
        length = int.from_bytes(self.inbox[1:5], "big")
        if length > MAX_FRAME:
            os._exit(2)
        return length

    def has_frame(self):
        return len(self.inbox) >= 5 and len(self.inbox) >= 5 + self._length()

    def read(self):
        """The next frame, as (type, payload)."""
        while not self.has_frame():
            self.fill()
        end = 5 + self._length()
        kind, payload = self.inbox[0], bytes(memoryview(self.inbox)[5:end])
        del self.inbox[:end]
        return kind, payload

    def put(self, kind, payload=b""):
        """Queues a frame; flush sends all that is queued at once."""
        self.outbox.append(bytes((kind,)) + len(payload).to_bytes(4, "big"))
        self.outbox.append(payload)
        self.outsize += len(payload) + 5
        if self.outsize > MAX_FRAME:
            self.flush()

    def put_json(self, kind, value):
        self.put(kind, json.dumps(value).encode())

    def flush(self):
        if not self.outbox:
            return
        parts, size, self.outbox, self.outsize = self.outbox, self.outsize, [], 0
        sent = os.writev(self.fd_out, parts[:512])
        if sent < size:
            data = memoryview(b"".join(parts))[sent:]
            while data:
                data = data[os.write(self.fd_out, data):]

    def body(self):
        """The payloads of a request's DATA frames, up to its END, in pieces as
        they come."""
        while True:
            while len(self.inbox) < 5:
                self.fill()
            kind, left = self.inbox[0], self._length()
            if kind != DATA:
                kind = self.read()[0]
                if kind == END:
                    return
                if kind != CANCEL:
                    os._exit(2)
                continue
            del self.inbox[:5]
            while left:
                if not self.inbox:
                    self.fill()
                piece = bytes(memoryview(self.inbox)[:left])
                del self.inbox[:len(piece)]
                left -= len(piece)
                yield piece


class Pulse:
    """Called now and then during long work, lets the service hear of it."""

    def __init__(self, stream):
        self.stream, self.next = stream, time.monotonic() + BEAT_SECONDS

    def __call__(self):
        now = time.monotonic()
        if now >= self.next:
            self.stream.put(BEAT)
            self.stream.flush()
            self.next = now + BEAT_SECONDS


# ---------------------------------------------------- the program's process


class Child:
    """A forked process that waits for its program, seen from the agent."""

    def __init__(self):
        self.go, self.done, self.out, self.err = -1, -1, -1, -1
        self.pid, self.tasks = 0, 0  # threads in the runner when it had just begun

    def close(self):
        for fd in (self.go, self.done, self.out, self.err):
            if fd >= 0:
                os.close(fd)
        self.go = self.done = self.out = self.err = -1


# By machine: what a filter calls it, and the numbers of the system calls that
# reach other processes.
GUARDED = {
    "x86_64": (0xC000003E, (62, 200, 234, 129, 297, 142, 144, 203, 314, 302), 141, 72, 424),
    "aarch64": (0xC00000B7, (129, 130, 131, 138, 240, 118, 119, 122, 274, 261), 140, 25, 424),
}

# By what a filter calls the machine: unshare, setns, add_key, request_key and
# keyctl; prctl; clone; mknod and mknodat with the place of the mode.
CONFINED = {
    0xC000003E: ((272, 308, 248, 249, 250), 157, 56, ((133, 1), (259, 2))),
    0xC00000B7: ((97, 268, 217, 218, 219), 167, 220, ((33, 2),)),
}


def guard(pids):
    """A filter of system calls that puts these processes out of reach of one that
    takes it on and of all that this one starts: neither signals nor limits nor
    priorities get there. They are of one user, so the kernel would let a program
    stop its supervisor and then fill the runner with processes, and nobody could
    enter any more to end them.

    kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, setpriority,
    sched_setparam, sched_setscheduler, sched_setaffinity, sched_setattr and
    prlimit64 are refused for these pids, and for -1, which is everybody;
    pidfd_send_signal altogether, for its argument does not tell; and
    fcntl(F_SETSIG), by which a file's owner may get any signal rather than SIGIO.
    So are the ABIs of other machines, with other numbers.
    """
    if os.uname().machine not in GUARDED:
        return b""  # an agent that is lost is replaced
    arch, calls, setpriority, fcntl_number, pidfd_send_signal = GUARDED[os.uname().machine]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    allow, refuse, unknown = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
    others = [-1] + [sign * pid for pid in pids[:100] for sign in (1, -1)]  # a jump reaches 255 lines

    def rule(number, *checks):
        """Refuses a call where the low half of an argument is one of the values."""
        lines = []
        for argument, values in checks:
            lines.append((load, 16 + 8 * argument, 0, 0))
            lines += [(equal, value & 0xFFFFFFFF, None, 0) for value in values]
        lines.append((give, allow, 0, 0))
        for i, (what, value, jump, skip) in enumerate(lines):
            lines[i] = (what, value, len(lines) - i - 1 if jump is None else 0, skip)
        return [(equal, number, 0, len(lines) + 1), *lines, (give, refuse, 0, 0)]

    code = [(load, 4, 0, 0), (equal, arch, 1, 0), (give, unknown, 0, 0), (load, 0, 0, 0),
            (at_least, 0x40000000, 0, 1), (give, unknown, 0, 0)]
    for number in calls:
        code += rule(number, (0, others))
    code += rule(setpriority, (0, [os.PRIO_USER]), (1, others))
    code += rule(fcntl_number, (1, [10]))  # F_SETSIG
    if GVISOR:
        # It gives namespaces, keyrings and device nodes to everybody, and ends the
        # whole runner where a process dies at the same moment as its subreaper.
        refused, prctl, clone, nodes = CONFINED[arch]
        code += rule(prctl, (0, [PR_SET_CHILD_SUBREAPER]))
        for number in refused:
            code += [(equal, number, 0, 1), (give, refuse, 0, 0)]
        code += [(equal, 435, 0, 1), (give, unknown, 0, 0)]  # clone3, whose flags are in memory
        code += [(equal, clone, 0, 4), (load, 16, 0, 0), (0x45, 0x7E020000, 0, 1), (give, refuse, 0, 0), (give, allow, 0, 0)]
        for number, mode in nodes:
            code += [(equal, number, 0, 6), (load, 16 + 8 * mode, 0, 0), (0x54, 0xF000, 0, 0), (equal, stat.S_IFCHR, 1, 0),
                     (equal, stat.S_IFBLK, 0, 1), (give, refuse, 0, 0), (give, allow, 0, 0)]
    code += [(equal, pidfd_send_signal, 0, 1), (give, refuse, 0, 0), (give, allow, 0, 0)]
    return b"".join(struct.pack("=HBBI", what, yes, no, value) for what, value, yes, no in code)


class Filter(ctypes.Structure):
    _fields_ = [("lines", ctypes.c_ushort), ("text", ctypes.c_char_p)]


class Program(BaseException):
    """Unwinds a forked child out of all of the agent's frames; it holds a Cell."""


def fork_child(agent):
    """Forks a child; in the child it does not return but raises Program."""
    gc.freeze()  # a collection in the child is to touch what is its own
    agent.prepare()
    go_r, go_w = os.pipe()
    done_r, done_w = os.pipe()
    out_r, out_w = os.pipe()
    err_r, err_w = os.pipe()
    for attempt in range(500):
        tasks = agent.tasks.read(-1) + 1
        started = time.monotonic()
        try:
            pid = os.fork()
            break
        except OSError as e:
            # The processes of the last run may still be on their way out.
            if e.errno not in (errno.EAGAIN, errno.ENOMEM) or attempt == 499:
                for fd in (go_r, go_w, done_r, done_w, out_r, out_w, err_r, err_w):
                    os.close(fd)
                raise
            time.sleep(0.01)
    if pid:
        agent.fork_seconds = min(time.monotonic() - started, 0.1)
        for fd in (go_r, done_w, out_w, err_w):
            os.close(fd)
        child = Child()
        child.pid, child.go, child.done, child.out, child.err = pid, go_w, done_r, out_r, err_r
        child.tasks = tasks
        for fd in (out_r, err_r, done_r, go_w):
            os.set_blocking(fd, False)
        return child
    try:
        for fd in (go_w, done_r, out_r, err_r, agent.stream.fd_in, agent.stream.fd_out, agent.wake_r, agent.wake_w, agent.oom.fd, agent.tasks.fd):
            if fd >= 0:
                os.close(fd)
        cell = Cell(agent.cells, agent.null, go_r, done_w, out_w, err_w, b"pandas" in agent.recent, 5 * agent.fork_seconds)
        cell.become_program(agent)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    raise Program(cell)


class Cell:
    """A program's side of a forked child: it makes of the process what
    `python cell.py` shows, and waits for the program."""

    def __init__(self, cells, null, go, done, out, err, with_pandas, pause):
        self.cells, self.null, self.go, self.done, self.out, self.err = cells, null, go, done, out, err
        # Whether the program is likely to use it, and how long it is waited else
        # before that is rehearsed.
        self.with_pandas, self.pause = with_pandas, pause

    def become_program(self, agent):
        for fd in (0, 1, 2):
            os.dup2(self.null, fd)
        signal.set_wakeup_fd(-1)
        for number, handler in agent.handlers.items():
            _signal.signal(number, handler)
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a service that ends does not leave its runs behind
        try:  # the kernel takes the program before it takes the agent
            write_all(os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=agent.proc), b"1000")
        except OSError:
            pass
        os.setsid()  # out of the agent's process group
        if agent.filter.lines:
            libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # it is set in all runners
            libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(agent.filter), 0, 0)
        # Out of the way, so that what a program opens gets the usual numbers.
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        low, self.done = self.done, fcntl.fcntl(self.done, fcntl.F_DUPFD_CLOEXEC, soft - 1 if 0 < soft < 1024 else 1023)
        os.close(low)
        os.close(agent.proc)
        if "multiprocessing.process" in sys.modules:
            sys.modules["multiprocessing.process"].ORIGINAL_DIR = WORKSPACE
        if site.ENABLE_USER_SITE:
            add_user_site(self.cells)
        sys.path.append(WORKSPACE)

    def wait(self, holder):
        """Returns when there is a program, which it puts into holder."""
        try:
            numpy_random = sys.modules.get("numpy.random")
            if numpy_random is not None:
                numpy_random.seed()
            rehearse(self.go, self.null, 0 if self.with_pandas else self.pause)
            os.dup2(self.out, 1)
            os.dup2(self.err, 2)
            os.close(self.out)
            os.close(self.err)
            message = b""
            while len(message) < 4 or len(message) < 4 + int.from_bytes(message[:4], "big"):
                chunk = os.read(self.go, 1 << 16)
                if not chunk:
                    os._exit(0)  # the agent has no use for this child, or is gone
                message += chunk
            message = message[4:]
            os.close(self.go)
            path = write_cell(self.cells, message[:32].decode(), message[32:])
            for fd in (self.null, *self.cells.values()):
                os.close(fd)
            load(path, message[32:], holder)
            holder["finish"] = Exit(self.done).finish
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)


def load(path, code, holder):
    """Puts what is to be run, and in which namespace, into holder."""
    sys.argv[:] = [path]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = ["python3", path]
    sys.path.insert(0, os.path.dirname(path))
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=path, __cached__=None, __builtins__=sys.modules["builtins"],
        __loader__=importlib.machinery.SourceFileLoader("__main__", path))
    if sys.version_info < (3, 14):
        main.__dict__["__annotations__"] = {}
    sys.modules["__main__"] = main
    holder["program"], holder["namespace"] = compile_cell(path, code), main.__dict__


def compile_cell(path, code):
    """The program's code. One that does not compile is left to an interpreter
    of its own, which has other words for some faults of a file."""
    try:
        program = compile(code, path, "exec", dont_inherit=True)
        if b"coding" not in b"".join(code.split(b"\n", 2)[:2]):
            code.decode()  # in a file, comments count too
        return program
    except BaseException:
        os.execv(sys.executable, ["python3", path])


def add_user_site(cells):
    """Does what the interpreter does at its start, which was in another home."""
    site.USER_BASE = site.USER_SITE = None
    user_site = site.getusersitepackages()
    at, name = cells.get(HOME), user_site
    if at is not None and name.startswith(HOME + "/"):
        name = name[len(HOME) + 1:]
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=at).st_mode):
            return
    except OSError:
        return
    system = [i for i, path in enumerate(sys.path) if path in site.getsitepackages()]
    at = system[0] if system else len(sys.path)
    after = sys.path[at:]
    del sys.path[at:]
    try:
        site.addsitedir(user_site)
    finally:
        sys.path.extend(after)
    site.execusercustomize()


# What a child does while it waits, in the order of how many programs gain by it.
# Each part is short: a program that comes meanwhile waits for its end.
PANDAS = 2  # the first that is about it
REHEARSALS = (b"""
import sys
def f(x): return [str(x), {}, (1.5,)]
class C: pass
try: raise ValueError(f(C()))
except ValueError as e: print(2 + 2, e, len(sys.argv))
""", b"""
import sys, weakref
if "logging" in sys.modules:  # what these registered is called at each end
    last = sys.modules["logging"].lastResort
    sys.modules["logging"].shutdown([weakref.ref(last)])
    last._closed = False
if "matplotlib._pylab_helpers" in sys.modules:
    sys.modules["matplotlib._pylab_helpers"].Gcf.destroy_all()
""", b"""
import sys
if "pandas" in sys.modules: index = sys.modules["pandas"].Index(["a"])
""", b"""
if "index" in globals(): import pandas as pd; pd.Series([1, 2])
""", b"""
if "index" in globals(): import pandas as pd; frame = pd.DataFrame({"a": [1, 2]})
""", b"""
if "frame" in globals(): frame.a.sum()
""", b"""
if "frame" in globals(): frame.sum().a
""")


def rehearse(go, null, pause):
    """Does, into nowhere, what every run does, until there is a program. A
    forked process pays for each page that it is first to write; as long as
    nobody waits, that is for free."""
    argv, orig_argv, path, main = sys.argv[:], getattr(sys, "orig_argv", [])[:], sys.path[:], sys.modules["__main__"]
    kept = {}
    for i, code in enumerate(REHEARSALS):
        # What is less likely to be of use must not take CPU from what is.
        if select.select([go], [], [], pause if i == PANDAS else 0)[0]:
            break
        holder = {}
        try:
            write_all(os.memfd_create("cell", 0), code)
            load("/tmp/rehearsal.py", code, holder)
            end, namespace = Exit(null), holder.pop("namespace")
            namespace.update(kept)
            exec(holder.pop("program"), namespace)
            kept = {name: namespace[name] for name in ("index", "frame") if name in namespace}
            del namespace
            end.release()
            end.flush()
            end.announce(0)
        except Exception:
            pass  # the program will see for itself
        sys.argv[:], sys.path[:], sys.modules["__main__"] = argv, path, main
        if orig_argv:
            sys.orig_argv[:] = orig_argv


def open_cells():
    """The directories where a program's source may lie: path → descriptor. Again,
    a name that is looked up from there does not pass the root."""
    found = {}
    for path in ("/tmp", "/dev/shm", HOME):
        try:
            found[path] = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            pass
    return found


def write_cell(cells, name, code):
    """Stores the source; where /tmp is full, elsewhere."""
    name = "aivory-cell-%s.py" % name
    for directory, at in cells.items():
        try:
            write_all(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=at), code)
            return directory + "/" + name
        except OSError:
            try:
                os.unlink(name, dir_fd=at)
            except OSError:
                pass
    fd = os.memfd_create("cell", 0)
    write_all(os.dup(fd), code)
    return "/proc/self/fd/%d" % fd


def write_all(fd, data):
    """Writes data and closes the descriptor."""
    try:
        data = memoryview(data)
        while data:
            data = data[os.write(fd, data):]
    finally:
        os.close(fd)


def remove_cell(cells, name):
    for at in cells.values():
        try:
            os.unlink("aivory-cell-%s.py" % name, dir_fd=at)
            return
        except OSError:
            pass


def remove_lost_cells(cells):
    """Removes the sources of runs that took their agent down."""
    for directory, at in cells.items():
        try:
            for name in os.listdir(directory):
                if name.startswith("aivory-cell-"):
                    os.unlink(name, dir_fd=at)
        except OSError:
            pass


class Exit:
    """Ends a program's process as the interpreter would, but for the work of
    taking down modules that nobody will use again."""

    def __init__(self, done):
        self.done, self.pid = done, os.getpid()
        self.pipe = os.fstat(done)
        self.before = self.cpu()

    def cpu(self):
        """Seconds of CPU that this process and its ended children have used."""
        used, below = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        self.rss = max(used.ru_maxrss, below.ru_maxrss)
        return used.ru_utime + used.ru_stime + below.ru_utime + below.ru_stime

    def finish(self, holder):
        """Never returns. Holder is where the bootstrap put what the program
        raised, if anything."""
        exception = holder.pop("error", None)
        code = 0
        if exception is not None:
            code = self.report(exception)
        interrupted, exception = type(exception) is KeyboardInterrupt, None
        if "threading" in sys.modules:
            try:
                sys.modules["threading"]._shutdown()
            except BaseException:
                sys.excepthook(*sys.exc_info())
        try:
            atexit._run_exitfuncs()
        except BaseException:
            pass
        self.release()
        if not self.flush():
            code = 120
        if interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        # Not in a fork of the program's own. To be taken down costs CPU that the
        # agent needs for the answer, so the process waits for its end.
        if os.getpid() == self.pid and self.announce(code):
            time.sleep(1)
        os._exit(code)

    def flush(self):
        """Writes out the standard streams; False where one cannot be."""
        done = True
        for file in (sys.stdout, sys.stderr):
            try:
                if file is not None and not file.closed:
                    file.flush()
            except BaseException:
                done = False
        return done

    def announce(self, code):
        """Tells the agent that the process is about to end with this code; False
        where it cannot."""
        cpu = self.cpu() - self.before
        try:
            if os.path.samestat(os.fstat(self.done), self.pipe):  # else the program put a file there
                os.write(self.done, struct.pack("!Bdq", code, cpu, self.rss))
                return True
        except OSError:
            pass
        return False

    def report(self, exception):
        if isinstance(exception, SystemExit):
            code = exception.code
            if code is None:
                return 0
            if isinstance(code, int):
                return code & 255 if -(1 << 63) <= code < 1 << 63 else 255
            self.say(code)
            self.say("\n")
            return 1
        trace = exception.__traceback__
        if trace is not None:
            trace = trace.tb_next  # the frame that called the program
        exception = exception.with_traceback(trace)
        sys.last_type, sys.last_value, sys.last_traceback = type(exception), exception, trace
        if sys.version_info >= (3, 12):
            sys.last_exc = exception
        failure = None
        try:
            sys.excepthook(type(exception), exception, trace)
        except SystemExit as e:
            return self.report(e)
        except BaseException as e:
            failure = e.with_traceback(e.__traceback__.tb_next)
        if not hasattr(sys, "excepthook"):
            self.say("sys.excepthook is missing\n")
            sys.__excepthook__(type(exception), exception, trace)
        elif failure is not None:
            self.say("Error in sys.excepthook:\n")
            sys.__excepthook__(type(failure), failure, failure.__traceback__)
            self.say("\nOriginal exception was:\n")
            sys.__excepthook__(type(exception), exception, trace)
        return 1

    def say(self, what):
        try:
            sys.stderr.write(str(what))
        except BaseException:
            pass

    def release(self):
        """Lets go of the program's objects, so that finalizers run and files
        that it forgot to close are written out."""
        try:
            self.flush_forgotten()
            for name in ("last_type", "last_value", "last_traceback", "last_exc"):
                sys.__dict__.pop(name, None)
            if sys.modules["_thread"]._count() == 0:  # daemon threads would see the holes
                main = weakref.ref(sys.modules.pop("__main__"))
                gc.collect()
                if main() is not None:
                    # Something holds it: as the interpreter does then.
                    names = main().__dict__
                    for first in (True, False):
                        for name in list(names):
                            private = name[0:1] == "_" and name[1:2] != "_"
                            if name != "__builtins__" and private == first:
                                names[name] = None
                    del names
                    gc.collect()
            self.flush_forgotten()
        except BaseException:
            pass

    def flush_forgotten(self):
        for thing in gc.get_objects():
            if type(thing) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
                try:
                    thing.flush()
                except Exception:
                    pass


# -------------------------------------------------------------- file helpers


def resolve(path):
    """The real path of a workspace path; Refused where it leads outside."""
    if "\0" in path:
        raise Refused("path")
    full = os.path.normpath(path if path.startswith("/") else WORKSPACE + "/" + path)
    if full != WORKSPACE and not full.startswith(WORKSPACE + "/"):
        raise Refused("path")
    real = os.path.realpath(full)
    if real != WORKSPACE and not real.startswith(WORKSPACE + "/"):
        raise Refused("outside")
    return real


class Opened:
    """The real path of a workspace path, with the directories on the way held
    open that a program closed to their owner."""

    def __init__(self, path):
        self.path, self.modes = path, []

    def __enter__(self):
        try:
            while True:
                real, closed = resolve(self.path), False
                at = len(WORKSPACE)
                while at >= 0 and not closed:
                    closed = self.open(real[:at])
                    at = real.find("/", at + 1)
                if not closed:
                    return real
        except BaseException:
            self.__exit__()
            raise

    def open(self, directory):
        try:
            mode = os.lstat(directory).st_mode
        except OSError:
            return False
        if not stat.S_ISDIR(mode) or mode & 0o700 == 0o700:
            return False
        os.chmod(directory, stat.S_IMODE(mode) | 0o700)
        self.modes.append((directory, stat.S_IMODE(mode)))
        return True  # what lies below may lead elsewhere than it seemed

    def __exit__(self, *_):
        for directory, mode in reversed(self.modes):
            try:
                os.chmod(directory, mode)
            except OSError:
                pass


def open_regular(path):
    """Opens a regular file for reading, whatever its mode; the caller closes
    the descriptor. Nothing else runs meanwhile, so there is no race."""
    info = os.lstat(path)
    if not stat.S_ISREG(info.st_mode):
        raise Refused("notfound")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags)
    except PermissionError:
        os.chmod(path, stat.S_IMODE(info.st_mode) | stat.S_IRUSR)
        try:
            return os.open(path, flags)
        finally:
            os.chmod(path, stat.S_IMODE(info.st_mode))


def empty(top, pulse=lambda: None):
    """Removes all below a real directory, whatever modes and depth it has:
    directories are moved up before they are entered, so no path grows long."""
    prefix, count = TEMP + os.urandom(8).hex() + "-", 0
    os.chmod(top, 0o700)
    found = True
    while found:
        found = False
        with os.scandir(top) as entries:
            for entry in entries:
                found = True
                pulse()
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                os.chmod(entry.path, 0o700)
                with os.scandir(entry.path) as children:
                    for child in children:
                        pulse()
                        if child.is_dir(follow_symlinks=False):
                            os.chmod(child.path, 0o700)
                            os.rename(child.path, "%s/%s%d" % (top, prefix, count))
                            count += 1
                        else:
                            os.unlink(child.path)
                try:
                    os.rmdir(entry.path)
                except OSError as e:
                    if e.errno != errno.ENOTEMPTY:
                        raise  # else the next round finds what this one missed


def reset_directory(path, pulse=lambda: None):
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None:
        if stat.S_ISDIR(mode):
            empty(path, pulse)
            os.chmod(path, 0o755)
            return
        os.unlink(path)
    os.mkdir(path, 0o755)


def text(raw):
    """A file name as text: bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(raw).decode("utf-8", "replace")


class Counter:
    """A figure that the kernel keeps of this runner: the line of one of the files
    that begins with a word."""

    def __init__(self, word, *paths):
        self.fd, self.word = -1, word
        for path in paths:
            try:
                self.fd = os.open("/sys/fs/cgroup/" + path, os.O_RDONLY | os.O_CLOEXEC)
                break
            except OSError:
                pass

    def read(self, unknown=0):
        if self.fd < 0:
            return unknown
        try:
            for line in os.pread(self.fd, 4096, 0).splitlines():
                if line.startswith(self.word):
                    return int(line[len(self.word):])
        except (OSError, ValueError):
            pass
        return unknown


# ----------------------------------------------------------------- archives


class Tally:
    """What was carried, and what was not and why."""

    def __init__(self):
        self.files = self.dirs = self.bytes = self.left = 0
        self.examples = []

    def leave(self, name, why):
        self.left += 1
        if len(self.examples) < 8:
            self.examples.append("%s: %s" % (text(name)[:200], why))

    def report(self):
        return {"files": self.files, "dirs": self.dirs, "bytes": self.bytes,
                "left": self.left, "examples": self.examples}


class GzipWriter:
    """Sends what is written to it, compressed, in DATA frames."""

    def __init__(self, stream):
        self.stream = stream
        self.gzip = zlib.compressobj(1, zlib.DEFLATED, 31)
        self.pulse = Pulse(stream)

    def write(self, data):
        self.send(self.gzip.compress(data))
        return len(data)

    def send(self, out):
        for at in range(0, len(out), MAX_FRAME):
            self.stream.put(DATA, out[at:at + MAX_FRAME])
        self.pulse()  # zeros make no output

    def close(self):
        self.send(self.gzip.flush())


class Extents(io.RawIOBase):
    """The parts of a sparse file that hold data, after the map of them."""

    def __init__(self, fd, extents):
        numbers = [len(extents)] + [n for extent in extents for n in extent]
        head = "".join("%d\n" % n for n in numbers).encode()
        self.head = head + bytes(-len(head) % 512)
        self.fd, self.extents = fd, [list(extent) for extent in extents]
        self.size = len(self.head) + sum(length for _, length in extents)

    def readable(self):
        return True

    def read(self, size=-1):
        out = self.head[:size]
        self.head = self.head[len(out):]
        while len(out) < size and self.extents:
            at, length = self.extents[0]
            chunk = os.pread(self.fd, min(size - len(out), length), at)
            if not chunk:
                break
            out += chunk
            self.extents[0][0] += len(chunk)
            self.extents[0][1] -= len(chunk)
            if self.extents[0][1] == 0:
                self.extents.pop(0)
        return out


class Packer:
    """Sends the workspace, but for its inputs, as a compressed tar."""

    def __init__(self, stream):
        self.out, self.tally = GzipWriter(stream), Tally()
        self.tar = tarfile.open(mode="w|", fileobj=self.out, format=tarfile.PAX_FORMAT, bufsize=1 << 16)

    def pack(self):
        stack = ["."]
        while stack:
            name = stack.pop()
            self.out.pulse()
            path = WORKSPACE if name == "." else WORKSPACE + name[1:]
            try:
                children = self.add(name, path)
            except OSError as e:
                self.tally.leave(name, e.strerror or str(e))
                continue
            stack.extend(name + "/" + child for child in sorted(children, reverse=True)
                         if name != "." or child not in INPUTS and not child.startswith(TEMP))
        self.tar.close()
        self.out.close()

    def add(self, name, path):
        """Adds an entry; the names in it where it is a directory."""
        status = os.lstat(path)
        info = self.tar.gettarinfo(path, name)
        if status.st_nlink == 1:  # kept only to find hard links
            self.tar.inodes.pop((status.st_ino, status.st_dev), None)
        if info is None:
            self.tally.leave(name, "not a kind of file that an archive holds")
            return ()
        info.mtime, info.uname, info.gname = int(info.mtime), "", ""
        if info.isdir():
            children = self.children(path, status)
            self.tar.addfile(info)
            self.tally.dirs += 1
            return children
        if info.isreg():
            fd = open_regular(path)
            try:
                self.add_file(info, fd, status)
            finally:
                os.close(fd)
        else:
            self.tar.addfile(info)
        self.tally.files += 1
        self.tar.members = []
        return ()

    def children(self, path, status):
        if status.st_mode & 0o500 != 0o500:
            # It stays open to its owner: what is in it is still to be read.
            os.chmod(path, stat.S_IMODE(status.st_mode) | 0o500)
        return os.listdir(path)

    def add_file(self, info, fd, status):
        extents = self.extents(fd, status)
        self.tally.bytes += info.size
        if extents is None:
            with open(fd, "rb", buffering=0, closefd=False) as f:
                self.tar.addfile(info, f)
            return
        source = Extents(fd, extents)
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0",
                            "GNU.sparse.name": info.name, "GNU.sparse.realsize": str(info.size)}
        info.name = "./GNUSparseFile.0/" + os.path.basename(info.name)[:60]
        info.size = source.size
        self.tar.addfile(info, source)

    def extents(self, fd, status):
        """The parts that hold data, or None where it has no holes worth it."""
        if status.st_size < 1 << 20 or status.st_blocks * 512 > status.st_size // 2:
            return None
        found, at = [], 0
        while at < status.st_size and len(found) <= MAX_EXTENTS:
            try:
                start = os.lseek(fd, at, os.SEEK_DATA)
                at = os.lseek(fd, start, os.SEEK_HOLE)
            except OSError as e:
                if e.errno != errno.ENXIO:
                    return None  # this file system does not tell
                break  # no data after this
            found.append((start, at - start))
        os.lseek(fd, 0, os.SEEK_SET)
        found.append((status.st_size, 0))
        return found if len(found) <= MAX_EXTENTS else None


class GzipReader:
    """Decompresses a body as it comes, over all of its gzip members."""

    def __init__(self, body):
        self.body, self.raw, self.out = body, b"", b""
        self.gzip, self.started = zlib.decompressobj(31), False

    def read(self, size):
        parts, have = [], 0
        while have < size:
            if not self.out and not self.more():
                break
            chunk, self.out = self.out[:size - have], self.out[size - have:]
            parts.append(chunk)
            have += len(chunk)
        return b"".join(parts)

    def more(self):
        while True:
            if self.gzip.eof:
                self.raw = self.gzip.unused_data.lstrip(b"\0")
                while len(self.raw) < 2 and (chunk := next(self.body, None)) is not None:
                    self.raw += chunk
                if self.raw[:2] != b"\x1f\x8b":
                    return False  # the end; what else follows is not gzip's
                self.gzip = zlib.decompressobj(31)
            if not self.raw:
                self.raw = next(self.body, None)
                if self.raw is None:
                    raise EOFError("archive ends in the middle")
            self.out = self.gzip.decompress(self.raw, 1 << 16)
            self.raw = self.gzip.unconsumed_tail
            if self.out:
                return True


class Member(tarfile.TarInfo):
    """A member whose headers cost bounded memory. The library takes a header
    that it cannot read for the archive's end; here it is an error."""

    @classmethod
    def frombuf(cls, buf, encoding, errors):
        try:
            return super().frombuf(buf, encoding, errors)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as e:
            raise tarfile.ReadError(str(e))

    def _proc_member(self, tar):
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("old sparse format")
        if self.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            # Global ones stay in memory, the others until their member is here.
            kept = "all" if self.type == tarfile.XGLTYPE else "this"
            tar.headers[kept] += max(0, self.size)
            if not 0 <= self.size <= MAX_TAR_HEADER or tar.headers[kept] > MAX_TAR_HEADER:
                raise tarfile.ReadError("extended headers of more than %d bytes" % MAX_TAR_HEADER)
        return super()._proc_member(tar)

    def _proc_gnusparse_10(self, next, pax_headers, tar):
        buf = tar.fileobj.read(512)
        count, buf = buf.split(b"\n", 1)
        if not 0 <= int(count) <= 8 * MAX_EXTENTS:
            raise tarfile.ReadError("sparse file of %d parts" % int(count))
        numbers = []
        while len(numbers) < int(count) * 2:
            if b"\n" not in buf:
                buf += tar.fileobj.read(512)
            number, buf = buf.split(b"\n", 1)
            numbers.append(int(number))
        next.offset_data = tar.fileobj.tell()
        next.sparse = list(zip(numbers[::2], numbers[1::2]))


class Archive(tarfile.TarFile):
    """A tar that keeps count of its extended headers' bytes."""

    def __init__(self, *args, **options):
        self.headers = {"all": 0, "this": 0}
        super().__init__(*args, **options)


class Unpacker:
    """Unpacks an archive that anybody may have made into the workspace. No
    member is written through a symlink or outside; modes come last, so that a
    directory without permissions does not keep its own content out."""

    def __init__(self, body, pulse=lambda: None):
        self.tally, self.later, self.pulse = Tally(), {}, pulse
        self.source = GzipReader(body)

    def unpack(self):
        tar = Archive.open(mode="r|", fileobj=self.source, tarinfo=Member, bufsize=1 << 16, errorlevel=0)
        count = 0
        for member in tar:
            self.pulse()
            tar.headers["this"] = 0
            count += 1
            if count > MAX_MEMBERS:
                raise tarfile.ReadError("more than %d members" % MAX_MEMBERS)
            try:
                self.place(tar, member)
            except Refused as e:
                self.tally.leave(member.name, e.detail)
            except OSError as e:
                if e.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self.tally.leave(member.name, e.strerror or str(e))
            tar.members = []
        while self.source.read(1 << 16):  # to the end, where the checksum is
            self.pulse()

    def finish(self):
        for path, (mode, mtime) in sorted(self.later.items(), reverse=True):
            self.pulse()
            try:
                os.chmod(path, mode)
                os.utime(path, (mtime, mtime), follow_symlinks=False)
            except OSError:
                pass
        if not os.path.lexists(OUTPUTS):
            os.mkdir(OUTPUTS, 0o755)

    def inside(self, name):
        """A member's place, all of its parents real directories; None for the
        workspace itself."""
        if name.startswith("/") or "\0" in name:
            raise Refused("", "absolute name")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise Refused("", "leads outside")
        if not parts:
            return None
        if parts[0] in INPUTS:
            raise Refused("", "inputs are not restored")
        path = WORKSPACE
        for part in parts[:-1]:
            path += "/" + part
            try:
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    raise Refused("", "its parent is not a directory")
            except FileNotFoundError:
                os.mkdir(path, 0o755)
        return path + "/" + parts[-1]

    def place(self, tar, member):
        try:
            path = self.inside(member.name)
        except Refused as e:
            if e.detail.startswith("inputs"):
                return  # an older archive may hold them
            raise
        mode, mtime = stat.S_IMODE(member.mode) & 0o777, max(0, min(int(member.mtime), 1 << 40))
        if member.isdir():
            if path is None:
                return
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    raise
                os.chmod(path, 0o700)
            self.later[path] = (mode, mtime)
            self.tally.dirs += 1
            return
        if path is None:
            raise Refused("", "takes the workspace's place")
        target = None
        if member.islnk():
            target = self.inside(member.linkname)
            if target is None or not stat.S_ISREG(os.lstat(target).st_mode):
                raise Refused("", "links to what is not a file of the archive")
            if target == path:
                return
        elif not (member.isreg() or member.issym() or member.isfifo()):
            raise Refused("", "not a kind of file that is restored")
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        if target is not None:
            os.link(target, path, follow_symlinks=False)
        elif member.issym():
            os.symlink(member.linkname, path)
            os.utime(path, (mtime, mtime), follow_symlinks=False)
        elif member.isfifo():
            os.mkfifo(path, mode)
            os.utime(path, (mtime, mtime))
        else:
            self.write(tar, member, path)
            os.chmod(path, mode)
            os.utime(path, (mtime, mtime))
        self.tally.files += 1

    def write(self, tar, member, path):
        """Writes a regular file; what is zero in blocks becomes a hole."""
        source, done = tar.fileobj, False
        source.seek(member.offset_data)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            for start, length in member.sparse or ((0, member.size),):
                at, end = start, start + length
                while at < end:
                    chunk = source.read(min(1 << 16, end - at))
                    if not chunk:
                        raise EOFError("archive ends within a file")
                    if chunk.count(0) != len(chunk):
                        os.pwrite(fd, chunk, at)
                    at += len(chunk)
                    self.pulse()
            os.ftruncate(fd, member.size)
            self.tally.bytes += member.size
            done = True
        finally:
            os.close(fd)
            if not done:
                os.unlink(path)


# ------------------------------------------------------------------ the agent


def open_workspace(seen="."):
    """Gives the workspace back to its owner where a program closed it."""
    mode = 0
    try:
        try:
            mode = os.stat(seen).st_mode
        except PermissionError:
            pass  # so it is closed
        if mode & 0o700 != 0o700:
            os.chmod(WORKSPACE, stat.S_IMODE(os.stat(WORKSPACE).st_mode) | 0o700)
    except OSError:
        pass


IPC = {
    "shm": (lambda: libc.shmget(0, 1, 0o600), lambda i: libc.shmctl(i, 0, None)),
    "msg": (lambda: libc.msgget(0, 0o600), lambda i: libc.msgctl(i, 0, None)),
    "sem": (lambda: libc.semget(0, 1, 0o600), lambda i: libc.semctl(i, 0, 0)),
}
IPC_SEEN = dict.fromkeys(IPC, 0)  # the last number that was looked at, under gVisor


def remove_ipc(proc):
    """Removes System V's shared memory and the like, which outlive processes
    and hold the runner's memory."""
    for table, (make, remove) in IPC.items():
        try:
            fd = os.open("sysvipc/" + table, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
            with open(fd, "rb", buffering=0) as f:
                for line in f.readall().splitlines()[1:]:
                    remove(int(line.split()[1]))
        except (OSError, ValueError):
            if GVISOR:  # it has no list, but numbers them one after the other
                last, seen = make(), IPC_SEEN[table]
                last = last if last >= 0 else seen + 100000  # there are too many already
                for number in range(max(seen, last - 100000), last + 1):
                    remove(number)
                IPC_SEEN[table] = last


# A run as the service asks for it, but for what would wait or look at files.
PRACTICE = json.dumps({
    "op": "exec", "timeout": 9.5, "max_output": 32768, "max_files": 0, "max_file_bytes": 1, "max_total_bytes": 1,
    "collect_seconds": 9.5}).encode()


class Agent:
    def __init__(self):
        # The program gets new standard streams; the service's are moved away.
        self.stream = Stream(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 64), fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 64))
        self.null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(self.null, 0)
        os.dup2(2, 1)  # nothing that a preloaded module prints reaches the stream
        self.wake_r, self.wake_w = os.pipe()
        os.set_blocking(self.wake_r, False)
        os.set_blocking(self.wake_w, False)
        self.environ = {}
        self.handlers = {}
        self.preload = []
        self.loading, self.loaded = {}, False  # the environment for imports; whether there were any
        self.filter = None  # of system calls, for children
        self.cells = open_cells()
        self.proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.fork_seconds = 0.04  # the last fork took
        self.recent = b"pandas"  # the last program, or what a first one may need
        self.child, self.practised = None, False
        self.snapshot = None  # of outputs, None where it must be looked at again
        # Processes that were killed here for want of memory; threads there are.
        self.oom = Counter(b"oom_kill ", "memory.events", "memory/memory.oom_control")
        self.tasks = Counter(b"", "pids.current", "pids/pids.current")

    def main(self):
        os.umask(0o022)
        open_workspace(WORKSPACE)
        try:
            os.chdir(WORKSPACE)
        except OSError:
            pass  # the greeting tells of it
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        # gVisor ends the whole runner where a process dies at the same moment as
        # its subreaper.
        self.subreaper = not GVISOR and libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        # A program can have no other sent here than SIGIO.
        for number, handler in ((signal.SIGIO, _signal.SIG_IGN), (signal.SIGCHLD, lambda *_: None)):
            self.handlers[number] = _signal.signal(number, handler)
        signal.set_wakeup_fd(self.wake_w, warn_on_full_buffer=False)
        self.greet()
        while True:
            if not self.stream.pending() and self.idle():
                continue
            while self.stream.narrow() and not select.select([self.stream.fd_in], [], [], 0.05)[0]:
                pass  # the service has not taken all yet
            kind, payload = self.stream.read()
            if kind == CANCEL:
                continue  # its request has been answered already
            if kind != REQUEST:
                os._exit(2)
            self.serve(json.loads(payload))

    def greet(self):
        kind, payload = self.stream.read()
        if kind != REQUEST:
            os._exit(2)
        setup = json.loads(payload)
        self.environ = dict(os.environ, HOME=HOME)
        for name, value in setup["environ"].items():
            self.environ.setdefault(name, value)
        threads = str(setup["threads"] or os.cpu_count())
        self.loading = dict(self.environ, OPENBLAS_NUM_THREADS=threads, OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads)
        self.loading.update(self.environ)
        os.environ.update(self.environ)
        self.preload = [name for name in setup["preload"] or () if name]
        problem = ""
        remove_lost_cells(self.cells)
        open_workspace()
        try:
            with os.scandir(WORKSPACE) as entries:
                for entry in entries:
                    if entry.name.startswith(TEMP):
                        self.remove(entry.path)
            for name in INPUTS + ("outputs",):
                if not os.path.lexists(WORKSPACE + "/" + name):
                    os.mkdir(WORKSPACE + "/" + name, 0o755)
            probe = "%s/%sprobe" % (WORKSPACE, TEMP)
            os.mkdir(probe)
            os.rmdir(probe)
        except OSError as e:
            problem = "%s: %s" % (e.filename or WORKSPACE, e.strerror)
            if e.errno in (errno.ENOSPC, errno.EDQUOT):
                problem = ""  # full, not unusable
        self.stream.put_json(HELLO, {
            "version": 1, "python": sys.version.split()[0], "legacy": not OWN_INIT, "problem": problem,
            "oom_kills": self.oom.read()})
        self.stream.flush()

    def prepare(self):
        """Makes ready what each child needs of this process. That changes only with
        the modules that are imported: they may start threads, and what they needed
        of the environment, or set there themselves, goes."""
        if self.filter is None or self.loaded:
            text = guard([int(thread) for thread in os.listdir("/proc/self/task")] + SPARED)
            self.filter = Filter(len(text) // 8, text)
        if self.loaded:
            self.loaded = False
            os.environ.clear()
            os.environ.update(self.environ)

    def remove(self, path):
        if os.path.isdir(path) and not os.path.islink(path):
            empty(path)
            os.rmdir(path)
        else:
            os.unlink(path)

    def idle(self):
        """Does one piece of work ahead of need; False when there is none."""
        if self.preload:
            name = self.preload.pop(0)
            os.environ.update(self.loading)
            self.loaded = True
            try:
                importlib.import_module(name)
            except BaseException as e:
                print("cannot preload %s: %r" % (name, e), file=sys.stderr)
            return True
        if self.child is None:
            gc.collect()
            self.child = fork_child(self)
            self.practised = False
            return True
        if not self.practised:
            self.practised = True
            # Not where runs follow each other closely: the CPU is the next one's.
            if not select.select([self.stream.fd_in], [], [], 5 * self.fork_seconds)[0]:
                self.practise()
            return True
        return False

    def serve(self, request):
        operation = getattr(self, "do_" + request["op"], None)
        if operation is None:
            os._exit(2)
        try:
            operation(request)
        except Refused as e:
            self.stream.put_json(ERROR, {"kind": e.kind, "detail": e.detail})
        except OSError as e:
            kind = {errno.ENOSPC: "nospace", errno.EDQUOT: "nospace", errno.ENOENT: "notfound",
                    errno.ENAMETOOLONG: "path", errno.ENOTDIR: "path", errno.ELOOP: "path"}.get(e.errno, "io")
            self.stream.put_json(ERROR, {"kind": kind, "detail": str(e)[:500]})
        self.stream.flush()

    # -- exec

    def do_exec(self, request):
        code = b"".join(self.stream.body())
        if self.snapshot is None:
            self.snapshot = self.scan(None)[0]
        child, self.child, self.recent = self.waiting_child(), None, code
        run = Run(self, child, request)
        self.perform(run, code, request, lambda: self.settle(run))
        if not run.swept:
            sweep()
        run.child.close()
        self.reap()
        remove_ipc(self.proc)

    def perform(self, run, code, request, settle):
        """One run from its start to its answer."""
        name = os.urandom(16).hex()
        # Heard before the program can do anything: without a word from here the
        # service takes it that nothing ran.
        self.stream.put(BEAT)
        self.stream.flush()
        started = time.monotonic()
        for again in (False, True):
            if again:
                # Not within try: the child leaves by raising Program, and what it
                # has of the descriptors of the first is the program's to see.
                run.child.close()
                run.restart(fork_child(self))
            try:
                run.start(name, code)
                run.watch(started + request["timeout"])
            finally:
                settle()
            if not run.untouched():
                break
        run.drain()
        wall = time.monotonic() - started
        remove_cell(self.cells, name)
        open_workspace()
        self.collect(run, request, wall)

    def settle(self, run):
        """Sees to it that files stay as they are. Where the program's own process is
        the only one there is, and has said that it is done, nothing is to be
        seen to; it goes after the answer. Else all is swept, and what was killed
        in the middle of a system call is waited for: it may be writing."""
        if run.announced and self.tasks.read(run.child.tasks + 1) <= run.child.tasks:
            return
        sweep()
        run.swept = True
        for _ in range(2000):
            if not survivors():
                return
            time.sleep(0.001)

    def practise(self):
        """Makes a run that there is not, into nowhere. After a fork this process,
        too, pays for each page that it is first to write: better now than when
        somebody waits for an answer."""
        if self.snapshot is None:
            self.snapshot = self.scan(None)[0]
        if len(self.snapshot) > 1000:
            return  # looking at them again takes longer than what is saved
        stream, null = self.stream, self.null
        quiet_r, quiet_w = os.pipe()
        out_r, out_w = os.pipe()
        done_r, done_w = os.pipe()
        os.write(out_w, b"4\n")
        os.write(done_w, struct.pack("!Bdq", 0, 0.1, 100))
        child = Child()
        child.go, child.out, child.err, child.done = os.dup(null), out_r, os.dup(null), done_r
        os.set_blocking(out_r, False)
        self.stream = Stream(quiet_r, null)
        for kind, payload in ((REQUEST, PRACTICE), (DATA, b"print(2 + 2)\n"), (END, b"")):
            self.stream.inbox += bytes((kind,)) + len(payload).to_bytes(4, "big") + payload
        try:
            request = json.loads(self.stream.read()[1])
            code = b"".join(self.stream.body())
            self.perform(Run(self, child, request), code, request, lambda: None)
        finally:
            self.stream = stream
            child.close()
            for fd in (quiet_r, quiet_w, out_w, done_w):
                os.close(fd)

    def waiting_child(self):
        """The child forked ahead, unless the kernel has killed it meanwhile."""
        if self.child is not None:
            try:
                if os.waitpid(self.child.pid, os.WNOHANG)[0] == 0:
                    return self.child
            except ChildProcessError:
                pass
            self.child.close()
        return fork_child(self)

    def reap(self):
        """Waits until all that was killed is gone."""
        for _ in range(2000):
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.001)
            except ChildProcessError:
                if self.subreaper or not survivors(dead=True):
                    return
                time.sleep(0.001)  # orphans are process 1's to wait for

    def collect(self, run, request, wall):
        """Answers a run: the result, then its artifacts one after the other."""
        started = time.monotonic()
        deadline = started + request["collect_seconds"]
        before = self.snapshot
        if run.reason == "cancelled" and not run.interrupted:  # nobody wants to know
            before, found, complete = {}, {}, False
        else:
            found, complete = self.scan(deadline)
        self.snapshot = found if complete else None
        changed = sorted(path for path, state in found.items() if before.get(path) != state)
        files, skipped, unreadable, total = [], 0, 0, 0
        for path in changed:
            size = found[path][1]
            if len(files) >= request["max_files"] or size > request["max_file_bytes"] or total + size > request["max_total_bytes"]:
                skipped += 1
                continue
            if time.monotonic() > deadline:
                skipped += 1
                continue
            try:
                fd = open_regular(OUTPUTS + "/" + path)
            except (OSError, Refused):
                unreadable += 1
                continue
            files.append((path, size, fd))
            total += size
        self.stream.put_json(RESULT, {
            "exit_code": run.code, "reason": run.reason, "wall": wall, "cpu": run.cpu, "rss": run.rss,
            "oom_kills": self.oom.read(), "oom_here": run.oom_kills, "stdout_truncated": run.truncated[STDOUT], "stderr_truncated": run.truncated[STDERR],
            "skipped": skipped, "unreadable": unreadable, "complete": complete,
            "collect": time.monotonic() - started,
            "files": len(files)})
        for path, size, _ in files:
            self.stream.put_json(FILE, {"path": text(path), "size": size})
        for _, size, fd in files:
            self.send_file(fd, size)
        if files:
            self.stream.put(END)
        self.stream.flush()

    def send_file(self, fd, size):
        """Sends exactly size bytes and closes the descriptor."""
        if size > 1 << 16:
            self.stream.widen(self.stream.fd_out)
        try:
            while size > 0:
                # A file cannot shrink, nothing runs; were it so, zeros follow.
                chunk = os.read(fd, min(size, MAX_FRAME)) or bytes(min(size, MAX_FRAME))
                size -= len(chunk)
                self.stream.put(DATA, chunk)
        finally:
            os.close(fd)

    def scan(self, deadline):
        """Regular files below outputs: path → (time, size, inode), and whether
        all were seen. Links are not followed."""
        found, seen, complete = {}, 0, True
        try:
            if not stat.S_ISDIR(os.lstat(OUTPUTS).st_mode):
                return found, True
        except OSError:
            return found, True
        pulse, stack = Pulse(self.stream), [""]
        while stack:
            below = stack.pop()
            try:
                with os.scandir(OUTPUTS + "/" + below) as entries:
                    for entry in entries:
                        seen += 1
                        pulse()
                        if seen > MAX_SCAN:
                            return found, False
                        if entry.is_dir(follow_symlinks=False):
                            stack.append(below + entry.name + "/")
                        elif entry.is_file(follow_symlinks=False):
                            info = entry.stat(follow_symlinks=False)
                            found[below + entry.name] = (info.st_mtime_ns, info.st_size, info.st_ino)
            except OSError:
                complete = False
            if deadline is not None and time.monotonic() > deadline:
                return found, False
        return found, complete

    # -- files

    def do_write(self, request):
        self.snapshot = None
        self.stream.widen(self.stream.fd_in)
        body = self.stream.body()
        temporary = "%s/%s%s" % (WORKSPACE, TEMP, os.urandom(8).hex())
        try:
            with Opened(request["path"]) as target:
                self.write(target, body, temporary)
        except BaseException as e:
            try:
                os.unlink(temporary)
            except OSError:
                pass
            for _ in body:  # what is still on its way belongs to this request
                pass
            if isinstance(e, FileExistsError):
                raise Refused("path")  # a parent is a file
            raise
        self.stream.put_json(RESULT, {})

    def write(self, target, body, temporary):
        try:
            mode = os.lstat(target).st_mode
            if not stat.S_ISREG(mode):
                raise Refused("path")
        except FileNotFoundError:
            mode = 0o644
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            for chunk in body:
                view = memoryview(chunk)
                while view:
                    view = view[os.write(fd, view):]
            os.fchmod(fd, stat.S_IMODE(mode))
        finally:
            os.close(fd)
        os.rename(temporary, target)

    def do_read(self, request):
        with Opened(request["path"]) as path:
            fd = open_regular(path)
        size = os.fstat(fd).st_size
        self.stream.put_json(RESULT, {"size": size})
        self.send_file(fd, size)
        self.stream.put(END)

    def do_list(self, request):
        rows, total, stack, pulse = [], 0, [""], Pulse(self.stream)
        while stack and total < MAX_LISTING:
            below = stack.pop()
            try:
                with os.scandir(WORKSPACE + "/" + below) as entries:
                    for entry in entries:
                        pulse()
                        path = below + entry.name
                        total += len(path) + 10
                        if total >= MAX_LISTING:
                            break
                        if entry.is_dir(follow_symlinks=False):
                            if below.count("/") + 1 < request["depth"]:
                                stack.append(path + "/")
                        elif entry.is_file(follow_symlinks=False):
                            rows.append((path, entry.stat(follow_symlinks=False).st_size))
            except OSError:
                pass  # gone or not to be entered: not listed
        rows.sort()
        self.stream.put_json(RESULT, {})
        out = b"".join(json.dumps([text(path), size]).encode() + b"\n" for path, size in rows[:request["limit"]])
        for at in range(0, len(out), MAX_FRAME):
            self.stream.put(DATA, out[at:at + MAX_FRAME])
        self.stream.put(END)

    def do_reset(self, request):
        self.reset_inputs()
        self.stream.put_json(RESULT, {})

    def reset_inputs(self):
        for name in INPUTS:
            reset_directory(WORKSPACE + "/" + name, Pulse(self.stream))

    # -- the workspace as an archive

    def do_pack(self, request):
        self.stream.widen(self.stream.fd_out)
        packer = Packer(self.stream)
        packer.pack()
        self.stream.put_json(RESULT, packer.tally.report())

    def do_unpack(self, request):
        self.snapshot = None
        self.stream.widen(self.stream.fd_in)
        body, problem = self.stream.body(), None
        unpacker = Unpacker(body, Pulse(self.stream))
        try:
            unpacker.unpack()
        except OSError as e:
            problem = e
        except Exception as e:  # whatever the library makes of hostile bytes
            problem = Refused("archive", "%s: %s" % (type(e).__name__, str(e)[:300]))
        finally:
            unpacker.finish()
            self.reset_inputs()
        for _ in body:
            pass
        if problem is not None:
            raise problem
        self.stream.put_json(RESULT, unpacker.tally.report())


class Run:
    """One program from its start until it has ended or must."""

    def __init__(self, agent, child, request):
        self.agent, self.stream, self.child = agent, agent.stream, child
        self.left = {STDOUT: request["max_output"], STDERR: request["max_output"]}
        self.truncated = {STDOUT: False, STDERR: False}
        self.code, self.reason, self.cpu, self.rss, self.oom_kills = 137, "signal", 0.0, 0, 0
        self.ended = self.announced = self.cancelled = self.interrupted = self.swept = False
        self.oom_before = agent.oom.read()

    def start(self, name, code):
        body = name.encode() + code
        self.message = memoryview(len(body).to_bytes(4, "big") + body)
        self.given = 0
        self.feed()

    def untouched(self):
        """Whether the child was killed before it had read anything of the program,
        so that another one can have it. The kernel kills what waits when it is
        short of memory, and a process that it has killed looks alive for as long
        as it gets no turn to die. The pipe, which this process keeps open, tells
        what was read."""
        if not self.ended or self.cancelled or self.code != 137 or self.reason not in ("signal", "oom"):
            return False
        unread = fcntl.ioctl(self.child.go, FIONREAD, bytes(4))
        return int.from_bytes(unread, sys.byteorder) == self.given

    def restart(self, child):
        """Has another child for the program."""
        self.child, self.ended, self.swept = child, False, False
        self.oom_before = self.agent.oom.read()

    def feed(self):
        """Gives the child more of its program. One that does not read, for a
        module at its start hangs, must not hang this process too."""
        try:
            while self.message:
                size = os.write(self.child.go, self.message)
                self.message = self.message[size:]
                self.given += size
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.message = b""  # killed while it waited; its status tells

    def watch(self, deadline):
        """Returns when the program has ended or must be swept away."""
        child, stream = self.child, self.stream
        readers = {child.out: STDOUT, child.err: STDERR}
        waiting = [child.out, child.err, child.done, self.agent.wake_r, stream.fd_in]
        now = time.monotonic()
        beat, flush, termed = now + BEAT_SECONDS, None, None
        while True:
            until = min(beat, deadline if termed is None else termed)
            if flush is not None:
                until = min(until, flush)
            writing = [child.go] if self.message else []
            pause = 0 if stream.has_frame() else max(0, until - now)
            ready, writable, _ = select.select(waiting, writing, [], pause)
            if writable:
                self.feed()
            for fd in ready:
                if fd in readers:
                    if self.forward(fd, readers[fd]) == 0:
                        waiting.remove(fd)
                elif fd == self.agent.wake_r:
                    try:
                        os.read(fd, 512)
                    except BlockingIOError:
                        pass
                    self.check_status()
                elif fd == child.done:
                    waiting.remove(fd)
                    self.read_done()
                else:
                    stream.fill()
            while stream.has_frame():
                kind, gently = stream.read()
                if kind != CANCEL:
                    os._exit(2)
                self.cancelled = True
                if not gently:
                    self.reason, self.ended, self.interrupted = "cancelled", True, False
                elif termed is None and not self.interrupted:
                    self.interrupted, deadline = True, min(deadline, time.monotonic() + GRACE_SECONDS)
                    self.signal(signal.SIGINT)
            now = time.monotonic()
            if self.ended:
                break
            if stream.outbox and flush is None:
                flush = now + FLUSH_SECONDS
            if flush is not None and now >= flush:
                stream.flush()
                flush = None
            if now >= beat:
                stream.put(BEAT)
                stream.flush()
                beat = now + BEAT_SECONDS
            if termed is None and now >= deadline:
                self.reason, termed = "timeout", now + GRACE_SECONDS
                self.signal(signal.SIGTERM)
            elif termed is not None and now >= termed:
                break
        self.judge()

    def signal(self, number):
        try:
            os.kill(self.child.pid, number)
        except OSError:
            pass

    def judge(self):
        self.oom_kills = self.agent.oom.read() - self.oom_before
        if self.reason == "timeout":
            self.code = 130 if self.interrupted else 124
        if self.interrupted:
            self.reason = "cancelled"
        if self.oom_kills > 0 and (self.reason == "timeout" or self.code == 137):
            self.reason, self.code = "oom", 137

    def check_status(self):
        while not self.ended:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child.pid:
                self.ended = True
                self.cpu, self.rss = usage.ru_utime + usage.ru_stime, usage.ru_maxrss
                if self.reason != "timeout":
                    if os.WIFSIGNALED(status):
                        self.code, self.reason = 128 + os.WTERMSIG(status), "signal"
                    else:
                        self.code, self.reason = os.WEXITSTATUS(status), "exit"

    def read_done(self):
        """The child says that it is about to exit; its teardown need not be
        waited for."""
        try:
            message = os.read(self.child.done, 64)
        except BlockingIOError:
            return
        if len(message) == 17 and not self.ended:
            self.ended = self.announced = True
            code, cpu, rss = struct.unpack("!Bdq", message)
            if 0 <= cpu < 1e9 and 0 <= rss < 1 << 40:  # the program could have sent it
                self.cpu, self.rss = cpu, rss
            if self.reason != "timeout":
                self.code, self.reason = code, "exit"

    def forward(self, fd, kind):
        """Passes on what the program wrote, up to its limit. It returns how many
        bytes there were: 0 at their end, None where there are none yet."""
        try:
            chunk = os.read(fd, 65536)
        except BlockingIOError:
            return None
        size = len(chunk)
        if size > self.left[kind]:
            self.truncated[kind] = True
            chunk = chunk[:self.left[kind]]
        if chunk:
            self.left[kind] -= len(chunk)
            self.stream.put(kind, chunk)
        return size

    def drain(self):
        """Takes what the program wrote before its end and is still in pipes."""
        for fd, kind in ((self.child.out, STDOUT), (self.child.err, STDERR)):
            for _ in range(256):
                if not self.forward(fd, kind):
                    break


if IN_RUNNER:
    agent = Agent()
    try:
        agent.main()
    except Program as unwound:
        wait = unwound.args[0].wait
