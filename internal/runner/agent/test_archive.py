"""Archives: what is packed comes back, and what is hostile stays outside."""

import errno
import gzip
import io
import os
import shutil
import socket
import stat
import subprocess
import tarfile
import unittest

from support import Sink, Workspace, agent


def member(name, content=None, **fields):
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    if content is not None:
        info.size = len(content)
    return info, io.BytesIO(content or b"")


def directory(name, mode=0o755):
    return member(name, type=tarfile.DIRTYPE, mode=mode)


def symlink(name, target):
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def hardlink(name, target):
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def tar(*members, **options):
    out = io.BytesIO()
    with tarfile.open(mode="w", fileobj=out, format=options.pop("format", tarfile.PAX_FORMAT), **options) as archive:
        for info, content in members:
            archive.addfile(info, content)
    return out.getvalue()


def tgz(*members, **options):
    return gzip.compress(tar(*members, **options))


def header(kind, size, name="x"):
    """A raw header, with any size that its field can express."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


class ArchiveTest(Workspace):
    def unpack(self, data, step=1 << 16):
        """As a request: the tally's report, or the kind of the error."""
        body = iter([data[at:at + step] for at in range(0, len(data), step)])
        self.agent = object.__new__(agent.Agent)
        self.agent.stream = Sink()
        self.agent.stream.body = lambda: body
        self.agent.snapshot = {}
        try:
            self.agent.do_unpack({})
        except agent.Refused as e:
            return e.kind
        finally:
            self.assertIsNone(self.agent.snapshot)
            self.assertEqual(list(body), [], "body not read to its end")
            for name in ("uploads", "skills"):
                self.assertEqual(os.listdir(self.path(name)), [])
        (kind, _), = [f for f in self.agent.stream.frames if f[0] != agent.BEAT]
        self.assertEqual(kind, agent.RESULT)
        import json
        return json.loads(self.agent.stream.frames[-1][1])

    def pack(self):
        packer = agent.Packer(sink := Sink())
        packer.pack()
        return sink.data(), packer.tally.report()

    def placed(self):
        """What a tree has besides what is always there."""
        return {name: kind for name, kind in self.tree().items() if name not in ("uploads", "skills", "outputs")}


class UnpackTest(ArchiveTest):
    def test_plain(self):
        data = tgz(directory("./"), directory("./a"), member("./a/b", b"content", mode=0o640), symlink("./a/l", "b"), hardlink("./h", "./a/b"),
                   member("./p", type=tarfile.FIFOTYPE, mode=0o600), member("./数据", b""))
        for step in (1, 100, 1 << 20):
            agent.empty(self.top)
            report = self.unpack(data, step)
            self.assertEqual({k: v for k, v in report.items() if k != "examples"}, {"files": 5, "dirs": 1, "bytes": 7, "left": 0})
            self.assertEqual(self.get("h"), b"content")
            self.assertEqual(os.stat(self.path("h")).st_ino, os.stat(self.path("a/b")).st_ino)
            self.assertEqual(stat.S_IMODE(os.stat(self.path("a/b")).st_mode), 0o640)
            self.assertEqual(os.readlink(self.path("a/l")), "b")
            self.assertTrue(stat.S_ISFIFO(os.lstat(self.path("p")).st_mode))
            self.assertEqual(self.get("数据"), b"")

    def test_formats(self):
        long = "d" * 90 + "/" + "e" * 90 + "/" + "f" * 90
        for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
            agent.empty(self.top)
            self.assertEqual(self.unpack(tgz(member(long, b"x"), symlink("l", long), format=form))["left"], 0)
            self.assertEqual((self.get(long), os.readlink(self.path("l"))), (b"x", long))

    def test_leads_outside(self):
        outside = os.path.join(self.base, "outside")
        os.mkdir(outside)
        with open(outside + "/victim", "w") as f:
            f.write("whole")
        hostile = [
            member("/absolute", b"x"), member(outside + "/absolute", b"x"), member("../outside/x", b"x"), member("a/../../outside/x", b"x"),
            member("./..", b"x"), directory(".."), directory("../outside/d"), symlink("../outside/l", "x"),
            symlink("s", outside), member("s/x", b"x"), directory("s/d"), symlink("s/l", "x"), hardlink("s/h", "good"), member("s/victim", b"x"),
            symlink("f", outside + "/victim"), hardlink("h1", "../outside/victim"), hardlink("h2", outside + "/victim"), hardlink("h3", "s/victim"),
            hardlink("h4", "f"), hardlink("h5", "missing"), hardlink("h6", "."), hardlink("h7", "uploads/x"),
            symlink("t", ".."), symlink("t/t", "x"), member("t/outside/x", b"x"),
            member("device", type=tarfile.CHRTYPE, devmajor=1, devminor=3), member("disk", type=tarfile.BLKTYPE, devmajor=8),
            member("odd", b"x", type=b"Z"), member("good", b"x"), member("good/below", b"x"), member(".", b"x"), symlink("./", "x"),
        ]
        report = self.unpack(tgz(*hostile))
        self.assertEqual(os.listdir(outside), ["victim"])
        with open(outside + "/victim") as f:
            self.assertEqual(f.read(), "whole")
        self.assertEqual(os.stat(outside + "/victim").st_nlink, 1)
        self.assertEqual(sorted(os.listdir(self.base)), ["outside", "workspace"])
        self.assertEqual(sorted(self.placed()), ["f", "good", "s", "t"])
        self.assertEqual(self.get("good"), b"x")
        self.assertGreater(report["left"], 20)
        self.assertEqual(len(report["examples"]), 8)

    def test_through_a_link_that_is_there(self):
        outside = os.path.join(self.base, "outside")
        os.mkdir(outside)
        os.symlink(outside, self.path("a"))
        self.unpack(tgz(directory("a"), member("a/x", b"x"), directory("a/b")))
        self.assertEqual(os.listdir(outside), [])
        # A file takes a link's place, whatever it led to.
        os.symlink(outside + "/x", self.path("b"))
        self.unpack(tgz(member("b", b"x", mode=0o600)))
        self.assertEqual((os.listdir(outside), self.get("b")), ([], b"x"))

    def test_directory_modes_come_last(self):
        self.assertEqual(self.unpack(tgz(directory("a", 0o555), directory("a/b", 0), member("a/b/c", b"x"), member("a/d", b"x", mode=0), directory("a/e")))["left"], 0)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("a")).st_mode), 0o555)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("a/b")).st_mode), 0)
        os.chmod(self.path("a/b"), 0o700)
        self.assertEqual(self.get("a/b/c"), b"x")

    def test_special_bits_are_dropped(self):
        self.unpack(tgz(member("x", b"x", mode=0o6755), directory("d", 0o7777)))
        self.assertEqual(stat.S_IMODE(os.stat(self.path("x")).st_mode), 0o755)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("d")).st_mode), 0o777)

    def test_inputs_are_skipped(self):
        report = self.unpack(tgz(directory("./uploads"), member("./uploads/x", b"x"), member("skills/a/b", b"x"), member("uploads2", b"x"),
                                 member("a/uploads/x", b"x"), hardlink("h", "uploads/x")))
        self.assertEqual(sorted(self.placed()), ["a", "a/uploads", "a/uploads/x", "uploads2"])
        self.assertEqual(report["left"], 1)  # the hard link

    def test_inputs_that_a_link_replaced(self):
        os.symlink("/etc", self.path("uploads"))
        self.unpack(tgz(member("x", b"x")))
        self.assertFalse(os.path.islink(self.path("uploads")))

    def test_times(self):
        self.unpack(tgz(directory("d"), member("d/x", b"x", mtime=1234567890), member("neg", b"", mtime=-5), member("far", b"", mtime=1 << 60)))
        self.assertEqual(os.stat(self.path("d/x")).st_mtime, 1234567890)

    def test_members_of_gzip(self):
        raw = tar(member("a", b"1" * 5000), member("b", b"2" * 5000))
        split = gzip.compress(raw[:3000]) + gzip.compress(b"") + gzip.compress(raw[3000:])
        for data in (split, split + b"\0" * 700, split + b"garbage behind"):
            for step in (1, 13, 1 << 20):
                agent.empty(self.top)
                self.assertEqual(self.unpack(data, step)["files"], 2)
                self.assertEqual(self.get("b"), b"2" * 5000)
        # Two archives, one behind the other: the first counts, as for tar.
        agent.empty(self.top)
        self.assertEqual(self.unpack(tgz(member("a", b"1")) + tgz(member("b", b"2")))["files"], 1)

    def test_broken(self):
        whole = tgz(member("a", os.urandom(5000)), member("b", os.urandom(5000)))
        raw = tar(member("a", b"1" * 5000), member("b", b"2" * 5000), member("c", b"3"))
        bad_header = bytearray(raw)
        bad_header[512 + 5120 + 3] ^= 1  # within the second member's name: its checksum fails
        for name, data in {
            "nothing": b"", "garbage": b"garbage", "gzip of garbage": gzip.compress(b"garbage" * 1000), "gzip of nothing": gzip.compress(b""),
            "an uncompressed tar": raw, "cut": whole[:len(whole) // 2], "without its checksum": whole[:-8], "one byte short": whole[:-1],
            "checksum wrong": whole[:-8] + b"\0\0\0\0" + whole[-4:], "deflate wrong": whole[:300] + b"\xff\xff\xff" + whole[303:],
            "a bad header": gzip.compress(bytes(bad_header)), "cut within a header": gzip.compress(raw[:512 + 5120 + 100]),
            "cut within a file": gzip.compress(raw[:1000]),
        }.items():
            with self.subTest(name):
                agent.empty(self.top)
                self.assertEqual(self.unpack(data), "archive")
                self.assertNotIn("c", self.placed())
                if name.startswith("a bad header"):
                    self.assertEqual(sorted(self.placed()), ["a"])

    def test_without_an_end_mark(self):
        raw = tar(member("a", b"1" * 100))
        self.assertEqual(self.unpack(gzip.compress(raw[:1024]))["files"], 1)

    def test_huge_headers(self):
        for name, data in {
            "a long name": header(tarfile.GNUTYPE_LONGNAME, 1 << 30) + bytes(1 << 16),
            "a pax header": header(tarfile.XHDTYPE, 1 << 30) + bytes(1 << 16),
            "a negative size": header(tarfile.XHDTYPE, -1) + bytes(1 << 16),
        }.items():
            with self.subTest(name):
                self.assertEqual(self.unpack(gzip.compress(data)), "archive")

    def test_many_headers(self):
        def pax(kind, n):
            record = b"%07d k%d=%s\n" % (100000, n, b"x" * (100000 - 11 - len(str(n))))
            return header(kind, len(record)) + record + bytes(-len(record) % 512)
        for name, kind, count in (("nested", tarfile.XHDTYPE, 100), ("global", tarfile.XGLTYPE, 100)):
            with self.subTest(name):
                data = b"".join(pax(kind, n) for n in range(count)) + tar(member("a", b"x"))
                self.assertEqual(self.unpack(gzip.compress(data)), "archive")
        with self.subTest("global, spread out"):
            data = b"".join(pax(tarfile.XGLTYPE, n) + tar(member("a%d" % n, b"x"))[:1024] for n in range(100))
            self.assertEqual(self.unpack(gzip.compress(data)), "archive")
        with self.subTest("an ordinary global header"):
            agent.empty(self.top)
            data = tgz(member("a", b"x"), pax_headers={"comment": "0123456789abcdef"})
            self.assertEqual(self.unpack(data)["files"], 1)

    def sparse(self, numbers, content=b"", size=10 << 20, **extra):
        table = "".join("%d\n" % n for n in numbers).encode()
        table += bytes(-len(table) % 512)
        info, _ = member("GNUSparseFile.0/x", table + content)
        info.pax_headers = dict({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "x", "GNU.sparse.realsize": str(size)}, **extra)
        return info, io.BytesIO(table + content)

    def test_sparse(self):
        self.assertEqual(self.unpack(tgz(self.sparse([2, 4096, 3, 10 << 20, 0], b"abc"), member("after", b"y")))["files"], 2)
        info = os.stat(self.path("x"))
        self.assertEqual(info.st_size, 10 << 20)
        self.assertLess(info.st_blocks, 100)
        self.assertEqual(self.get("x").strip(b"\0"), b"abc")
        self.assertEqual(self.get("after"), b"y")

    def test_hostile_sparse(self):
        for name, entry in {
            "a table without end": self.sparse([1 << 40], b"0\n" * 100000),
            "a table longer than its file": self.sparse([1000], b"x"),
            "no table": self.sparse([], b"x" * 512),
            "negative count": self.sparse([-1]),
            "data beyond the file": self.sparse([1, 0, 1 << 40], b"abc"),
        }.items():
            with self.subTest(name):
                agent.empty(self.top)
                self.assertEqual(self.unpack(tgz(entry, member("after", b"y"))), "archive")
                self.assertEqual(self.placed(), {})
        for name, entry in {
            "negative offset": self.sparse([1, -4096, 3], b"abc"),
            "negative size": self.sparse([1, 0, 3], b"abc", size=-1),
        }.items():
            with self.subTest(name):
                agent.empty(self.top)
                report = self.unpack(tgz(entry, member("after", b"y")))
                self.assertTrue(report == "archive" or report["left"] == 1)

    def test_zeros_become_holes(self):
        self.unpack(tgz(member("x", bytes(8 << 20))))
        info = os.stat(self.path("x"))
        self.assertEqual(info.st_size, 8 << 20)
        self.assertLess(info.st_blocks, 100)

    def test_too_many_members(self):
        self.addCleanup(setattr, agent, "MAX_MEMBERS", agent.MAX_MEMBERS)
        agent.MAX_MEMBERS = 3
        self.assertEqual(self.unpack(tgz(*[member("m%d" % i, b"") for i in range(3)]))["files"], 3)
        self.assertEqual(self.unpack(tgz(*[member("m%d" % i, b"") for i in range(4)])), "archive")

    def test_without_space(self):
        real = os.pwrite

        def pwrite(fd, data, at):
            raise OSError(errno.ENOSPC, "No space left on device")
        self.addCleanup(setattr, os, "pwrite", real)
        os.pwrite = pwrite
        with self.assertRaises(OSError) as caught:
            self.unpack(tgz(member("a", b"x"), member("b", b"x")))
        self.assertEqual(caught.exception.errno, errno.ENOSPC)
        self.assertEqual(self.placed(), {})

    def test_impossible_names(self):
        report = self.unpack(tgz(member("x" * 300, b"x"), member("/".join(["d" * 200] * 30), b"x"), member("a\0b", b"x"), member("good", b"x")))
        self.assertIn("good", self.placed())
        self.assertGreaterEqual(report["left"], 2)


class RoundTripTest(ArchiveTest):
    def awkward(self):
        self.put("plain", b"content")
        self.put("empty", b"")
        self.put("script", b"#!", 0o755)
        self.put("closed", b"secret", 0)
        self.put("d/e/f/g", b"deep")
        self.put("a b \n\t'\"$*", b"odd")
        self.put("数据/😀.csv", b"unicode")
        self.put("long/" + "n" * 255, b"long name")
        self.put("deep/" + "/".join(["d" * 100] * 20) + "/file", b"long path")
        with open(os.fsencode(self.path("")) + b"bad-\xff\xfe", "wb") as f:
            f.write(b"not UTF-8")
        os.symlink(b"target-\xff", os.fsencode(self.path("")) + b"link-\xfe")
        os.symlink("plain", self.path("link"))
        os.symlink("missing", self.path("broken"))
        os.symlink("/etc/passwd", self.path("absolute"))
        os.symlink("l" * 3000, self.path("long link"))
        os.link(self.path("plain"), self.path("hard"))
        os.link(self.path("plain"), self.path("d/hard too"))
        os.mkfifo(self.path("fifo"), 0o600)
        os.mkdir(self.path("empty directory"))
        self.put("locked/inside/x", b"x")
        os.chmod(self.path("locked/inside"), 0o111)
        os.chmod(self.path("locked"), 0o444)
        os.mkdir(self.path("nothing"), 0)
        self.put("outputs/old", b"x")
        os.utime(self.path("outputs/old"), (0, 0))
        os.utime(self.path("plain"), (1 << 33, 1 << 33))
        os.symlink("x", self.path(".hidden"))
        with open(self.path("sparse"), "wb") as f:
            for at in (0, 5 << 20, 9 << 20):
                f.seek(at)
                f.write(b"data at %d" % at)
            f.truncate(12 << 20)
        os.chmod(self.path("sparse"), 0o600)
        with open(self.path("all hole"), "wb") as f:
            f.truncate(2 << 20)
        # what is not carried
        self.put("uploads/x", b"x")
        self.put("skills/x", b"x")
        self.put(agent.TEMP + "mine", b"x")
        s = socket.socket(socket.AF_UNIX)
        s.bind(self.path("socket"))
        s.close()

    def snapshot(self):
        """Entry by entry, with all that is carried. Directories are opened for
        the look, so their modes are taken first."""
        found = {}

        def look(path, name):
            info = os.lstat(path)
            entry = [stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode), info.st_size if stat.S_ISREG(info.st_mode) else 0]
            if stat.S_ISDIR(info.st_mode):
                os.chmod(path, 0o700)
                for child in os.listdir(path):
                    look(path + b"/" + child, name + b"/" + child)
                os.chmod(path, stat.S_IMODE(info.st_mode))
            else:
                entry += [info.st_nlink, int(info.st_mtime)]
            if stat.S_ISLNK(info.st_mode):
                entry.append(os.readlink(path))
            elif stat.S_ISREG(info.st_mode):
                os.chmod(path, 0o600)
                with open(path, "rb") as f:
                    entry.append(f.read())
                os.chmod(path, stat.S_IMODE(info.st_mode))
            found[name] = entry
        for child in os.listdir(os.fsencode(self.top)):
            if child not in (b"uploads", b"skills", b"socket") and not child.startswith(agent.TEMP.encode()):
                look(os.fsencode(self.path("")) + child, child)
        return found

    def same(self, got, want):
        self.assertEqual(sorted(got), sorted(want))
        for name in want:
            self.assertEqual(got[name], want[name], name)

    def test_round_trip(self):
        self.awkward()
        want = self.snapshot()
        data, tally = self.pack()
        self.assertEqual((tally["left"], len(tally["examples"])), (1, 1))  # the socket
        self.assertIn("socket", tally["examples"][0])
        agent.empty(self.top)
        report = self.unpack(data)
        self.assertEqual(report["left"], 0)
        self.assertEqual((report["files"], report["bytes"]), (tally["files"], tally["bytes"]))
        self.same(self.snapshot(), want)
        self.assertLess(os.stat(self.path("sparse")).st_blocks, 200)
        self.assertEqual(os.stat(self.path("hard")).st_ino, os.stat(self.path("d/hard too")).st_ino)
        again, _ = self.pack()
        agent.empty(self.top)
        self.unpack(again)
        self.same(self.snapshot(), want)

    @unittest.skipUnless(shutil.which("tar"), "needs tar")
    def test_plain_tar_reads_ours(self):
        self.awkward()
        want = self.snapshot()
        data, _ = self.pack()
        agent.empty(self.top)
        subprocess.run(["tar", "xzpf", "-", "-C", self.top, "--no-same-owner"], input=data, check=True, stderr=subprocess.PIPE)
        self.same(self.snapshot(), want)
        self.assertLess(os.stat(self.path("sparse")).st_blocks, 200)

    @unittest.skipUnless(shutil.which("tar"), "needs tar")
    def test_ours_reads_plain_tar(self):
        self.awkward()
        os.unlink(self.path("closed"))  # plain tar could not read these
        for name in ("locked", "nothing"):
            os.chmod(self.path(name), 0o755)
        os.chmod(self.path("locked/inside"), 0o755)
        os.unlink(self.path("socket"))
        want = self.snapshot()
        for options in ([], ["--sparse"], ["--format=pax"], ["--format=pax", "--sparse"], ["--format=gnu"]):
            with self.subTest(options):
                data = subprocess.run(["tar", "czf", "-", "--exclude=./uploads", "--exclude=./skills", "--exclude=./.aivory-*"] + options + ["-C", self.top, "."],
                                      check=True, stdout=subprocess.PIPE).stdout
                kept = os.path.join(self.base, "kept")
                os.rename(self.top, kept)
                os.mkdir(self.top)
                report = self.unpack(data)
                if options == ["--sparse"]:
                    # GNU tar's old sparse format is refused as a whole.
                    self.assertEqual(report, "archive")
                else:
                    self.assertEqual(report["left"], 0)
                    self.same(self.snapshot(), want)
                agent.empty(self.top)
                os.rmdir(self.top)
                os.rename(kept, self.top)

    def test_holes_that_the_file_system_does_not_tell(self):
        self.put("x", b"content")
        os.truncate(self.path("x"), 4 << 20)
        real = os.lseek

        def lseek(fd, at, whence):
            if whence in (os.SEEK_DATA, os.SEEK_HOLE):
                raise OSError(errno.EINVAL, "Invalid argument")
            return real(fd, at, whence)
        self.addCleanup(setattr, os, "lseek", real)
        os.lseek = lseek
        data, _ = self.pack()
        agent.empty(self.top)
        self.unpack(data)
        self.assertEqual(self.get("x").rstrip(b"\0"), b"content")

    def test_many_extents(self):
        self.addCleanup(setattr, agent, "MAX_EXTENTS", agent.MAX_EXTENTS)
        agent.MAX_EXTENTS = 4
        with open(self.path("x"), "wb") as f:
            for i in range(20):
                f.seek(i << 20)
                f.write(b"%d" % i)
        want = self.get("x")
        data, _ = self.pack()
        agent.empty(self.top)
        self.unpack(data)
        self.assertEqual(self.get("x"), want)

    def test_unreachable_depth(self):
        fd = os.open(self.top, os.O_RDONLY)
        for _ in range(60):
            os.mkdir("d" * 100, dir_fd=fd)
            below = os.open("d" * 100, os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(fd)
        data, tally = self.pack()
        self.assertEqual(tally["left"], 1)
        agent.empty(self.top)
        self.assertEqual(self.unpack(data)["dirs"], tally["dirs"] - 1)

    def test_frames_are_bounded(self):
        self.put("x", os.urandom(3 << 20))
        packer = agent.Packer(sink := Sink())
        packer.pack()
        self.assertTrue(all(len(payload) <= agent.MAX_FRAME for _, payload in sink.frames))


if __name__ == "__main__":
    unittest.main()
