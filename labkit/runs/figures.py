"""Figures of past runs, and the one style of all figures: legible in light and dark JupyterLab.

>>> plt.rcParams.update(figure_style())
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from labkit.display import formatting
from labkit.errors import RunError
from labkit.runs.record import RunRecord

if TYPE_CHECKING:  # a second to import, and not needed before the first figure
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# All have a contrast of at least 3.8 on white and on JupyterLab's dark #111; text and axes 4.2.
_GREY = "#7a7a7a"
_COLOURS = ("#2a86c8", "#d55e00", "#00916a", "#c75b9b", "#97802a", "#8c6fd0")
_LINES = ("-", "--", "-.", ":", (0, (6, 1)), (0, (3, 1, 1, 1, 1, 1)))
# The parts of a run's time, as `RunState.seconds` calls them, and the hatching of each.
_PARTS = {
    "start": "\\\\\\",
    "data": "...",
    "training": "",
    "between epochs": "xxx",
    "rest": "///",
    "restart": "---",
}
_DRAWN_UNASKED = 2  # metrics of runs that report neither loss nor accuracy
_LINE_WIDTH = 110  # characters that fit beside each other


def compare(records: Sequence[RunRecord], *, metrics: str | Sequence[str] | None = None) -> "Figure":
    """`metrics` per epoch of each run, and below them where the seconds of each went; the oldest run first.

    The figure is closed for pyplot, so a notebook shows it once: as the value of its cell.

    Args:
        metrics: names; default: loss and accuracy, or what the runs report in place of them.

    Raises:
        RunError: no run reports one of `metrics`.
    """
    import matplotlib.pyplot as plt

    found = sorted(records, key=lambda record: record.started)
    labels = _labels(found)
    shown = _shown(found, metrics)
    heights = [2.4] * bool(shown) + [0.9 + 0.32 * len(found)]
    columns = max(1, min(3, _LINE_WIDTH // (max(map(len, labels)) + 8)))
    legends = 0.25 * (len(found) / columns + 1)  # inches
    mosaic = [shown] * bool(shown) + [["seconds"] * max(len(shown), 1)]
    with plt.rc_context(figure_style()):
        figure, axes = plt.subplot_mosaic(
            mosaic, figsize=(8.5, sum(heights) + legends), height_ratios=heights, layout="constrained"
        )
        plt.close(figure)
        for metric in shown:
            _draw_curves(axes[metric], found, metric)
        if shown and len(found) > 1:
            figure.legend(axes[shown[0]].get_lines(), labels, loc="outside upper left", ncols=columns)
        _draw_seconds(axes["seconds"], found, labels)
        figure.legend(handles=axes["seconds"].containers, loc="outside lower left", ncols=len(_PARTS))
    return figure


def figure_style() -> dict[str, Any]:
    """matplotlib's settings for figures that can be read in light and dark JupyterLab.

    ``plt.rcParams.update(figure_style())`` sets it for a notebook's own figures.
    """
    from cycler import cycler

    greys = (
        "text.color",
        "axes.labelcolor",
        "axes.edgecolor",
        "axes.titlecolor",
        "xtick.color",
        "ytick.color",
    )
    return {
        **dict.fromkeys(greys, _GREY),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
        **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
        "axes.prop_cycle": cycler(color=_COLOURS, linestyle=_LINES),
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "font.size": 10,
        "lines.linewidth": 1.8,
        "lines.markersize": 4,
        "hatch.color": "#ffffffb0",
        "hatch.linewidth": 0.8,
        "figure.dpi": 110,
    }


def _labels(found: list[RunRecord]) -> list[str]:
    """What the reader called each run; where that does not tell them apart, when and by what it was run."""
    names, engines = Counter(record.name for record in found), {record.engine for record in found}
    labels = []
    for record in found:
        name = record.name if len(record.name) <= 22 else record.name[:21] + "…"
        when = f" · {record.started:%H:%M:%S}" if names[record.name] > 1 else ""
        engine = f" · {record.engine}" if len(engines) > 1 else ""
        # A dollar sign would begin a formula, and a label that begins with _ is not shown.
        label = f"{name}{when}{engine}".replace("$", r"\$")
        labels.append(" " + label if label.startswith("_") else label)
    return labels


def _shown(found: list[RunRecord], metrics: str | Sequence[str] | None) -> list[str]:
    """The metrics to draw: those asked for, or the ones that nearly every training has."""
    reported = dict.fromkeys(name for record in found for name in _reported(record))
    if metrics is None:
        common = [m for m in ("loss", "accuracy") if any(_name_in(record, m) for record in found)]
        return common or list(reported)[:_DRAWN_UNASKED]
    asked = list(metrics) if isinstance(metrics, (list, tuple, set)) else [metrics]
    for metric in asked:
        if not isinstance(metric, str) or not any(_name_in(record, metric) for record in found):
            raise RunError(
                f"plot the metric {metric!r}",
                f"the runs report {', '.join(reported) or 'no metrics at all'}",
                "metrics= takes one of these names, or a list of them",
            )
    return asked


def _reported(record: RunRecord) -> dict[str, None]:
    """The metrics in a run's history that are numbers, in the order in which they came."""
    pairs = (pair for entry in record.history for pair in entry.items())
    return dict.fromkeys(name for name, value in pairs if name != "epoch" and _is_number(value))


def _name_in(record: RunRecord, metric: str) -> str | None:
    """`metric` as this run calls it: the same, or "val_loss" for "loss"."""
    names = _reported(record)
    alike = [name for name in names if re.search(rf"[\W_]{re.escape(metric)}$", name)]
    return metric if metric in names else min(alike, key=len, default=None)


def _curve(record: RunRecord, metric: str) -> tuple[list[float], list[float]]:
    """Epochs (from 1) and values of `metric`, whatever the run calls it."""
    name = _name_in(record, metric)
    points = [
        (entry.get("epoch", index) + 1, entry[name])
        for index, entry in enumerate(record.history)
        if name and _is_number(entry.get(name)) and _is_number(entry.get("epoch", index))
    ]
    return [epoch for epoch, _ in points], [value for _, value in points]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _draw_curves(axes: "Axes", found: list[RunRecord], metric: str) -> None:
    from matplotlib.ticker import MaxNLocator

    for record in found:
        axes.plot(*_curve(record, metric), marker="o")
    drawn = dict.fromkeys(name for record in found if (name := _name_in(record, metric)))
    axes.set(title=", ".join(drawn).replace("$", r"\$"), xlabel="epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _draw_seconds(axes: "Axes", found: list[RunRecord], labels: list[str]) -> None:
    rows = range(len(found))
    ends = [0.0] * len(found)
    colours = dict(zip(_PARTS, _COLOURS, strict=False))
    for part, values in _parts(found):
        axes.barh(rows, values, left=ends, height=0.6, color=colours[part], hatch=_PARTS[part], label=part)
        ends = [end + value for end, value in zip(ends, values, strict=True)]
    for row, (record, end) in enumerate(zip(found, ends, strict=True)):
        text = formatting.seconds(end) + ("" if record.state == "finished" else f" ({record.state})")
        axes.annotate(text, (end, row), (4, 0), textcoords="offset points", va="center")
    axes.set(title="where the time went", xlabel="seconds")
    axes.set_yticks(rows, labels)
    axes.set_xmargin(0.12)
    axes.invert_yaxis()


def _parts(found: list[RunRecord]) -> Iterator[tuple[str, list[float]]]:
    """Each part of the time, with its seconds in each run; parts that no run has are left out."""
    spent = [record.seconds or _estimated(record) for record in found]
    for part in _PARTS:
        values = [seconds.get(part) for seconds in spent]
        values = [float(v) if _is_number(v) and isfinite(v) and v > 0 else 0.0 for v in values]
        if any(values):
            yield part, values


def _estimated(record: RunRecord) -> dict[str, float]:
    """The parts of a run that did not say where its time went."""
    start, training = record.seconds_to_start or 0.0, sum(record.seconds_per_epoch)
    return {"start": start, "training": training, "rest": (record.seconds_total or 0.0) - start - training}
