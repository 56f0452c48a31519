"""Set matplotlib up for Chinese, Japanese and Korean, at image build time.

Writes the font defaults into matplotlib's own rc files, and a finished font
list into OUT/matplotlib (argv[1] is OUT).

matplotlib's fallback runs along `font.family` only; a generic name in it stands
for one single font. So the families are named there one by one.
"""

import dataclasses
import os
import re
import sys
import tempfile

from fontTools.ttLib import TTCollection

FAMILY = ["DejaVu Sans", "Noto Sans CJK SC", "Symbola"]
# For code that asks for the generic family: one font that has it all.
SANS = ["Noto Sans CJK SC", "Noto Sans CJK TC", "Noto Sans CJK JP", "Noto Sans CJK KR"]

RC_FILES = ["/etc/matplotlibrc", "/usr/share/matplotlib/mpl-data/matplotlibrc"]
NOTO = "/usr/share/fonts/opentype/noto/Noto{style}CJK-{weight}.ttc"

# Fonts of other systems that programs ask for by name. Without these, matplotlib
# would take DejaVu Sans and draw boxes. Arial is here because seaborn's themes
# put it first, and then no other font is asked.
ALIASES = {
    ("Sans", "SC"): """Noto Sans CJK SC|Noto Sans SC|Source Han Sans SC|Source Han Sans CN
        |SimHei|Heiti SC|STHeiti|STXihei|Microsoft YaHei|PingFang SC|Hiragino Sans GB
        |WenQuanYi Micro Hei|WenQuanYi Zen Hei|Droid Sans Fallback|Arial Unicode MS|Arial""",
    ("Sans", "TC"): """Noto Sans CJK TC|Noto Sans CJK HK|Noto Sans TC|Noto Sans HK|Source Han Sans TC
        |Source Han Sans TW|Microsoft JhengHei|PingFang TC|PingFang HK|Heiti TC""",
    ("Sans", "JP"): """Noto Sans CJK JP|Noto Sans JP|Source Han Sans|Source Han Sans JP|MS Gothic
        |MS PGothic|Yu Gothic|Meiryo|Hiragino Sans|Hiragino Kaku Gothic ProN|IPAGothic|IPAexGothic
        |TakaoGothic|VL Gothic""",
    ("Sans", "KR"): """Noto Sans CJK KR|Noto Sans KR|Source Han Sans KR|Source Han Sans K
        |Malgun Gothic|NanumGothic|NanumBarunGothic|Apple SD Gothic Neo|AppleGothic|Gulim|Dotum""",
    ("Serif", "SC"): """Noto Serif CJK SC|Noto Serif SC|Source Han Serif SC|SimSun|NSimSun|KaiTi
        |FangSong|STSong|STKaiti|STFangsong|STZhongsong|Songti SC|Kaiti SC""",
    ("Serif", "TC"): "Noto Serif CJK TC|Noto Serif TC|MingLiU|PMingLiU|DFKai-SB|Songti TC|BiauKai",
    ("Serif", "JP"): "Noto Serif CJK JP|Noto Serif JP|MS Mincho|MS PMincho|Yu Mincho|IPAMincho|Hiragino Mincho ProN",
    ("Serif", "KR"): "Noto Serif CJK KR|Noto Serif KR|Batang|Gungsuh|NanumMyeongjo|AppleMyungjo",
}
WEIGHTS = {"Regular": 400, "Bold": 700}


def edit_rc_files():
    """Replace the commented defaults, which matplotlib also reads as defaults."""
    values = {
        "font.family": ", ".join(FAMILY),
        "font.sans-serif": ", ".join(SANS + ["DejaVu Sans"]),
        "axes.unicode_minus": "True",
    }
    for path in RC_FILES:
        with open(path, encoding="utf-8") as f:
            text = f.read()
        for key, value in values.items():
            line = re.compile(rf"^#?{re.escape(key)}\s*:.*$", re.M)
            text, count = line.subn(f"{key}: {value}", text)
            if count != 1:
                sys.exit(f"cannot set {key} in {path}: {count} lines name it")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)


def single_face(out, weight):
    """Take the Simplified Chinese face out of the collection.

    matplotlib reads only the first face of a collection, the Japanese one,
    whose shapes of many characters look wrong to Chinese readers.
    """
    path = f"{out}/fonts/NotoSansCJKsc-{weight}.otf"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # The font's own time stays in it, not the build's.
    for font in TTCollection(NOTO.format(style="Sans", weight=weight), recalcTimestamp=False).fonts:
        if font["name"].getDebugName(1) == "Noto Sans CJK SC" or font["name"].getDebugName(16) == "Noto Sans CJK SC":
            font.save(path)
            return path
    sys.exit("cannot find the face Noto Sans CJK SC")


def make_list(out):
    os.environ["MPLCONFIGDIR"] = tempfile.mkdtemp()
    from matplotlib import font_manager

    fonts = font_manager.FontManager()
    # They come in the order of a set: another one in each build, and of two that
    # fit as well the first is taken.
    for entries in (fonts.ttflist, fonts.afmlist):
        entries.sort(key=lambda e: [str(field) for field in dataclasses.astuple(e)])
    have = {entry.name for entry in fonts.ttflist}
    for (style, region), names in ALIASES.items():
        for weight, number in WEIGHTS.items():
            collection = NOTO.format(style=style, weight=weight)
            model = next((e for e in fonts.ttflist if e.fname == collection), None)
            if model is None:
                sys.exit(f"cannot find {collection} in matplotlib's font list")
            path = single_face(out, weight) if (style, region) == ("Sans", "SC") else collection
            for name in re.split(r"\s*\|\s*", names.strip()):
                if name not in have:
                    fonts.ttflist.append(dataclasses.replace(model, fname=path, name=name, weight=number))
    directory = f"{out}/matplotlib"
    os.makedirs(directory, exist_ok=True)
    font_manager.json_dump(fonts, f"{directory}/fontlist-v{fonts.__version__}.json")


if __name__ == "__main__":
    edit_rc_files()
    make_list(sys.argv[1])
