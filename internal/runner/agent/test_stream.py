"""The agent's end of the stream, against the vectors that the service reads too."""

import ast
import json
import os
import threading
import unittest

from support import HERE, agent

with open(os.path.join(HERE, "..", "testdata", "vectors", "frames.jsonl"), "rb") as f:
    VECTORS = [json.loads(line) for line in f]


def pieces(listed):
    return b"".join(bytes.fromhex(p) if isinstance(p, str) else bytes.fromhex(p[0]) * p[1] for p in listed)


class Exited(BaseException):
    pass


class StreamTest(unittest.TestCase):
    def setUp(self):
        def leave(code):
            raise Exited(code)
        self.addCleanup(setattr, os, "_exit", os._exit)
        os._exit = leave

    def pipe(self):
        r, w = os.pipe()
        self.addCleanup(os.close, r)
        return r, w

    def feed(self, data, step):
        """A stream on which data comes in writes of step bytes."""
        r, w = self.pipe()

        def write():
            for at in range(0, len(data), step):
                os.write(w, data[at:at + step])
            os.close(w)
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        return agent.Stream(r, -1), writer

    def test_vectors_are_read(self):
        for vector in VECTORS:
            if "agent" not in vector["readers"]:
                continue
            data = pieces(vector["stream"])
            for step in (7, 4096, 1 << 20) if len(data) > 1000 else (1, 5, 1 << 20):
                with self.subTest(vector["name"], step=step):
                    stream, writer = self.feed(data, step)
                    frames = []
                    with self.assertRaises(Exited) as caught:
                        while True:
                            frames.append(stream.read())
                    self.assertEqual(frames, [(f["type"], pieces(f["payload"])) for f in vector["frames"]])
                    self.assertEqual(caught.exception.args, (2 if vector["then"] == "breach" else 0,))
                    while writer.is_alive():  # what nobody wanted
                        os.read(stream.fd_in, 1 << 20)
                    writer.join()

    def test_vectors_are_written(self):
        for vector in VECTORS:
            if vector["then"] != "end":
                continue
            with self.subTest(vector["name"]):
                r, w = self.pipe()
                got = []

                def read():
                    while chunk := os.read(r, 1 << 20):
                        got.append(chunk)
                reader = threading.Thread(target=read)
                reader.start()
                stream = agent.Stream(-1, w)
                for frame in vector["frames"]:
                    stream.put(frame["type"], pieces(frame["payload"]))
                stream.flush()
                os.close(w)
                reader.join()
                self.assertEqual(b"".join(got), pieces(vector["stream"]))

    def test_body(self):
        def frame(kind, payload=b""):
            return bytes([kind]) + len(payload).to_bytes(4, "big") + payload
        stream, _ = self.feed(frame(2, b"ab") + frame(2) + frame(4) + frame(2, b"c") + frame(3) + frame(1, b"{}"), 3)
        self.assertEqual(b"".join(stream.body()), b"abc")
        self.assertEqual(stream.read(), (1, b"{}"))
        for bad in (frame(1, b"{}"), frame(0), frame(99)):
            stream, _ = self.feed(frame(2, b"ab") + bad, 3)
            body = stream.body()
            got = []
            with self.assertRaises(Exited) as caught:
                for piece in body:
                    got.append(piece)
            self.assertEqual(b"".join(got), b"ab")
            self.assertEqual(caught.exception.args, (2,))

    def test_pending(self):
        r, w = self.pipe()
        self.addCleanup(os.close, w)
        stream = agent.Stream(r, -1)
        self.assertFalse(stream.pending())
        self.assertFalse(stream.has_frame())
        os.write(w, b"\1\0")
        self.assertTrue(stream.pending())
        stream.fill()
        self.assertFalse(stream.has_frame())
        os.write(w, b"\0\0\2{}\4\0\0\0\0")
        self.assertEqual(stream.read(), (1, b"{}"))
        self.assertTrue(stream.pending())
        self.assertTrue(stream.has_frame())
        self.assertEqual(stream.read(), (4, b""))
        self.assertFalse(stream.pending())

    def test_language(self):
        with open(agent.__file__) as f:
            ast.parse(f.read(), feature_version=(3, 9))  # what an image may bring

    def test_json_is_ascii_on_one_line(self):
        r, w = self.pipe()
        stream = agent.Stream(-1, w)
        stream.put_json(agent.RESULT, {"path": "\udcff\n中"})
        stream.flush()
        os.close(w)
        self.assertEqual(os.read(r, 100)[5:], b'{"path": "\\udcff\\n\\u4e2d"}')


if __name__ == "__main__":
    unittest.main()
