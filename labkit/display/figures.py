"""Figures that are legible in light and dark JupyterLab: a style for matplotlib, bars, and small images.

>>> plt.rcParams.update(figure_style())
"""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from labkit.errors import LabError

if TYPE_CHECKING:  # takes a second to import
    import numpy as np
    from matplotlib.axes import Axes

# All have a contrast of at least 3.8 on white and on JupyterLab's dark #111; text and axes 4.2.
GREY = "#7a7a7a"
COLOURS = ("#2a86c8", "#d55e00", "#00916a", "#c75b9b", "#97802a", "#8c6fd0")
_LINES = ("-", "--", "-.", ":", (0, (6, 1)), (0, (3, 1, 1, 1, 1, 1)))
_HATCHES = ("\\\\\\", "...", "", "xxx", "///", "---")

_ROW = Markup('<div style="display:flex;flex-wrap:wrap;gap:8px;margin:6px 0">{}</div>')
_FIGURE = Markup(  # twice its own size, so that pixels can be seen
    '<figure style="margin:0;text-align:center;font-size:12px;line-height:1.5">'
    '<img src="data:image/png;base64,{0}" alt="{1}" style="display:block;width:56px;height:56px;'
    "margin:0 auto;border-radius:4px;image-rendering:pixelated;"
    'border:1px solid var(--jp-border-color2,#8886)"><figcaption>{1}</figcaption></figure>'
)


def figure_style() -> dict[str, Any]:
    """Return matplotlib settings for figures that are legible in light and dark JupyterLab."""
    from cycler import cycler

    axes = ("labelcolor", "edgecolor", "titlecolor")
    grey = ("text.color", "xtick.color", "ytick.color", *(f"axes.{one}" for one in axes))
    return {
        **dict.fromkeys(grey, GREY),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
        **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
        **{"axes.titlesize": 11, "axes.titlelocation": "left", "font.size": 10, "figure.dpi": 110},
        **{"lines.linewidth": 1.8, "lines.markersize": 4, "hatch.color": "#ffffffb0", "hatch.linewidth": 0.8},
        "axes.prop_cycle": cycler(color=COLOURS, linestyle=_LINES),
    }


def stacked_bars(
    axes: "Axes", labels: Sequence[str], parts: Mapping[str, Sequence[float]], ends: Sequence[str]
) -> None:
    """Draw one horizontal bar per label, the first at the top, made of `parts`, with a text at its end.

    A part's place in `parts` decides its colour and hatching, so it looks the same in every figure. A part
    that is zero in all bars is left out.
    """
    rows, lengths = range(len(labels)), [0.0] * len(labels)
    for (part, values), colour, hatch in zip(parts.items(), cycle(COLOURS), cycle(_HATCHES), strict=False):
        if any(values):
            axes.barh(rows, values, left=lengths, height=0.6, color=colour, hatch=hatch, label=part)
            lengths = [length + value for length, value in zip(lengths, values, strict=True)]
    for row, (length, text) in enumerate(zip(lengths, ends, strict=True)):
        axes.annotate(text, (length, row), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(rows, labels)
    axes.set_xmargin(0.12)
    axes.invert_yaxis()


def gallery(images: Iterable["np.ndarray"], captions: Sequence[str]) -> str:
    """HTML of `images` (uint8 [height, width] or [height, width, 3]) in a row, each with its caption."""
    try:
        pairs = zip(images, captions, strict=True)
        figures = [_FIGURE.format(base64.b64encode(png(image)).decode(), text) for image, text in pairs]
    except (TypeError, ValueError, AttributeError, OSError):
        fact = "each image is a uint8 array [height, width] or [height, width, 3], and each has a caption"
        raise LabError("show images", fact, "gallery(images[:2], ['7', '2'])") from None
    return str(_ROW.format(Markup().join(figures)))


def png(image: "np.ndarray") -> bytes:
    """A uint8 array [height, width] or, in colour, [height, width, 3] as a PNG."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()
