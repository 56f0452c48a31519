"""What the agent's tests share. Loading the agent as a module is safe: only the
bootstrap in a runner gives it the name under which it sweeps."""

import ctypes
import importlib.util
import os
import shutil
import stat
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


def load():
    spec = importlib.util.spec_from_file_location("agent", os.path.join(HERE, "agent.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert not module.IN_RUNNER
    return module


agent = load()


def drop_privileges():
    """Modes mean nothing to root, so give up the two capabilities that see to
    that, and remain root: the interpreter itself may lie in root's home."""
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if agent.libc.capget(header, sets) == 0:
        sets[0] &= ~(1 << 1 | 1 << 2)  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
        agent.libc.capset(header, sets)


class Workspace(unittest.TestCase):
    """Gives each test a workspace of its own."""

    @classmethod
    def setUpClass(cls):
        drop_privileges()

    def setUp(self):
        self.base = os.path.realpath(tempfile.mkdtemp())
        self.addCleanup(self.remove)
        self.top = os.path.join(self.base, "workspace")
        os.mkdir(self.top)
        self.addCleanup(setattr, agent, "WORKSPACE", agent.WORKSPACE)
        self.addCleanup(os.chdir, os.getcwd())
        agent.WORKSPACE = self.top
        os.chdir(self.top)

    def remove(self):
        if os.path.isdir(self.top):
            agent.empty(self.top)
        shutil.rmtree(self.base)

    def path(self, name):
        return os.path.join(self.top, name)

    def put(self, name, content=b"", mode=0o644):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(content)
        os.chmod(path, mode)
        return path

    def get(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def tree(self, top=None):
        """All below a directory: name → what can be compared of it."""
        top = top or self.top
        found = {}
        for below, directories, files in os.walk(top):
            for name in directories + files:
                path = os.path.join(below, name)
                info = os.lstat(path)
                kind, content = stat.S_IFMT(info.st_mode), None
                if stat.S_ISREG(info.st_mode):
                    with open(path, "rb") as f:
                        content = f.read()
                elif stat.S_ISLNK(info.st_mode):
                    content = os.readlink(path)
                found[os.path.relpath(path, top)] = (kind, stat.S_IMODE(info.st_mode), content)
        return found

    def refused(self, kind, function, *arguments):
        with self.assertRaises(agent.Refused) as caught:
            function(*arguments)
        self.assertEqual(caught.exception.kind, kind)


class Sink(agent.Stream):
    """A stream that keeps what is put on it."""

    def __init__(self):
        super().__init__(-1, -1)
        self.frames = []

    def put(self, kind, payload=b""):
        self.frames.append((kind, bytes(payload)))

    def flush(self):
        pass

    def widen(self, fd):
        pass  # there is no pipe

    def data(self):
        return b"".join(payload for kind, payload in self.frames if kind == agent.DATA)
