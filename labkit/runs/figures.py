"""A figure of runs, with their curves and their seconds, and what differs between two of them."""

import base64
import difflib
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.display import formatting
from labkit.display.figures import figure_style, stacked_bars
from labkit.errors import LabError, expect_installed
from labkit.runs.browse import flat, get, select, values_of
from labkit.runs.record import Home, RunRecord, number

if TYPE_CHECKING:  # takes a second to import
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PARTS = ("start", "data", "training", "between epochs", "rest", "restart")  # of `RunRecord.seconds`
_DRAWN_UNASKED = 2  # metrics of runs that report neither loss nor accuracy
_LINE_WIDTH = 110  # characters that fit next to each other
_LARGEST = 1e300  # matplotlib multiplies the ends of an axis
# In this order. What differs between any two runs (ids, times of day, paths) is not compared.
_COMPARED = (
    *("name", "engine", "state", "error", "workers", "scaling", "dataset", "rows", "data_fingerprint"),
    *("seed", "config", "commit", "versions", "host", "metrics", "epochs", "seconds_total"),
    *("rows_per_second", "waiting_share", "checkpoints", "tags", "note"),
)


def plot(
    home: Home = None,
    *,
    last: int = 6,
    metrics: str | Sequence[str] | None = None,
    by: str | None = None,
    **filters: Any,
) -> "Figure":
    """Plot `metrics` per epoch of the newest runs and, below them, where the seconds of each run went.

    The figure is closed for pyplot, so a notebook shows it once: as the value of its cell.

    Args:
        home, last, filters: as `labkit.runs.table` takes them.
        metrics: one name or several. Default: loss and accuracy; for runs that report neither, their first
            two metrics.
        by: a column; runs with the same value in it have the same colour.

    Raises:
        LabError: there is no such run, or none of them reports one of `metrics`.
    """
    found = select(home, last, **filters)[::-1]  # the oldest first
    return draw(found, metrics, None if by is None else list(map(str, values_of(found, by))))


def draw(
    found: Sequence[RunRecord],
    metrics: str | Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
) -> "Figure":
    """Draw these runs as `plot` does, in their order; `groups` has a name for each, and one look for a name.

    Raises:
        LabError: no run reports one of `metrics`.
    """
    expect_installed("plot runs", "matplotlib")
    import matplotlib.pyplot as plt

    labels = [_plain(formatting.short(group)) for group in groups] if groups else _labels(found)
    shown, look = _shown(found, metrics), groups or range(len(found))
    heights = [2.4] * bool(shown) + [0.9 + 0.32 * len(found)]
    columns = max(1, min(3, _LINE_WIDTH // (max(map(len, labels)) + 8)))
    legends = 0.25 * (len(found) / columns + 1)  # inches
    mosaic = [list(range(len(shown)))] * bool(shown) + [["seconds"] * max(len(shown), 1)]
    with plt.rc_context(figure_style()):
        figure, axes = plt.subplot_mosaic(
            mosaic, figsize=(8.5, sum(heights) + legends), height_ratios=heights, layout="constrained"
        )
        plt.close(figure)
        for place, metric in enumerate(shown):
            _draw_curves(axes[place], found, metric, look)
        if shown and len(found) > 1:
            lines = axes[0].get_lines()
            first = [place for place, group in enumerate(look) if group not in look[:place]]
            entries = [lines[place] for place in first], [labels[place] for place in first]
            figure.legend(*entries, loc="outside upper left", ncols=columns)
        _draw_seconds(axes["seconds"], found, labels)
        figure.legend(handles=axes["seconds"].containers, loc="outside lower left", ncols=len(_PARTS))
    return figure


def data_uri(figure: "Figure") -> str:
    """The figure as an SVG for the ``src`` of an ``<img>``, where nothing in it can run."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg")
    return f"data:image/svg+xml;base64,{base64.b64encode(drawn.getvalue()).decode()}"


def _labels(found: Sequence[RunRecord]) -> list[str]:
    """The name of each run and, where names are not enough to tell them apart, its time and its engine."""
    names, engines = Counter(run.name for run in found), {run.engine for run in found}
    labels = []
    for run in found:
        when = f" · {run.started:%H:%M:%S}" if names[run.name] > 1 else ""
        engine = f" · {run.engine}" if len(engines) > 1 else ""
        labels.append(_plain(f"{formatting.short(run.name, 22)}{when}{engine}"))
    return labels


def _plain(label: str) -> str:
    """The label for matplotlib, which reads a $ as the start of a formula, and hides what starts with _."""
    label = label.replace("$", r"\$")
    return " " + label if label.startswith("_") else label


def _shown(found: Sequence[RunRecord], metrics: str | Sequence[str] | None) -> list[str]:
    """The metrics to draw: those asked for, or those that nearly every run has."""
    pairs = (pair for run in found for entry in run.history for pair in entry.items())
    reported = list(dict.fromkeys(name for name, v in pairs if name != "epoch" and number(v) is not None))
    if metrics is None:
        return [name for name in ("loss", "accuracy") if name in reported] or reported[:_DRAWN_UNASKED]
    asked = [metrics] if isinstance(metrics, str) else list(metrics)
    if unknown := [metric for metric in asked if metric not in reported]:
        fact = f"the runs report {', '.join(reported) or 'no metrics at all'}"
        fix = "metrics= takes one of these names, or a list of them"
        raise LabError(f"plot the metric {unknown[0]!r}", fact, fix)
    return asked


def _draw_curves(axes: "Axes", found: Sequence[RunRecord], metric: str, groups: Sequence) -> None:
    """The metric of each run; the lines of a group look the same."""
    from matplotlib import rcParams
    from matplotlib.ticker import MaxNLocator

    looks, places = rcParams["axes.prop_cycle"].by_key(), list(dict.fromkeys(groups))
    for run, group in zip(found, groups, strict=True):
        entries = [(entry.get("epoch", place), entry.get(metric)) for place, entry in enumerate(run.history)]
        points = [(_drawn(epoch), _drawn(value)) for epoch, value in entries]
        points = [(epoch + 1, value) for epoch, value in points if epoch is not None and value is not None]
        look = {key: values[places.index(group) % len(values)] for key, values in looks.items()}
        axes.plot([epoch for epoch, _ in points], [value for _, value in points], marker="o", **look)
    axes.set(title=metric.replace("$", r"\$"), xlabel="epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _drawn(value: Any) -> float | None:
    """The number, and infinity (which leaves a gap) for one that no axis can show."""
    value = number(value)
    return value if value is None or abs(value) < _LARGEST else float("inf")


def _draw_seconds(axes: "Axes", found: Sequence[RunRecord], labels: list[str]) -> None:
    spent = [run.seconds or {"rest": run.seconds_total} for run in found]
    parts = {part: [number(seconds.get(part)) or 0.0 for seconds in spent] for part in _PARTS}
    ends = [formatting.seconds(sum(lengths)) for lengths in zip(*parts.values(), strict=True)]
    states = ["" if run.state == "finished" else f" ({run.state})" for run in found]
    stacked_bars(axes, labels, parts, [end + state for end, state in zip(ends, states, strict=True)])
    axes.set(title="where the time went", xlabel="seconds")


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. Displays itself: the table, the difference of the code, and the figure."""

    a: RunRecord
    b: RunRecord
    table: "pandas.DataFrame"  # a row for each field that differs ("config.lr"), with a column for each run
    code: str  # a unified diff of the training functions; "" if they are equal

    @property
    def figure(self) -> "Figure":
        """The curves of both, and where their seconds went."""
        return draw([self.a, self.b])

    def _repr_html_(self) -> str:
        from markupsafe import escape

        # It may scroll, which the keyboard can do only where the focus is.
        code = f'<pre tabindex="0">{escape(self.code or "The code is equal.")}</pre>'
        picture = f'<img alt="curves of both runs" src="{data_uri(self.figure)}">'
        return f"{self.table.to_html()}{code}{picture}"

    def __repr__(self) -> str:
        return f"{self.table}\n\n{self.code or 'The code is equal.'}"


def compare(a: str | RunRecord, b: str | RunRecord, home: Home = None) -> Comparison:
    """Compare two runs, given by their ids or their records. Code that only one of them has is a difference.

    Raises:
        LabError: there is no such run.
    """
    expect_installed("compare two runs", "pandas")
    import pandas

    one, other = get(a, home), get(b, home)
    left, right = (flat({name: getattr(run, name) for name in _COMPARED}) for run in (one, other))
    # As texts: NaN equals NaN then.
    names = [name for name in {**left, **right} if repr(left.get(name)) != repr(right.get(name))]
    names.sort(key=lambda name: _COMPARED.index(name.partition(".")[0]))
    rows = [(left.get(name), right.get(name)) for name in names]
    table = pandas.DataFrame(rows, index=names, columns=[one.run_id, other.run_id], dtype=object)
    lines = (run.code.splitlines() for run in (one, other))
    code = "\n".join(difflib.unified_diff(*lines, one.run_id, other.run_id, lineterm=""))
    return Comparison(one, other, table, code)
