"""A figure of a sweep's results: all configurations on parallel axes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.display.figures import GREY, figure_style
from labkit.display.formatting import number, short
from labkit.errors import RunError

if TYPE_CHECKING:  # a second to import
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Blue over violet and pink to orange: each can be read on white and on JupyterLab's dark #111.
_WORST_TO_BEST = ("#2a86c8", "#8c6fd0", "#c75b9b", "#d55e00")


def plot_parallel(
    results: Any, parameters: Sequence[str], metric: str, *, log: Sequence[str] = (), mode: str = "max"
) -> "Figure":
    """Plot one line for each trial across an axis for each parameter, with `metric` on the last axis.

    A line has the colour of its trial's `metric`, from blue (worst) to orange (best), so that you can follow
    it from axis to axis. Words and other choices are spread evenly on their axis.

    Args:
        results: what ``tuner.fit()`` returns.
        log: the parameters with a logarithmic axis.
        mode: "max" or "min", whichever is better.

    Raises:
        RunError: no trial has reported `metric`, or none has one of the parameters.
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import LinearSegmentedColormap

    table, columns = results.get_dataframe(), {f"config/{name}": name for name in parameters}
    columns[metric] = metric
    if missing := [name for column, name in columns.items() if column not in table]:
        known = [str(name).removeprefix("config/") for name in table]
        raise RunError("plot a sweep", f"no trial has {', '.join(missing)}", f"some of {', '.join(known)}")
    table = table[table[metric].abs() < float("inf")].sort_values(metric, ascending=mode == "max")
    colours = LinearSegmentedColormap.from_list("worst to best", _WORST_TO_BEST)
    with plt.rc_context(figure_style()):
        figure, axes = plt.subplots(figsize=(8.5, 3.0), layout="constrained")
        plt.close(figure)
        heights = [
            _draw_axis(axes, x, table[column], log=name in log)
            for x, (column, name) in enumerate(columns.items())
        ]
        for line in zip(*heights, strict=True):  # the best comes last and is on top
            merit = line[-1] if mode == "max" else 1 - line[-1]
            axes.plot(line, color=colours(merit), linestyle="-", linewidth=1 + 1.5 * merit**3)
        names = [f"{name} (log)" if name in log else name for name in columns.values()]
        axes.set_xticks(range(len(names)), names)
        axes.set_yticks([])
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(axis="x", length=0)
    return figure


def _draw_axis(axes: "Axes", x: int, values: "pandas.Series", *, log: bool) -> "pandas.Series":
    """Draw one upright axis with its ends; return the height of each value on it, from 0 to 1."""
    import numpy as np

    axes.axvline(x, color=GREY, linewidth=1, linestyle="-")
    if values.dtype.kind in "if":
        scaled = np.log10(values) if log else values
        heights = (scaled - scaled.min()) / ((scaled.max() - scaled.min()) or 1.0)
        ends = {number(float(values.min())): 0.0, number(float(values.max())): 1.0}
    else:
        kinds = sorted(set(values.astype(str)))
        ends = {kind: (place + 0.5) / len(kinds) for place, kind in enumerate(kinds)}
        heights = values.astype(str).map(ends)
    for words, height in ends.items():
        above = {0.0: -6, 1.0: 6}.get(height, 0)
        axes.annotate(short(words, 16), (x, height), (4, above), textcoords="offset points", va="center")
    return heights
