"""What runs look like: a figure, what differs between two of them, and a report to hand in."""

import base64
import difflib
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.display import formatting
from labkit.display.figures import figure_style, stacked_bars
from labkit.errors import LabError, expect_installed
from labkit.files import atomic_write
from labkit.runs.browse import flat, get, overview, select, values_of
from labkit.runs.record import Home, RunRecord, number

if TYPE_CHECKING:  # takes a second to import
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PARTS = ("start", "data", "training", "between epochs", "rest", "restart")  # of `RunRecord.seconds`
# These differ between any two runs, or follow from others.
_NOT_COMPARED = {"run_id", "started_at", "process", "code", "storage_path", "checkpoint", "folder", "extra"}
_NOT_COMPARED |= {"history", "seconds", "seconds_per_epoch", "seconds_to_start"}
# What a report says once, where it is equal in all runs.
_ORIGIN = ("engine", "workers", "dataset", "rows", "data_fingerprint", "epochs", "seed", "config", "versions")
_ORIGIN += ("host",)
# One HTML file that needs nothing else, and runs no code: figures are SVG in an <img>.
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>{{ title }}</title><style>
:root{color-scheme:light dark}
body{max-width:60rem;margin:2rem auto;padding:0 1rem;font:16px/1.5 system-ui,sans-serif}
table{border-collapse:collapse;display:block;overflow-x:auto;font-size:14px}
th,td{text-align:left;vertical-align:top;padding:.2rem 1.2rem .2rem 0;border-bottom:1px solid #8886;
font-variant-numeric:tabular-nums}
pre{overflow-x:auto;padding:.8rem;border:1px solid #8886;font-size:13px}
td:first-child{white-space:nowrap}img{max-width:100%}</style></head>
<body><main><h1>{{ title }}</h1>
{%- for paragraph in text.split("\n\n") if paragraph.strip() %}<p>{{ paragraph }}</p>{% endfor %}
{% for words, svg in pictures %}<p><img alt="{{ words }}" src="data:image/svg+xml;base64,{{ svg }}"></p>
{% endfor %}
{% for heading, table in tables.items() %}<h2>{{ heading }}</h2>
{{ table | safe }}
{% endfor %}
{% for code, ids in codes.items() %}
<h2>Code of {{ ids | join(", ") if codes | length > 1 else "all runs" }}</h2>
<pre tabindex="0">{{ code or "It is not recorded." }}</pre>
{% endfor %}
</main></body></html>
"""


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
    """
    return draw(select(home, last, **filters)[::-1], metrics, by)  # the oldest first


def draw(
    found: Sequence[RunRecord], metrics: str | Sequence[str] | None = None, by: str | None = None
) -> "Figure":
    """Draw these runs as `plot` does, in their order."""
    expect_installed("plot runs", "matplotlib")
    import matplotlib.pyplot as plt

    groups, shown = _groups(found, by), _shown(found, metrics)
    labels, keys = _labels(found, groups), groups or [run.run_id for run in found]
    heights = [2.4] * bool(shown) + [0.9 + 0.32 * len(found)]
    mosaic = [list(range(len(shown)))] * bool(shown) + [["seconds"] * max(len(shown), 1)]
    legends = 0.5 + len(found) / 8  # inches
    with plt.rc_context(figure_style() | {"text.parse_math": False}):  # a $ begins no formula
        figure, axes = plt.subplot_mosaic(
            mosaic, figsize=(8.5, sum(heights) + legends), height_ratios=heights, layout="constrained"
        )
        plt.close(figure)
        for place, metric in enumerate(shown):
            _draw_curves(axes[place], found, metric, labels, keys)
        if shown and len(found) > 1:
            figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)
        _draw_seconds(axes["seconds"], found, labels)
        figure.legend(handles=axes["seconds"].containers, loc="outside lower left", ncols=len(_PARTS))
    return figure


def _groups(found: Sequence[RunRecord], by: str | None) -> list[str]:
    """What each run has in the column `by`; nothing without one."""
    values = [] if by is None else values_of(found, by)
    if by is not None and all(value is None for value in values):
        fix = "by= takes a setting, or a column of runs.table()"
        raise LabError(f"group runs by {by!r}", f"no run has {by!r}", fix)
    return list(map(str, values))


def _labels(found: Sequence[RunRecord], groups: list[str]) -> list[str]:
    """What figures call each run: its group, or its name and, where several have it, when it started."""
    times = Counter(run.name for run in found)
    names = groups or [
        formatting.short(run.name, 22) + (f" · {run.started:%H:%M:%S}" if times[run.name] > 1 else "")
        for run in found
    ]
    # matplotlib's legends leave out what starts with _.
    return [" " * name.startswith("_") + formatting.short(formatting.cleaned(name)) for name in names]


def _shown(found: Sequence[RunRecord], metrics: str | Sequence[str] | None) -> list[str]:
    """The metrics to draw: those asked for, or those that nearly every run has."""
    pairs = (pair for run in found for entry in run.history for pair in entry.items())
    reported = list(dict.fromkeys(name for name, v in pairs if name != "epoch" and number(v) is not None))
    if metrics is None:
        return [name for name in ("loss", "accuracy") if name in reported] or reported[:2]
    asked = [metrics] if isinstance(metrics, str) else list(metrics)
    if unknown := [metric for metric in asked if metric not in reported]:
        fact = f"the runs report {', '.join(reported) or 'no metrics at all'}"
        fix = "metrics= takes one of these names, or a list of them"
        raise LabError(f"plot the metric {unknown[0]!r}", fact, fix)
    return asked


def _draw_curves(
    axes: "Axes", found: Sequence[RunRecord], metric: str, labels: list[str], keys: list[str]
) -> None:
    """The metric of each run; lines with the same key look the same, and have one label."""
    from matplotlib import rcParams
    from matplotlib.ticker import MaxNLocator

    looks = list(rcParams["axes.prop_cycle"])
    different = list(dict.fromkeys(keys))
    for place, (run, label, key) in enumerate(zip(found, labels, keys, strict=True)):
        entries = [(entry.get("epoch", n), entry.get(metric)) for n, entry in enumerate(run.history)]
        points = [(_drawn(epoch), _drawn(value)) for epoch, value in entries]
        points = [(epoch + 1, value) for epoch, value in points if epoch is not None and value is not None]
        look = looks[different.index(key) % len(looks)]
        named = label if keys.index(key) == place else None
        axes.plot(*zip(*points, strict=True) if points else ([], []), marker="o", label=named, **look)
    axes.set(title=formatting.cleaned(metric), xlabel="epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _drawn(value: Any) -> float | None:
    """The number, and infinity (which leaves a gap) for one that matplotlib's axes can't show."""
    value = number(value)
    return value if value is None or abs(value) < 1e300 else float("inf")


def _draw_seconds(axes: "Axes", found: Sequence[RunRecord], labels: list[str]) -> None:
    spent = [run.seconds or {"rest": run.seconds_total} for run in found]
    parts = {part: [number(seconds.get(part)) or 0.0 for seconds in spent] for part in _PARTS}
    ends = [formatting.seconds(sum(lengths)) for lengths in zip(*parts.values(), strict=True)]
    states = ["" if run.state == "finished" else f" ({run.state})" for run in found]
    stacked_bars(axes, labels, parts, [end + state for end, state in zip(ends, states, strict=True)])
    axes.set(title="where the time went", xlabel="seconds")


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. Displays itself: the table, and the difference of the code."""

    table: "pandas.DataFrame"  # a row for each field that differs ("config.lr"), with a column for each run
    code: str  # a unified diff of the training functions; "" if they are equal

    def _repr_html_(self) -> str:
        from markupsafe import escape

        # It may scroll, which the keyboard can do only where the focus is.
        return f'{self.table.to_html()}<pre tabindex="0">{escape(self.code or "The code is equal.")}</pre>'

    def __repr__(self) -> str:
        return f"{self.table}\n\n{self.code or 'The code is equal.'}"


def compare(a: str | RunRecord, b: str | RunRecord, home: Home = None) -> Comparison:
    """Compare two runs, given by their ids or their records."""
    expect_installed("compare two runs", "pandas")
    import pandas

    pair = get(a, home), get(b, home)
    left, right = (flat({n: v for n, v in vars(run).items() if n not in _NOT_COMPARED}) for run in pair)
    # As texts: NaN equals NaN then.
    rows = {name: (left.get(name), right.get(name)) for name in left | right}
    rows = {name: values for name, values in rows.items() if repr(values[0]) != repr(values[1])}
    ids = [run.run_id for run in pair]
    table = pandas.DataFrame(list(rows.values()), index=list(rows), columns=ids, dtype=object)
    lines = (run.code.splitlines() for run in pair)
    return Comparison(table, "\n".join(difflib.unified_diff(*lines, *ids, lineterm="")))


def report(
    path: Path | str,
    home: Home = None,
    *,
    title: str,
    text: str = "",
    by: str | None = None,
    metrics: str | Sequence[str] | None = None,
    pictures: Sequence["Figure"] = (),
    last: int | None = None,
    **filters: Any,
) -> Path:
    """Write a page about runs to `path`, and return it: what was asked, what came out, and where from.

    It has the text, the pictures, the curves of the runs, their table, what is equal in all of them (with
    versions and commits), and their code.

    Args:
        home, last, filters: which runs, as in `table`.
        title, text: of your own; an empty line begins a new paragraph.
        by: a column, such as a setting. Runs with the same value are a group, with the mean and the standard
            deviation of each metric. One run that diverged makes both of its group inf or nan.
        metrics: as in `plot`. In the table of groups, default: all.
        pictures: figures of your own.
    """
    import jinja2

    found, attempt = select(home, last, **filters), f"write the report {path}"
    expect_installed(attempt, "pandas", "matplotlib")
    curves = draw(found[::-1], metrics, by)  # the oldest first
    tables = {} if by is None else {f"By {by}": _html(_means(found, by, metrics), index=False)}
    tables["Runs"] = _html(overview(found), index=False)
    tables["Equal in all runs"] = _html(_common(found), header=False)
    codes: dict[str, list[str]] = {}
    for run in found:
        codes.setdefault(run.code, []).append(run.run_id)
    drawn = [("", _svg(picture)) for picture in pictures]
    drawn.append(("curves of the runs, and where their seconds went", _svg(curves)))
    page = jinja2.Template(_PAGE, autoescape=True)
    try:
        said = page.render(title=title, text=text, pictures=drawn, tables=tables, codes=codes)
        return atomic_write(Path(path).expanduser(), said)
    except OSError as error:
        raise LabError(attempt, str(error), "name a file that you can write to") from error


def _means(found: Sequence[RunRecord], by: str, metrics: str | Sequence[str] | None) -> "pandas.DataFrame":
    """The mean and the standard deviation of each metric in the runs of a group that finished and have it."""
    import numpy
    import pandas

    groups, asked, rows = _groups(found, by), [metrics] if isinstance(metrics, str) else metrics, []
    for metric in asked or dict.fromkeys(name for run in found for name in run.metrics):
        for name in dict.fromkeys(groups):
            mine = [run for run, group in zip(found, groups, strict=True) if group == name]
            values = [number(run.metrics.get(metric)) for run in mine if run.state == "finished"]
            if values := [value for value in values if value is not None]:
                with numpy.errstate(all="ignore"):  # of runs that diverged
                    spread = f"{numpy.std(values, ddof=1):.4g}" if len(values) > 1 else formatting.UNKNOWN
                    rows.append((name, metric, len(values), f"{numpy.mean(values):.4g}", spread))
    return pandas.DataFrame(rows, columns=[by, "metric", "runs", "mean", "standard deviation"])


def _common(found: Sequence[RunRecord]) -> "pandas.DataFrame":
    """Settings, versions and the like that are equal in all runs, and the commits."""
    import pandas

    each = [flat({name: getattr(run, name) for name in _ORIGIN}) for run in found]
    equal = {name: v for name, v in each[0].items() if all(repr(one.get(name)) == repr(v) for one in each)}
    shown = {name: str(value) for name, value in equal.items() if value is not None}
    shown["commit"] = ", ".join(dict.fromkeys(run.commit or "none" for run in found))
    return pandas.Series(shown, dtype=object).to_frame()


def _html(frame: "pandas.DataFrame", **options: Any) -> str:
    """The table; pandas escapes its texts."""
    import pandas

    with pandas.option_context("display.max_colwidth", None):
        known = frame.where(frame.notna(), float("nan"))
        return known.to_html(border=0, na_rep=formatting.UNKNOWN, **options)


def _svg(figure: "Figure") -> str:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg")
    return base64.b64encode(drawn.getvalue()).decode()
