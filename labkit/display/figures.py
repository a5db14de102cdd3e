"""Figures that are legible in light and dark JupyterLab: a style for matplotlib, and bars.

>>> plt.rcParams.update(figure_style())
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # takes a second to import
    from matplotlib.axes import Axes

# All have a contrast of at least 3.8 on white and on JupyterLab's dark #111; text and axes 4.2.
GREY = "#7a7a7a"
COLOURS = ("#2a86c8", "#d55e00", "#00916a", "#c75b9b", "#97802a", "#8c6fd0")
_LINES = ("-", "--", "-.", ":", (0, (6, 1)), (0, (3, 1, 1, 1, 1, 1)))
_HATCHES = ("\\\\\\", "...", "", "xxx", "///", "---")


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
