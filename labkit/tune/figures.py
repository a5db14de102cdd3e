"""Figures of a sweep's results: the learning curves, and all configurations on parallel axes."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.display.figures import GREY, figure_style
from labkit.display.formatting import number, short
from labkit.errors import RunError

if TYPE_CHECKING:  # a second to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Blue over violet and pink to orange: each can be read on white and on JupyterLab's dark #111.
_WORST_TO_BEST = ("#2a86c8", "#8c6fd0", "#c75b9b", "#d55e00")


def plot_curves(results: Any, metric: str, *, best: int = 6, mode: str = "max") -> "Figure":
    """Plot `metric` by iteration: the best trials in colour, all others in grey.

    Args:
        results: what ``tuner.fit()`` returns.
        best: how many trials get a colour and a name.
        mode: "max" or "min", whichever is better.

    Raises:
        RunError: no trial has reported `metric`.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(figure_style()):
        figure, axes = plt.subplots(figsize=(8.5, 3.2), layout="constrained")
        plt.close(figure)
        for place, result in enumerate(_ranked(results, metric, mode)):
            if (rows := result.metrics_dataframe) is None:
                continue  # the loggers that write them are off
            look: dict[str, Any] = {"color": GREY, "linestyle": "-", "alpha": 0.35, "linewidth": 1}
            if place < best:
                shown = [f"{key} {number(value)}" for key, value in result.config.items()][:3]
                label = " · ".join([str(place + 1), *shown])
                look = {"label": label, "zorder": 50 - place, "linewidth": 2.5 - place / 6}
            axes.plot(rows["training_iteration"], rows[metric], marker="o", **look)
        axes.set(title=metric, xlabel="iteration")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def plot_parallel(
    results: Any, parameters: Sequence[str], metric: str, *, log: Sequence[str] = (), mode: str = "max"
) -> "Figure":
    """Plot one line for each trial across an axis for each parameter, with `metric` on the last axis.

    A line has the colour of its trial's `metric`, from blue (worst) to orange (best), so that you can follow
    it from axis to axis. Words and other choices are spread evenly on their axis.

    Args:
        log: the parameters with a logarithmic axis.

    Raises:
        RunError: no trial has reported `metric`.
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import LinearSegmentedColormap

    ranked = _ranked(results, metric, mode)
    columns = {name: [result.config[name] for result in ranked] for name in parameters}
    columns[metric] = [result.metrics[metric] for result in ranked]
    colours = LinearSegmentedColormap.from_list("worst to best", _WORST_TO_BEST)
    with plt.rc_context(figure_style()):
        figure, axes = plt.subplots(figsize=(8.5, 3.0), layout="constrained")
        plt.close(figure)
        heights = [_draw_axis(axes, x, *column, log) for x, column in enumerate(columns.items())]
        for line in reversed(list(zip(*heights, strict=True))):  # the best is on top
            merit = line[-1] if mode == "max" else 1 - line[-1]
            axes.plot(line, color=colours(merit), linestyle="-", linewidth=1 + 1.5 * merit**3)
        axes.set_xticks(range(len(columns)), [f"{name} (log)" if name in log else name for name in columns])
        axes.set_yticks([])
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(axis="x", length=0)
    return figure


def _ranked(results: Any, metric: str, mode: str) -> list[Any]:
    """Return the results with a finite number, the best first."""
    attempt = f"plot {metric!r}"
    try:
        found = [(result, result.metrics or {}) for result in results]
    except (TypeError, AttributeError):
        fact = f"the results are of type {type(results).__name__}, not those of a sweep"
        raise RunError(attempt, fact, "results = tuner.fit(); plot_curves(results, 'loss')") from None
    reported = [result for result, metrics in found if isinstance(metrics.get(metric), (int, float))]
    if not reported:
        names = sorted({str(name) for _, metrics in found for name in metrics})
        fix = f"one of {', '.join(names) or 'the metrics of a sweep'}"
        raise RunError(attempt, f"no trial has reported {metric!r}", fix)
    finite = [result for result in reported if math.isfinite(result.metrics[metric])]
    return sorted(finite, key=lambda result: result.metrics[metric], reverse=mode == "max")


def _draw_axis(axes: "Axes", x: int, name: str, values: Sequence[Any], log: Sequence[str]) -> list[float]:
    """Draw one upright axis with its ends; return the height of each value on it, from 0 to 1."""
    axes.axvline(x, color=GREY, linewidth=1, linestyle="-")
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        scaled = [math.log10(value) if name in log else float(value) for value in values]
        low, high = min(scaled), max(scaled)
        heights = [(value - low) / ((high - low) or 1.0) for value in scaled]
        ends = {0.0: min(values), 1.0: max(values)}
    else:
        kinds = sorted({str(value) for value in values})
        places = {kind: (place + 0.5) / len(kinds) for place, kind in enumerate(kinds)}
        heights = [places[str(value)] for value in values]
        ends = {height: kind for kind, height in places.items()}
    for height, value in ends.items():
        above = {0.0: -6, 1.0: 6}.get(height, 0)
        axes.annotate(
            short(number(value), 16), (x, height), (4, above), textcoords="offset points", va="center"
        )
    return heights
