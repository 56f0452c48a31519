"""Hand matplotlib the font list that was made when the image was built.

Every start of Python runs this, so it must stay cheap and must not import
matplotlib. The home of a runner is an empty tmpfs and matplotlib looks for its
font list below MPLCONFIGDIR alone; without one it scans every font at the first
import of pyplot. A link is enough: the list is only read.

It takes the place of Debian's own sitecustomize, which looks for a crash
reporter that the image does not have.
"""

import os

_BAKED = "/usr/lib/aivory-runner/matplotlib"


def _link_font_list():
    target = os.environ.get("MPLCONFIGDIR")
    if not target:
        return
    try:
        for name in os.listdir(_BAKED):
            source, link = f"{_BAKED}/{name}", f"{target}/{name}"
            try:
                os.symlink(source, link)
            except FileNotFoundError:
                os.makedirs(target, exist_ok=True)
                os.symlink(source, link)
    except OSError:
        # There already, or not writable: matplotlib copes with both.
        pass


_link_font_list()
