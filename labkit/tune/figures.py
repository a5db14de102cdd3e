"""Figures of a sweep's results: the learning curves, and all configurations on parallel axes."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.display import formatting
from labkit.display.figures import figure_style

if TYPE_CHECKING:  # a second to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Blue over violet and pink to orange: each can be read on white and on JupyterLab's dark #111.
_WORST_TO_BEST = ("#2a86c8", "#8c6fd0", "#c75b9b", "#d55e00")


def curves(results: Any, metric: str, *, best: int = 6, mode: str = "max") -> "Figure":
    """`metric` by iteration of the best trials, all others in grey.

    Args:
        results: of ``tuner.fit()``: each has ``metrics`` and ``metrics_dataframe``.
        best: how many trials get a colour and a name.
    """
    import matplotlib.pyplot as plt

    ranked = _ranked(results, metric, mode)
    with plt.rc_context(figure_style()):
        figure, axes = plt.subplots(figsize=(8.5, 3.2), layout="constrained")
        plt.close(figure)
        for place, result in enumerate(ranked):
            rows = result.metrics_dataframe
            if rows is None or metric not in rows:
                continue
            look: dict[str, Any] = {"color": "#7a7a7a", "linestyle": "-", "alpha": 0.35, "linewidth": 1}
            if place < best:
                look = {
                    "label": f"{place + 1} · {_named(result.config)}",
                    "zorder": 50 - place,
                    "linewidth": 2.5 - place / 6,
                }
            axes.plot(rows["training_iteration"], rows[metric], marker="o", **look)
        axes.set(title=metric, xlabel="iteration")
        handles, labels = axes.get_legend_handles_labels()
        order = sorted(range(len(labels)), key=lambda k: int(labels[k].split(" ")[0]))
        axes.legend([handles[k] for k in order], [labels[k] for k in order], loc="center left",
                    bbox_to_anchor=(1, 0.5))  # fmt: skip
    return figure


def parallel(
    results: Any, parameters: Sequence[str], metric: str, *, log: Sequence[str] = (), mode: str = "max"
) -> "Figure":
    """One line for each trial across an axis for each parameter, and `metric` at the end.

    A line has the colour of its trial's `metric`, from blue (worst) to orange (best), so that you can follow
    it from axis to axis. Words and other choices are spread evenly on their axis.

    Args:
        log: the parameters with a logarithmic axis.
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import LinearSegmentedColormap

    found = [
        result for result in _ranked(results, metric, mode) if all(p in result.config for p in parameters)
    ]
    names = [*parameters, metric]
    columns = [[r.config[name] for r in found] for name in parameters] + [[r.metrics[metric] for r in found]]
    with plt.rc_context(figure_style()):
        figure, axes = plt.subplots(figsize=(8.5, 3.0), layout="constrained")
        plt.close(figure)
        heights = [
            _draw_axis(axes, x, values, name in log)
            for x, (name, values) in enumerate(zip(names, columns, strict=True))
        ]
        colours = LinearSegmentedColormap.from_list("worst to best", _WORST_TO_BEST)
        for place in reversed(range(len(found))):
            ys = [height[place] for height in heights]
            merit = ys[-1] if mode == "max" else 1 - ys[-1]
            axes.plot(
                range(len(names)), ys, color=colours(merit), linestyle="-", linewidth=1 + 1.5 * merit**3
            )
        axes.set_xticks(range(len(names)), [f"{name} (log)" if name in log else name for name in names])
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(axis="x", length=0)
    return figure


def _ranked(results: Any, metric: str, mode: str) -> list[Any]:
    """Those that reported a finite number, the best first."""
    sign = -1 if mode == "max" else 1
    known = [r for r in results if r.metrics and isinstance(r.metrics.get(metric), (int, float))]
    return sorted(
        (r for r in known if math.isfinite(r.metrics[metric])), key=lambda r: sign * r.metrics[metric]
    )


def _named(config: dict[str, Any]) -> str:
    shown = [
        f"{name} {formatting.number(v)}" for name, v in config.items() if isinstance(v, (int, float, str))
    ]
    return " · ".join(shown[:3])


def _draw_axis(axes: "Axes", x: float, values: Sequence[Any], log: bool) -> list[float]:
    """Draw one upright axis with its ends; where each value lies on it, 0 to 1."""
    numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    axes.axvline(x, color="#7a7a7a", linewidth=1, linestyle="-")
    if not numeric:
        kinds = sorted({str(value) for value in values})
        places = {kind: (k + 0.5) / len(kinds) for k, kind in enumerate(kinds)}
        for kind, place in places.items():
            axes.annotate(
                formatting.short(kind, 16), (x, place), (4, 0), textcoords="offset points", va="center"
            )
        return [places[str(value)] for value in values]
    scaled = [math.log10(value) if log else float(value) for value in values]
    low, high = min(scaled, default=0.0), max(scaled, default=1.0)
    for place, value in ((0.0, low), (1.0, high)):
        text = formatting.number(10**value if log else value)
        axes.annotate(text, (x, place), (4, 6 if place else -6), textcoords="offset points", va="center")
    return [(value - low) / ((high - low) or 1.0) for value in scaled]
