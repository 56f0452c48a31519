//go:build integration

package main

import (
	"bytes"
	"image/png"
	"testing"
	"time"
)

func TestLinearAlgebraAfterFork(t *testing.T) {
	tryAll(t, []program{
		{name: "in the program", within: 20 * time.Second, out: is("True True 3\n"), code: linearAlgebra + "print(*work(1))"},
		{name: "then in a pool", within: 20 * time.Second, timeout: time.Minute, out: is("True True 3\n[(True, True, 3), (True, True, 3)]\n"),
			code: linearAlgebra + "import multiprocessing as mp\nprint(*work(1))\nwith mp.get_context('fork').Pool(2) as p: print(p.map(work, [2, 3]))"},
		{name: "in threads", within: 20 * time.Second, out: is("[(True, True, 3), (True, True, 3)]\n"),
			code: linearAlgebra + "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2) as p: print(list(p.map(work, [4, 5])))"},
	})
}

const linearAlgebra = `
import numpy as np, scipy.linalg
from sklearn.cluster import KMeans

def work(seed):
    rng = np.random.default_rng(seed)
    a = rng.random((800, 800))
    good = bool(np.allclose(np.linalg.inv(a) @ a, np.eye(800), atol=1e-6))
    p, l, u = scipy.linalg.lu(a)
    points = np.concatenate([rng.normal(c, .1, (100, 2)) for c in (0, 5, 10)])
    return good, bool(np.allclose(p @ l @ u, a)), len(set(KMeans(3, n_init=3, random_state=0).fit_predict(points)))

`

func TestFirstChart(t *testing.T) {
	const minute = time.Minute
	// drawn wants one picture of that name, and that it is one.
	drawn := func(name string) func(*testing.T, testSession, result) {
		return func(t *testing.T, _ testSession, r result) {
			if len(r.Files) != 1 || r.Files[0].Name != name || r.Files[0].Type != "image/png" {
				t.Fatalf("not one picture: %v", r)
			}
			if _, err := png.Decode(bytes.NewReader(r.Files[0].Data)); err != nil {
				t.Errorf("the picture is broken: %v", err)
			}
		}
	}
	// begins wants one file whose content begins so.
	begins := func(name, magic, mime string) func(*testing.T, testSession, result) {
		return func(t *testing.T, _ testSession, r result) {
			if len(r.Files) != 1 || r.Files[0].Name != name || !bytes.HasPrefix(r.Files[0].Data, []byte(magic)) || r.Files[0].Type != mime {
				t.Errorf("not one %s: %v", mime, r)
			}
		}
	}
	s := sharedService(t).session(t)
	for _, p := range []program{
		{name: "first run of a session", timeout: minute, within: minute, check: drawn("p.png"), code: `
import warnings
warnings.simplefilter("error")
import matplotlib.pyplot as plt
plt.plot([-3, 1, 2], [-1, -2, 3])
plt.title("中文标题 日本語の題名 한국어 제목 −1"); plt.xlabel("汉字漢字"); plt.legend(["かなカナ"])
plt.savefig("/workspace/outputs/p.png")`},
		{name: "bold and italic", timeout: minute, within: minute, check: drawn("b.png"), code: `
import warnings
warnings.simplefilter("error")
import matplotlib.pyplot as plt
for w in ("bold", "light", 600):
    plt.figtext(.1, .1, "粗體 中文 한국어", weight=w, style="italic")
plt.savefig("/workspace/outputs/b.png")`},
		{name: "glyphs are no boxes", timeout: minute, within: minute, out: is("True\n"), code: `
import matplotlib.pyplot as plt, numpy as np
def ink(text):
    fig = plt.figure(figsize=(2, 1)); fig.text(.1, .3, text, size=30); fig.canvas.draw()
    a = np.asarray(fig.canvas.buffer_rgba())[..., 0].copy(); plt.close(fig)
    return a
pictures = [ink(c) for c in "中日한あ"]
print(all(not np.array_equal(a, b) for i, a in enumerate(pictures) for b in pictures[:i]) and all((a < 128).sum() > 50 for a in pictures))`},
		{name: "seaborn", timeout: minute, within: minute, check: drawn("s.png"), code: `
import warnings
warnings.filterwarnings("error", message="Glyph")
import seaborn as sns, matplotlib.pyplot as plt, pandas as pd
sns.set_theme()
sns.barplot(data=pd.DataFrame({"类别": ["甲", "乙"], "数值": [1, -2]}), x="类别", y="数值")
plt.savefig("/workspace/outputs/s.png")`},
		{name: "docx", timeout: minute, within: minute, check: begins("d.docx", "PK", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"), code: `
import docx
d = docx.Document(); d.add_heading("标题", 0); d.add_paragraph("正文"); d.add_table(2, 2); d.save("/workspace/outputs/d.docx")
print(docx.Document("/workspace/outputs/d.docx").paragraphs[1].text)`, out: is("正文\n")},
		{name: "xlsx", timeout: minute, within: minute, check: begins("x.xlsx", "PK", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"), code: `
import pandas as pd
pd.DataFrame({"列": [1, 2]}).to_excel("/workspace/outputs/x.xlsx", sheet_name="表")
print(pd.read_excel("/workspace/outputs/x.xlsx")["列"].sum())`, out: is("3\n")},
		{name: "xlsxwriter with a chart", timeout: minute, within: minute, check: begins("w.xlsx", "PK", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"), code: `
import xlsxwriter
w = xlsxwriter.Workbook("/workspace/outputs/w.xlsx"); s = w.add_worksheet("图"); s.write_column("A1", [1, 2, 3])
c = w.add_chart({"type": "line"}); c.add_series({"values": "=图!$A$1:$A$3"}); s.insert_chart("B1", c); w.close()`},
		{name: "reportlab with a CID font", timeout: minute, within: minute, check: begins("r.pdf", "%PDF-", "application/pdf"), code: `
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfgen.canvas import Canvas
pdfmetrics.registerFont(UnicodeCIDFont("STSong-Light"))
c = Canvas("/workspace/outputs/r.pdf"); c.setFont("STSong-Light", 20); c.drawString(100, 700, "中文报告"); c.save()`},
		{name: "weasyprint", timeout: minute, within: minute, err: whatever, out: is("中文文件\n"), check: begins("h.pdf", "%PDF-", "application/pdf"), code: `
import weasyprint, pypdf
weasyprint.HTML(string="<h1>中文文件</h1>").write_pdf("/workspace/outputs/h.pdf")
print(pypdf.PdfReader("/workspace/outputs/h.pdf").pages[0].extract_text().strip())`},
		{name: "pillow, sympy, networkx, statsmodels", timeout: minute, within: minute, out: is("(4, 4) x**2/2 [0, 1, 2] 2\n"), err: whatever, code: `
from PIL import Image; import sympy, networkx, statsmodels.api as sm, numpy as np
x = sympy.Symbol("x")
print(Image.new("RGB", (4, 4)).size, sympy.integrate(x, x), networkx.shortest_path(networkx.path_graph(3), 0, 2), len(sm.OLS(np.arange(9.), sm.add_constant(np.arange(9.) ** 2)).fit().params))`},
	} {
		t.Run(p.name, func(t *testing.T) { s.try(t, p) })
	}
}

func TestOrdinaryLibraryWork(t *testing.T) {
	tryAll(t, []program{
		{name: "tempfile", out: is("True True\n"), code: `
import os, tempfile
with tempfile.NamedTemporaryFile() as f, tempfile.TemporaryDirectory() as d:
    f.write(b"x"); print(os.path.exists(f.name), os.path.isdir(d))`},
		{name: "sqlite in WAL mode", out: is("wal 1000\n"), code: `
import sqlite3
c = sqlite3.connect("/workspace/db.sqlite"); mode = c.execute("pragma journal_mode=wal").fetchone()[0]
c.execute("create table t (a)"); c.executemany("insert into t values (?)", [(i,) for i in range(1000)]); c.commit()
print(mode, sqlite3.connect("/workspace/db.sqlite").execute("select count(*) from t").fetchone()[0])`},
		{name: "zip with Chinese names", out: is("['目录/文件.txt'] 内容\n"), code: `
import zipfile
with zipfile.ZipFile("/workspace/z.zip", "w") as z: z.writestr("目录/文件.txt", "内容")
with zipfile.ZipFile("/workspace/z.zip") as z: print(z.namelist(), z.read("目录/文件.txt").decode())`},
		{name: "command line tools", out: is("zip tar gzip bzip2 xz unzip ps find\n"), code: `
import shutil
print(*[n for n in ("zip", "tar", "gzip", "bzip2", "xz", "unzip", "ps", "find") if shutil.which(n)])`},
		{name: "subprocess", out: is("HELLO\n中文 0\n"), code: `
import subprocess
print(subprocess.run("echo hello | tr a-z A-Z", shell=True, capture_output=True, text=True).stdout, end="")
p = subprocess.run(["python", "-c", "print('中文', end='')"], capture_output=True, text=True); print(p.stdout, p.returncode)`},
		{name: "multiprocessing", out: is("400 b'shared' [0, 1, 4]\n"), code: `
import multiprocessing as mp
from multiprocessing import shared_memory
ctx = mp.get_context("fork")

def count(lock, n):
    for _ in range(100):
        with lock: n.value += 1

def fill(name):
    m = shared_memory.SharedMemory(name); m.buf[:6] = b"shared"; m.close()

lock, n = ctx.Lock(), ctx.Value("i", 0, lock=False)
ps = [ctx.Process(target=count, args=(lock, n)) for _ in range(4)]
[p.start() for p in ps]; [p.join() for p in ps]
m = shared_memory.SharedMemory(create=True, size=64)
p = ctx.Process(target=fill, args=(m.name,)); p.start(); p.join()
q = ctx.Queue(); p = ctx.Process(target=lambda: q.put([i * i for i in range(3)])); p.start(); got = q.get(); p.join()
print(n.value, bytes(m.buf[:6]), got)
m.close(); m.unlink()`},
		{name: "a server on 127.0.0.1", out: is("200 b'here'\n"), code: `
import http.server, threading, urllib.request
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b"here")
    def log_message(self, *a): pass
s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), H); threading.Thread(target=s.serve_forever, daemon=True).start()
r = urllib.request.urlopen(f"http://127.0.0.1:{s.server_port}/"); print(r.status, r.read())`},
		{name: "two million rows", timeout: time.Minute, within: time.Minute, out: is("2000000 1999999000000\n"), code: `
import pandas as pd, numpy as np
pd.DataFrame({"a": np.arange(2_000_000), "b": 1}).to_csv("/workspace/rows.csv", index=False)
d = pd.read_csv("/workspace/rows.csv"); print(len(d), d.a.sum())
import os; os.unlink("/workspace/rows.csv")`},
		{name: "no way out", within: 5 * time.Second, out: is("refused refused refused refused\n"), code: `
import socket, urllib.request
def tries(f):
    try: f(); return "connected"
    except OSError: return "refused"
print(tries(lambda: socket.create_connection(("1.1.1.1", 53), 4)), tries(lambda: socket.getaddrinfo("example.com", 80)),
      tries(lambda: urllib.request.urlopen("https://example.com", timeout=4)), tries(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).connect(("2606:4700::1", 53))))`},
		{name: "UTF-8 is the default", out: is("utf-8 utf-8 utf-8 UTF-8 中文\n"), code: `
import locale, sys
open("/workspace/文.txt", "w").write("中文")
print(sys.stdout.encoding, sys.getfilesystemencoding(), sys.getdefaultencoding(), locale.getpreferredencoding(False).upper(), open("/workspace/文.txt").read())`},
		{name: "time zones", out: is("CST UTC\n"), code: `
import datetime, zoneinfo, time
print(datetime.datetime(2024, 1, 1, tzinfo=zoneinfo.ZoneInfo("Asia/Shanghai")).tzname(), time.tzname[0])`},
	})
}
