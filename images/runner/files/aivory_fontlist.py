"""Hand matplotlib the font list that was made when the image was built.

A .pth file imports this at every start of Python, so it must stay cheap and
must not import matplotlib. The home of a runner is an empty tmpfs and
matplotlib looks for its font list below MPLCONFIGDIR alone; without one it
scans every font at the first import of pyplot. A link is enough: the list is
only read.
"""

import os

_BAKED = "/usr/lib/aivory-runner/matplotlib"


def _link():
    target = os.environ.get("MPLCONFIGDIR")
    if not target:
        return
    try:
        for name in os.listdir(_BAKED):
            link = os.path.join(target, name)
            try:
                os.symlink(os.path.join(_BAKED, name), link)
            except FileNotFoundError:
                os.makedirs(target, exist_ok=True)
                os.symlink(os.path.join(_BAKED, name), link)
    except OSError:
        # There already, or not writable: matplotlib copes with both.
        pass


_link()
