"""Figures of a sweep's results: the learning curves, and all configurations on parallel axes."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.display import figure_style
from labkit.display.formatting import number, short
from labkit.errors import RunError

if TYPE_CHECKING:  # a second to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREY = "#7a7a7a"
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
            rows = result.metrics_dataframe
            if rows is None or metric not in rows:
                continue
            look: dict[str, Any] = {"color": _GREY, "linestyle": "-", "alpha": 0.35, "linewidth": 1}
            if place < best:
                label = f"{place + 1} · {_named(result.config)}"
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
        RunError: no trial has reported `metric`, or none has one of the parameters.
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import LinearSegmentedColormap

    found = _ranked(results, metric, mode)
    known = {name for result in found for name in result.config}
    for name in [parameters] if isinstance(parameters, str) else [*parameters, *log]:
        if isinstance(parameters, str) or name not in known:
            fact = f"parameters is one text, {name!r}" if name == parameters else f"no trial has {name!r}"
            raise RunError("plot the parameters of a sweep", fact, f"a list of some of {sorted(known)}")
    found = [result for result in found if all(name in result.config for name in parameters)]
    columns = [(name, [result.config[name] for result in found]) for name in parameters]
    columns += [(metric, [result.metrics[metric] for result in found])]
    colours = LinearSegmentedColormap.from_list("worst to best", _WORST_TO_BEST)
    places = range(len(columns))
    with plt.rc_context(figure_style()):
        figure, axes = plt.subplots(figsize=(8.5, 3.0), layout="constrained")
        plt.close(figure)
        heights = [_draw_axis(axes, x, values, name in log) for x, (name, values) in enumerate(columns)]
        for line in reversed(list(zip(*heights, strict=True))):  # the best is on top
            merit = line[-1] if mode == "max" else 1 - line[-1]
            axes.plot(places, line, color=colours(merit), linestyle="-", linewidth=1 + 1.5 * merit**3)
        axes.set_xticks(places, [f"{name} (log)" if name in log else name for name, _ in columns])
        axes.set_yticks([])
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(axis="x", length=0)
    return figure


def _ranked(results: Any, metric: str, mode: str) -> list[Any]:
    """Return the results with a finite number, the best first."""
    try:
        found = list(results)  # a ResultGrid has no __iter__, but can be iterated over
    except TypeError:
        found = [None]
    if not all(hasattr(result, "metrics") for result in found):
        fact = f"the results are of type {type(results).__name__}, not those of a sweep"
        raise RunError(f"plot {metric!r}", fact, "results = tuner.fit(); plot_curves(results, 'loss')")
    if mode not in ("max", "min"):
        raise RunError(f"plot {metric!r}", f"mode is {mode!r}", 'mode="max", or mode="min" for a loss')
    reported = [result for result in found if isinstance((result.metrics or {}).get(metric), (int, float))]
    if not reported:
        names = sorted({str(name) for result in found for name in result.metrics or {}})
        fact = f"no trial has reported {metric!r}"
        raise RunError(f"plot {metric!r}", fact, f"one of {', '.join(names) or 'the metrics of a sweep'}")
    sign = -1 if mode == "max" else 1
    finite = [result for result in reported if math.isfinite(result.metrics[metric])]
    return sorted(finite, key=lambda result: sign * result.metrics[metric])


def _named(config: dict[str, Any]) -> str:
    shown = {name: value for name, value in config.items() if isinstance(value, (int, float, str))}
    return " · ".join([f"{name} {number(value)}" for name, value in shown.items()][:3])


def _draw_axis(axes: "Axes", x: float, values: Sequence[Any], log: bool) -> list[float]:
    """Draw one upright axis with its ends; return the height of each value on it, from 0 to 1."""
    axes.axvline(x, color=_GREY, linewidth=1, linestyle="-")
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        scaled = [math.log10(value) if log else float(value) for value in values]
        low, high = min(scaled, default=0.0), max(scaled, default=1.0)
        heights = [(value - low) / ((high - low) or 1.0) for value in scaled]
        labels = {number(10**value if log else value): place for place, value in ((0.0, low), (1.0, high))}
    else:
        kinds = sorted({str(value) for value in values})
        labels = {kind: (k + 0.5) / len(kinds) for k, kind in enumerate(kinds)}
        heights = [labels[str(value)] for value in values]
    for words, height in labels.items():
        above = {0.0: -6, 1.0: 6}.get(height, 0)
        axes.annotate(short(words, 16), (x, height), (4, above), textcoords="offset points", va="center")
    return heights
