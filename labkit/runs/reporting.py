"""A report of runs, to hand in: one HTML file that needs nothing else, and runs no code."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from labkit.display import cards, formatting
from labkit.errors import RunError
from labkit.files import atomic_write
from labkit.runs import figures
from labkit.runs.browse import overview, select, value_of
from labkit.runs.record import RunRecord, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ALWAYS = ("id", "state")  # columns of the table, also where they are equal in all runs


def report(
    path: Path | str,
    home: Path | str | None = None,
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

    It has the text, the pictures, a table of the runs with what differs between them, their curves, what is
    equal in all of them, their code, and the versions and the commit they ran with.

    Args:
        home, last, filters: which runs, as in `table`.
        title, text: of your own; an empty line begins a new paragraph.
        by: a column, such as a setting. Runs with the same value are a group, with the mean and the standard
            deviation of each metric.
        metrics: as in `plot`. In the table of groups, default: all.
        pictures: figures of your own.

    Raises:
        RunError: there is no such run, no run has `by`, none reports `metrics`, or the file can't be written.
    """
    found = [read(run.folder) for run in select(home, last, **filters)]
    attempt = f"write the report {path}"
    label = None
    if by is not None:
        if all(value_of(run, by) is None for run in found):
            raise RunError(attempt, f"no run has {by!r}", "by= takes a setting, or a column of runs.table()")
        label = lambda run: str(value_of(run, by))  # noqa: E731
    curves = figures.plot(found, metrics, label=label)
    asked = [metrics] if isinstance(metrics, str) else list(metrics or [])
    frame = overview(found).drop(columns="checkpoint", errors="ignore")
    same = [name for name in frame if name not in _ALWAYS and frame[name].astype(str).nunique() == 1]
    rest = {**dict.fromkeys(_ALWAYS), **dict.fromkeys(name for name in frame if name not in same)}
    common = [(name, _cell(frame[name].iloc[0])) for name in same]
    common += [(name, _cell(value)) for name, value in _common_settings(found).items() if name not in frame]
    parts = [Markup("<p>{}</p>").format(paragraph) for paragraph in text.split("\n\n") if paragraph.strip()]
    parts += [_picture(picture) for picture in pictures]
    if label is not None:
        rows = _groups(found, label, asked or list(dict.fromkeys(m for run in found for m in run.metrics)))
        head = (by, "metric", "runs", "mean", "standard deviation")
        parts += [_heading(f"By {by}"), cards.table(head, rows)]
    rows = [map(_cell, row) for row in frame[list(rest)].values]
    parts += [_heading("Runs"), cards.table(list(rest), rows)]
    parts += [_picture(curves), _heading("Equal in all runs"), cards.table(("", ""), common)]
    for code in dict.fromkeys(run.all_code for run in found):
        ids = [run.run_id for run in found if run.all_code == code]
        whose = "all runs" if len(ids) == len(found) else ", ".join(ids)
        parts += [_heading(f"Code of {whose}"), cards.pre(code) if code else "It is not recorded."]
    try:
        return atomic_write(path, cards.page(title, *parts))
    except OSError as error:
        raise RunError(attempt, str(error), "name a file that you can write to") from error


def _common_settings(found: list[RunRecord]) -> dict[str, Any]:
    """What the table leaves out, where it is equal in all runs: settings, data, versions, machine, commit."""
    names = [f"config.{name}" for run in found for name in run.config if name not in run.abridged]
    names += [f"{part}.{name}" for part in ("versions", "host") for name in getattr(found[0], part)]
    values = {}
    for name in dict.fromkeys([*names, "seed", "data_fingerprint", "commit"]):
        seen = {repr(value_of(run, name)): value_of(run, name) for run in found}
        if len(seen) == 1 or name in ("commit", "data_fingerprint"):
            values[name] = ", ".join(map(_cell, seen.values()))
    note = " (changes that were not committed are not recorded)"
    return values | {"commit": values["commit"] + note if any(run.commit for run in found) else "none"}


def _groups(found: list[RunRecord], label: Any, metrics: Sequence[str]) -> list[tuple[str, ...]]:
    """(group, metric, runs, mean, standard deviation) of the runs that finished and have the metric."""
    rows = []
    for metric in metrics:
        for group in dict.fromkeys(map(label, reversed(found))):  # in the order of their first runs
            mine = [run for run in found if label(run) == group and run.state == "finished"]
            values = [float(v) for run in mine if figures.is_number(v := run.metrics.get(metric))]
            if values:
                spread = f"{statistics.stdev(values):.4g}" if len(values) > 1 else formatting.UNKNOWN
                rows.append((group, metric, str(len(values)), f"{statistics.fmean(values):.4g}", spread))
    return rows


def _cell(value: Any) -> str:
    return formatting.UNKNOWN if value is None or str(value) in ("nan", "<NA>") else str(value)


def _heading(words: str) -> Markup:
    return Markup("<h2>{}</h2>").format(words)


def _picture(figure: "Figure") -> Markup:
    return Markup('<p><img alt="" src="{}"></p>').format(figures.data_uri(figure))
