import os, sys
sys.path[:] = [p for p in sys.path if p]
def r(n):
    b = b""
    while len(b) < n:
        c = os.read(0, n - len(b))
        if not c: os._exit(1)
        b += c
    return b
g = {"__name__": "<sandbox>"}
code = compile(r(int.from_bytes(r(5)[1:], "big")), "<sandbox>", "exec")
exec(code, g)
g["wait"](g)
try: exec(g.pop("program"), g.pop("namespace"))
except BaseException as e: g["error"] = e
g["finish"](g)
