"""Checks of the runner image, run inside a runner (see check.sh).

Prints one line per check and, last, a count. Files that a person may want to
look at are left in /workspace/outputs.
"""

import importlib
import io
import logging
import os
import subprocess
import sys
import time
import traceback
import warnings

LIBRARIES = """numpy pandas scipy sklearn statsmodels.api matplotlib.pyplot seaborn plotly.express PIL.Image sympy
networkx docx openpyxl xlsxwriter reportlab.pdfgen.canvas weasyprint markdown jinja2 pypdf tabulate requests
lxml.etree bs4 html5lib yaml""".split()
# Modules of the wheels that an image built without a package index lacks.
WHEELS = {"python-pptx": "pptx", "kaleido": "kaleido.scopes.plotly"}
MISSING_FILE = "/usr/lib/aivory-runner/missing"

CJK = "中文标题 繁體標題 日本語タイトル 한국어 제목"
OUT = "/workspace/outputs"

passed = failed = 0


def check(function):
    """Run the function at once; its name and docstring say what is checked."""
    global passed, failed
    start = time.perf_counter()
    try:
        note = function() or ""
        passed += 1
        word = "ok"
    except BaseException:
        failed += 1
        word, note = "FAILED", "\n" + traceback.format_exc()
    print(f"{word:6} {time.perf_counter() - start:6.2f}s  {function.__name__.replace('_', ' ')}  {note}", flush=True)


class FontLog(logging.Handler):
    """Keeps what matplotlib says of fonts: a scan, a family not found."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


font_log = FontLog()
logging.getLogger("matplotlib.font_manager").addHandler(font_log)
logging.getLogger("matplotlib.font_manager").setLevel(logging.INFO)
os.makedirs(OUT, exist_ok=True)


@check
def locked_down():
    assert os.getuid() == os.getgid() == 1000
    assert os.environ["HOME"] == "/home/sandbox" and os.getcwd() == "/workspace"
    assert os.environ["LANG"] == "C.UTF-8" and sys.stdout.encoding == "utf-8"
    assert time.tzname[0] == "UTC"
    for directory in ("/tmp", "/home/sandbox", "/workspace"):
        open(f"{directory}/probe", "w").close()
        os.remove(f"{directory}/probe")
    setuid = subprocess.run(
        ["find", "/", "-xdev", "-perm", "/6000", "-type", "f"], capture_output=True, text=True
    ).stdout
    assert not setuid, setuid


@check
def tools():
    for command in ["ps aux", "tar --version", "gzip --version", "find /tmp", "python --version", "sh -c :", "bash -c :"]:
        subprocess.run(command.split(), check=True, stdout=subprocess.DEVNULL)
    return sys.version.split()[0]


@check
def byte_code():
    """Every module must come from byte code that no file time can spoil."""
    import importlib.util

    for module in ("json", "numpy", "pandas", "matplotlib.figure", "weasyprint"):
        with open(importlib.util.find_spec(module).cached, "rb") as f:
            assert f.read(8)[4:] == b"\1\0\0\0", f"{module} is not unchecked-hash byte code"


@check
def no_font_scan():
    """A fresh home must get the baked font list."""
    config = os.environ["MPLCONFIGDIR"]
    (name,) = os.listdir(config)
    import matplotlib.pyplot  # noqa: F401

    assert font_log.lines == [], font_log.lines
    assert os.path.islink(f"{config}/{name}") and os.listdir(config) == [name]


@check
def no_fontconfig_scan():
    """The same for fontconfig, which weasyprint asks."""
    said = subprocess.run(["fc-match", "sans"], env={**os.environ, "FC_DEBUG": "16"}, capture_output=True, text=True)
    assert "FcDirCacheWriteDir" not in said.stdout + said.stderr, said.stdout


for library in LIBRARIES:

    def load(library=library):
        module = importlib.import_module(library)
        root = sys.modules[library.partition(".")[0]]
        return getattr(root, "__version__", getattr(module, "__version__", ""))

    load.__name__ = f"import_{library}"
    check(load)

with open(MISSING_FILE) as f:
    missing = f.read().split()
for package, module in WHEELS.items():
    if package in missing:
        print(f"absent          {package}: built without a package index")
    else:

        def load_wheel(module=module):
            importlib.import_module(module)

        load_wheel.__name__ = f"import_{package}"
        check(load_wheel)


def chart(name, title=CJK, **style):
    """Draw one chart; any warning is an error, matplotlib's missing glyphs too."""
    import matplotlib.pyplot as plt

    font_log.lines.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure, axes = plt.subplots(figsize=(8, 3))
        axes.bar(["北京", "東京", "서울"], [-3, 2, -1.5], label="温度 °C")
        axes.set_title(title, **style)
        axes.set_ylabel("−1 ≤ x²")
        axes.legend()
        figure.savefig(f"{OUT}/{name}")
        plt.close(figure)
    assert not font_log.lines, font_log.lines


@check
def chart_default():
    chart("chart.png", CJK + " 📈 ✓ −5")
    chart("chart-bold.png", weight="bold")


@check
def chart_to_pdf_and_svg():
    chart("chart.pdf")
    chart("chart.svg")


@check
def chart_as_programs_write_it():
    """Fonts of other systems, asked for by name in copied code."""
    import matplotlib.pyplot as plt

    for font in ("SimHei", "Microsoft YaHei", "Noto Sans CJK TC", "Noto Sans CJK JP", "Malgun Gothic", "SimSun"):
        with plt.rc_context({"font.sans-serif": [font], "axes.unicode_minus": False}):
            chart("chart-named.png")
        with plt.rc_context({"font.family": "sans-serif", "font.sans-serif": [font, "DejaVu Sans"]}):
            chart("chart-generic.png")
        with plt.rc_context({"font.family": font}):
            chart("chart-family.png")
    for style in ("default", "ggplot", "seaborn-v0_8-whitegrid", "bmh"):
        with plt.style.context(style):
            chart("chart-style.png")


@check
def chart_with_seaborn_theme():
    import seaborn

    seaborn.set_theme()
    chart("chart-seaborn.png")
    seaborn.reset_orig()


@check
def chart_with_plotly():
    import plotly.graph_objects as go

    html = go.Figure(go.Bar(x=["北京"], y=[-1])).to_html(include_plotlyjs=True)
    assert "北京" in html or "\\u5317" in html
    assert len(html) > 1_000_000, "plotly.js is not in the page"
    if "kaleido" not in missing:
        assert go.Figure(go.Bar(x=["北京"], y=[-1])).to_image("png").startswith(b"\x89PNG")


@check
def colour_emoji_and_cjk_with_pillow():
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (700, 140), "white")
    draw = ImageDraw.Draw(image)
    emoji = ImageFont.truetype("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf", 109)
    draw.text((5, 5), "😀🚀", font=emoji, embedded_color=True)
    colours = {p for _, p in image.getcolors(1 << 20)}
    assert len(colours) > 100, "the emoji has no colours"
    noto = ImageFont.truetype("/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc", 40, index=2)
    assert noto.getname()[0] == "Noto Sans CJK SC", noto.getname()
    draw.text((300, 40), "直接 骨头 한국어", font=noto, fill="black")
    image.save(f"{OUT}/pillow.png")


@check
def pdf_with_reportlab():
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.cidfonts import UnicodeCIDFont
    from reportlab.pdfgen import canvas

    page = canvas.Canvas(f"{OUT}/reportlab.pdf")
    for y, (font, text) in enumerate([("STSong-Light", "中文"), ("HeiseiMin-W3", "日本語"), ("HYSMyeongJo-Medium", "한국어")]):
        pdfmetrics.registerFont(UnicodeCIDFont(font))
        page.setFont(font, 20)
        page.drawString(50, 700 - 40 * y, text)
    page.setFont("Helvetica", 12)
    page.drawString(50, 500, "plain")
    page.save()
    import pypdf

    assert "中文" in pypdf.PdfReader(f"{OUT}/reportlab.pdf").pages[0].extract_text()


@check
def pdf_with_weasyprint():
    import weasyprint

    html = """<meta charset=utf-8><style>body{font-family:sans-serif}</style><h1>报告 直 骨</h1><p lang=ja>直 骨 日本語
        <p lang=ko>한국어 <p style="font-family:serif">宋体 serif <p>😀 ✓ −5 <table border=1><tr><td>表格</table>"""
    weasyprint.HTML(string=html).write_pdf(f"{OUT}/weasyprint.pdf")
    import pypdf

    page = pypdf.PdfReader(f"{OUT}/weasyprint.pdf").pages[0]
    assert "报告" in page.extract_text() and "한국어" in page.extract_text()
    fonts = {str(f.get_object()["/BaseFont"]) for f in page["/Resources"]["/Font"].values()}
    assert any("Noto-Sans-CJK" in f for f in fonts) and any("Emoji" in f for f in fonts), fonts
    return f"{len(fonts)} fonts"


@check
def office_documents():
    import docx
    import openpyxl
    import pandas
    from PIL import Image

    document = docx.Document()
    document.add_heading("报告", 0)
    document.add_table(2, 2).cell(0, 0).text = "表"
    picture = io.BytesIO()
    Image.new("RGB", (10, 10)).save(picture, "PNG")
    document.add_picture(picture)
    document.save(f"{OUT}/report.docx")
    assert docx.Document(f"{OUT}/report.docx").paragraphs[0].text == "报告"

    frame = pandas.DataFrame({"城市": ["北京", "東京"], "n": [1, 2]})
    for engine in ("openpyxl", "xlsxwriter"):
        frame.to_excel(f"{OUT}/{engine}.xlsx", index=False, engine=engine)
        assert pandas.read_excel(f"{OUT}/{engine}.xlsx").equals(frame)
    assert openpyxl.load_workbook(f"{OUT}/xlsxwriter.xlsx").active["A2"].value == "北京"
    if "python-pptx" not in missing:
        import pptx

        slides = pptx.Presentation()
        slides.slides.add_slide(slides.slide_layouts[0]).shapes.title.text = "报告"
        slides.save(f"{OUT}/slides.pptx")


@check
def text_formats():
    import bs4
    import jinja2
    import markdown
    import pandas
    import tabulate
    import yaml

    assert "<table>" in markdown.markdown("|a|\n|-|\n|中|", extensions=["tables"])
    assert jinja2.Template("{{ x }}").render(x="中") == "中"
    assert "中" in tabulate.tabulate([["中"]], tablefmt="github")
    assert yaml.safe_load("a: [1, 中]") == {"a": [1, "中"]}
    assert bs4.BeautifulSoup("<p>中", "lxml").p.text == bs4.BeautifulSoup("<p>中", "html5lib").p.text
    assert pandas.read_html(io.StringIO("<table><tr><th>a<tr><td>1</table>"))[0].a[0] == 1
    assert "中" in pandas.DataFrame({"a": ["中"]}).to_markdown()


@check
def numbers():
    """Right results from the BLAS on this processor, and from what stands on it."""
    import networkx
    import numpy
    import statsmodels.api as sm
    import sympy
    from scipy import linalg, optimize
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LinearRegression

    random = numpy.random.default_rng(0)
    for size in (7, 64, 301):
        a = random.standard_normal((size, size))
        assert numpy.allclose(a @ numpy.linalg.inv(a), numpy.eye(size), atol=1e-6)
        u, s, v = linalg.svd(a)
        assert numpy.allclose(u * s @ v, a)
        f = a.astype("f4")
        assert numpy.allclose(f @ f, numpy.einsum("ij,jk", a, a), atol=1e-2)
    x = random.standard_normal((200, 3))
    y = x @ [1, -2, 3] + 4
    assert numpy.allclose(LinearRegression().fit(x, y).coef_, [1, -2, 3])
    assert numpy.allclose(sm.OLS(y, sm.add_constant(x)).fit().params, [4, 1, -2, 3])
    assert RandomForestClassifier(5).fit(x, y > 0).score(x, y > 0) > 0.8
    assert abs(optimize.brentq(lambda t: t * t - 2, 0, 2) ** 2 - 2) < 1e-9
    t = sympy.symbols("t")
    assert sympy.integrate(2 * t, t) == t**2
    assert networkx.shortest_path_length(networkx.path_graph(5), 0, 4) == 4


@check
def time_zones():
    import datetime
    import zoneinfo

    import pandas

    noon = datetime.datetime(2024, 1, 1, 12, tzinfo=zoneinfo.ZoneInfo("Asia/Shanghai"))
    assert noon.utcoffset() == datetime.timedelta(hours=8)
    assert str(pandas.Timestamp("2024-01-01", tz="Asia/Tokyo").tz) == "Asia/Tokyo"


print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
