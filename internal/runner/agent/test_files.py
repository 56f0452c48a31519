"""What the agent does to the workspace, file by file."""

import errno
import json
import os
import socket
import stat
import unittest

from support import Sink, Workspace, agent


class ResolveTest(Workspace):
    def test_inside(self):
        os.mkdir(self.path("a"))
        os.symlink("a", self.path("link"))
        os.symlink(self.top + "/a", self.path("absolute"))
        os.symlink("../workspace/a", self.path("around"))
        for path, real in (
            ("a", "a"), ("./a", "a"), ("a/x", "a/x"), ("missing/x", "missing/x"), ("a/../b", "b"), ("link/x", "a/x"), ("absolute/x", "a/x"),
            ("around/x", "a/x"), ("a/b c /数据", "a/b c /数据"), (self.top + "/a", "a"), (self.top + "//a", "a"), ("a/", "a"), ("...", "..."),
            ("a/..b", "a/..b"), ("x\n\udcff", "x\n\udcff"),
        ):
            with self.subTest(path):
                self.assertEqual(agent.resolve(path), self.path(real))
        for path in (".", self.top, self.top + "/", "a/.."):
            self.assertEqual(agent.resolve(path), self.top)

    def test_outside(self):
        os.symlink("/etc", self.path("etc"))
        os.symlink("..", self.path("up"))
        os.symlink(self.top + "x", self.path("beside"))
        os.symlink("etc", self.path("twice"))
        for path in ("..", "../x", "a/../../x", "/", "/etc/passwd", self.top + "x", self.top + "/../x", "/" + self.top, "a\0b"):
            with self.subTest(path):
                self.refused("path", agent.resolve, path)
        for path in ("etc", "etc/passwd", "up", "up/x", "beside", "beside/x", "twice/passwd"):
            with self.subTest(path):
                self.refused("outside", agent.resolve, path)
        self.assertEqual(agent.resolve("etc/../x"), self.path("x"))  # by its text

    def test_loop(self):
        os.symlink("loop", self.path("loop"))
        with self.assertRaises((agent.Refused, OSError)):
            agent.open_regular(agent.resolve("loop"))


class OpenTest(Workspace):
    def test_modes(self):
        for mode in (0o644, 0o200, 0o000):
            path = self.put("x", b"content", mode)
            fd = agent.open_regular(path)
            self.assertEqual(os.read(fd, 100), b"content")
            os.close(fd)
            self.assertEqual(stat.S_IMODE(os.lstat(path).st_mode), mode)

    def test_not_regular(self):
        os.mkdir(self.path("directory"))
        os.mkfifo(self.path("fifo"))
        self.put("file")
        os.symlink("file", self.path("link"))
        s = socket.socket(socket.AF_UNIX)
        s.bind(self.path("socket"))
        s.close()
        for name in ("directory", "fifo", "link", "socket"):
            with self.subTest(name):
                self.refused("notfound", agent.open_regular, self.path(name))
        with self.assertRaises(FileNotFoundError):
            agent.open_regular(self.path("missing"))


class EmptyTest(Workspace):
    def deep(self, top, levels):
        """A chain of directories that no path can name."""
        fd = os.open(top, os.O_RDONLY)
        for _ in range(levels):
            os.mkdir("d" * 100, dir_fd=fd)
            below = os.open("d" * 100, os.O_RDONLY, dir_fd=fd)
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
            os.close(fd)
            fd = below
        os.close(fd)

    def test_deep(self):
        self.deep(self.top, 3000)
        agent.empty(self.top)
        self.assertEqual(os.listdir(self.top), [])

    def test_modes(self):
        self.put("a/b/c/file")
        self.put("a/b/x", mode=0)
        os.chmod(self.path("a/b/c"), 0)
        os.chmod(self.path("a/b"), 0o100)
        os.chmod(self.path("a"), 0o400)
        os.chmod(self.top, 0)
        agent.empty(self.top)
        self.assertEqual(os.listdir(self.top), [])

    def test_links_are_not_followed(self):
        outside = os.path.join(self.base, "outside")
        os.mkdir(outside)
        open(outside + "/file", "w").close()
        os.symlink(outside, self.path("directory"))
        os.symlink(outside + "/file", self.path("file"))
        os.link(outside + "/file", self.path("hard"))
        os.symlink("missing", self.path("broken"))
        os.mkdir(self.path("sub"))
        os.symlink(outside, self.path("sub/directory"))
        agent.empty(self.top)
        self.assertEqual(os.listdir(self.top), [])
        self.assertEqual(os.listdir(outside), ["file"])

    def test_names_of_its_own(self):
        # A tree that already has names such as the function makes.
        for i in range(3):
            self.put("%s%d/a/b/file" % (agent.TEMP, i))
        agent.empty(self.top)
        self.assertEqual(os.listdir(self.top), [])

    def test_many(self):
        for i in range(200):
            self.put("%d/%d/file" % (i % 10, i))
        agent.empty(self.top)
        self.assertEqual(os.listdir(self.top), [])

    def test_beats(self):
        beats = []
        self.put("a/b/c")
        agent.empty(self.top, lambda: beats.append(1))
        self.assertTrue(beats)


class ResetTest(Workspace):
    def check(self):
        path = self.path("uploads")
        agent.reset_directory(path)
        info = os.lstat(path)
        self.assertEqual((stat.S_ISDIR(info.st_mode), stat.S_IMODE(info.st_mode), os.listdir(path)), (True, 0o755, []))

    def test_missing(self):
        self.check()

    def test_full(self):
        self.put("uploads/a/b")
        before = os.stat(self.path("uploads")).st_ino
        os.chmod(self.path("uploads"), 0)
        self.check()
        self.assertEqual(os.stat(self.path("uploads")).st_ino, before)  # who stands in it, stays in it

    def test_others(self):
        outside = self.put("outside/file")
        for make in (lambda p: self.put("uploads"), lambda p: os.symlink("outside", p), lambda p: os.symlink("missing", p), os.mkfifo):
            path = self.path("uploads")
            if os.path.isdir(path):
                os.rmdir(path)
            make(path)
            self.check()
        self.assertTrue(os.path.exists(outside))


class TextTest(unittest.TestCase):
    def test_text(self):
        for raw, want in ((b"plain", "plain"), ("数据 😀".encode(), "数据 😀"), (b"\xff", "\ufffd"), (b"a\xe4\xb8", "a\ufffd"), (b"\xed\xa0\x80", "\ufffd" * 3)):
            name = os.fsdecode(raw)
            self.assertEqual(agent.text(name), want)
            agent.text(name).encode()  # valid, whatever it was


class RequestTest(Workspace):
    """Whole requests, as the service makes them."""

    def setUp(self):
        super().setUp()
        for name in ("uploads", "skills", "outputs"):
            os.mkdir(self.path(name))
        self.agent = object.__new__(agent.Agent)
        self.agent.snapshot, self.agent.stream = {}, Sink()

    def ask(self, op, body=None, **fields):
        self.agent.stream = Sink()
        self.agent.stream.body = lambda: iter(body if body is not None else [])
        self.agent.serve(dict(fields, op=op))
        frames = self.agent.stream.frames
        kind, answer = [f for f in frames if f[0] in (agent.RESULT, agent.ERROR)][0]
        return kind, json.loads(answer), b"".join(p for k, p in frames if k == agent.DATA)

    def write(self, path, content=b"new", chunks=None):
        body = iter(chunks if chunks is not None else [content])
        kind, answer, _ = self.ask("write", body, path=path)
        self.assertEqual(list(body), [])  # a refused body is read to its end
        self.assertEqual([n for n in os.listdir(self.top) if n.startswith(agent.TEMP)], [])
        return "ok" if kind == agent.RESULT else answer["kind"]

    def test_write(self):
        self.assertEqual(self.write("a/b/c.txt", chunks=[b"1", b"", b"2" * 70000]), "ok")
        self.assertEqual(self.get("a/b/c.txt"), b"1" + b"2" * 70000)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("a/b/c.txt")).st_mode), 0o644)
        self.assertEqual(self.write("a/b/c.txt", b""), "ok")
        self.assertEqual(self.get("a/b/c.txt"), b"")
        self.assertEqual(self.write(self.top + "/x y "), "ok")
        self.assertEqual(self.get("x y "), b"new")

    def test_write_keeps_the_mode(self):
        for mode in (0o755, 0o600, 0o444, 0o000):
            path = self.put("script%o" % mode, mode=mode)
            self.assertEqual(self.write("script%o" % mode), "ok")
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), mode)

    def test_write_breaks_hard_links_and_follows_symlinks(self):
        self.put("old", b"old")
        os.link(self.path("old"), self.path("hard"))
        os.symlink("old", self.path("soft"))
        os.symlink("missing", self.path("broken"))
        self.assertEqual(self.write("hard"), "ok")
        self.assertEqual((self.get("hard"), self.get("old")), (b"new", b"old"))
        self.assertEqual(self.write("soft"), "ok")
        self.assertEqual((os.readlink(self.path("soft")), self.get("old")), ("old", b"new"))
        self.assertEqual(self.write("broken"), "ok")
        self.assertEqual(self.get("missing"), b"new")

    def test_write_refused(self):
        outside = os.path.join(self.base, "outside")
        os.symlink("..", self.path("up"))
        os.symlink(outside, self.path("escape"))
        os.mkfifo(self.path("fifo"))
        self.put("file", b"old")
        for path, kind in (("up/outside", "outside"), ("escape", "outside"), ("fifo", "path"), ("uploads", "path"), ("", "path"),
                           ("file/x", "path"), ("file/x/y", "path"), ("x" * 300, "path"), ("x/" * 3000 + "x", "path")):
            with self.subTest(path[:20]):
                self.assertEqual(self.write(path), kind)
        self.assertFalse(os.path.lexists(outside))
        self.assertEqual(self.get("file"), b"old")

    def test_write_into_what_a_program_closed(self):
        self.put("closed/sub/file", b"old")
        os.chmod(self.path("closed/sub"), 0o555)
        os.chmod(self.path("closed"), 0)
        self.assertEqual(self.write("closed/sub/file"), "ok")
        self.assertEqual(self.write("closed/new/deep"), "ok")
        self.assertEqual(stat.S_IMODE(os.stat(self.path("closed")).st_mode), 0)
        kind, answer, data = self.ask("read", path="closed/sub/file")
        self.assertEqual((kind, data), (agent.RESULT, b"new"))
        self.assertEqual(stat.S_IMODE(os.stat(self.path("closed")).st_mode), 0)
        os.chmod(self.path("closed"), 0o700)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("closed/sub")).st_mode), 0o555)
        self.assertEqual((self.get("closed/sub/file"), self.get("closed/new/deep")), (b"new", b"new"))

    def test_symlinks_in_what_a_program_closed(self):
        os.mkdir(self.path("closed"))
        os.symlink("..", self.path("closed/up"))
        os.symlink("../..", self.path("closed/out"))
        os.symlink("closed/up/closed", self.path("around"))
        os.chmod(self.path("closed"), 0)
        self.assertEqual(self.write("closed/up/uploads/x"), "ok")
        self.assertEqual(self.get("uploads/x"), b"new")
        self.assertEqual(self.write("around/up/uploads/y"), "ok")
        self.assertEqual(self.get("uploads/y"), b"new")
        self.assertEqual(self.write("closed/out/x"), "outside")
        self.assertEqual(self.write("around/out/x"), "outside")
        self.assertEqual(os.listdir(self.base), ["workspace"])
        self.assertEqual(stat.S_IMODE(os.stat(self.path("closed")).st_mode), 0)

    def test_write_without_space(self):
        self.put("file", b"old")
        real = os.write

        def write(fd, data):
            if len(data) > 5:
                return real(fd, data[:5])
            raise OSError(errno.ENOSPC, "No space left on device")
        self.addCleanup(setattr, os, "write", real)
        os.write = write
        self.assertEqual(self.write("file", chunks=[b"0123456789", b"more", b"still more"]), "nospace")
        self.assertEqual(self.get("file"), b"old")

    def test_read(self):
        content = os.urandom(agent.MAX_FRAME * 2 + 1)
        self.put("uploads/x", content, mode=0)
        os.symlink("uploads/x", self.path("link"))
        for path in ("uploads/x", "link", self.top + "/uploads/./x"):
            kind, answer, data = self.ask("read", path=path)
            self.assertEqual((kind, answer, data == content), (agent.RESULT, {"size": len(content)}, True))
            self.assertEqual(self.agent.stream.frames[-1], (agent.END, b""))
        os.mkfifo(self.path("fifo"))
        os.symlink("/etc/passwd", self.path("escape"))
        os.symlink("loop", self.path("loop"))
        for path, want in (("missing", "notfound"), ("uploads", "notfound"), ("fifo", "notfound"), ("escape", "outside"), ("loop", "notfound"),
                           ("link/x", "path"), ("missing/x", "notfound"), (".", "notfound"), ("x" * 300, "path")):
            with self.subTest(path[:20]):
                kind, answer, _ = self.ask("read", path=path)
                self.assertEqual((kind, answer["kind"]), (agent.ERROR, want))

    def list(self, limit=500, depth=6):
        kind, answer, data = self.ask("list", limit=limit, depth=depth)
        self.assertEqual(kind, agent.RESULT)
        return [tuple(json.loads(line)) for line in data.splitlines()]

    def test_list(self):
        self.put("a", b"1")
        self.put("outputs/1/2/3/4/six", b"22")
        self.put("outputs/1/2/3/4/5/seven", b"22")
        self.put("名\n😀", b"")
        with open(os.fsencode(self.path("")) + b"\xff", "wb"):
            pass
        os.symlink("a", self.path("link"))
        os.symlink("outputs", self.path("directory"))
        os.mkfifo(self.path("fifo"))
        os.mkdir(self.path("closed"), 0)
        self.assertEqual(self.list(), [("a", 1), ("outputs/1/2/3/4/six", 2), ("名\n😀", 0), ("\ufffd", 0)])
        self.assertEqual(self.list(limit=1), [("a", 1)])
        self.assertEqual(self.list(limit=0), [])
        self.assertEqual(self.list(depth=1), [("a", 1), ("名\n😀", 0), ("\ufffd", 0)])

    def test_list_is_bounded(self):
        self.addCleanup(setattr, agent, "MAX_LISTING", agent.MAX_LISTING)
        agent.MAX_LISTING = 1000
        for i in range(100):
            os.makedirs(self.path("d%d/e" % i))
        self.put("z")
        self.list()  # directories count as well, or a million of them would not end
        for i in range(100):
            self.put("f%d" % i)
        self.assertLess(len(self.list()), 90)

    def test_reset(self):
        self.put("uploads/a/b")
        self.put("skills/x")
        self.put("downloads/keep")
        self.assertEqual(self.ask("reset")[:2], (agent.RESULT, {}))
        self.assertEqual(sorted(self.tree()), ["downloads", "downloads/keep", "outputs", "skills", "uploads"])

    def test_scan(self):
        self.put("outputs/a", b"1")
        self.put("outputs/b/c", b"22")
        os.link(self.path("outputs/a"), self.path("outputs/hard"))
        os.symlink("/etc/passwd", self.path("outputs/link"))
        os.symlink("/etc", self.path("outputs/directory"))
        os.mkfifo(self.path("outputs/fifo"))
        found, complete = self.agent.scan(None)
        self.assertEqual((sorted(found), complete), (["a", "b/c", "hard"], True))
        self.addCleanup(setattr, agent, "MAX_SCAN", agent.MAX_SCAN)
        agent.MAX_SCAN = 2
        found, complete = self.agent.scan(None)
        self.assertEqual((len(found) <= 2, complete), (True, False))

    def test_scan_of_what_outputs_is_not(self):
        agent.empty(self.path("outputs"))
        os.rmdir(self.path("outputs"))
        for make in (lambda p: None, lambda p: os.symlink("/etc", p), lambda p: self.put("outputs"), os.mkfifo):
            if os.path.lexists(self.path("outputs")):
                os.unlink(self.path("outputs"))
            make(self.path("outputs"))
            self.assertEqual(self.agent.scan(None), ({}, True))


if __name__ == "__main__":
    unittest.main()
