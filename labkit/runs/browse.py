"""Past runs: a table, a figure, the latest record, the best one.

    >>> runs.table(last=3, columns=["id", "lr", "loss", "seed"])
    >>> runs.plot(name="03-torch", tag="paper")
    >>> runs.latest("03-torch").metrics["accuracy"]
    0.967
    >>> runs.best("loss", mode="min", lr=0.1).run_id

All of them read the run records below ``LABKIT_HOME/runs``, whatever engine wrote them. A *column* is a field
of `RunRecord` ("seed"), a part of one ("versions.torch", "config.model.width"), a column of `table`, a metric
or a setting ("lr"). A *filter* is a column and its value, or a list of values; ``tag="paper"`` is one, too.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from math import isfinite, isnan
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from labkit.errors import RunError
from labkit.runs import figures
from labkit.runs.index import LEFT_OUT, find
from labkit.runs.record import RunRecord, read
from labkit.settings import Settings

if TYPE_CHECKING:  # each takes a second to import, and `latest` needs neither
    import pandas
    from matplotlib.figure import Figure

_METRICS_SHOWN = 4
_DIGITS = {"start s": 1, "epoch s": 2, "rows/s": 0, "total s": 1}  # of the table without `columns`
_FIELDS = [f.name for f in fields(RunRecord)]
_COLUMNS: dict[str, Callable[[RunRecord], Any]] = {
    "run": attrgetter("name"),
    "started": lambda run: str(run.started)[5:16],
    "id": attrgetter("run_id"),
    "state": attrgetter("state"),
    "engine": attrgetter("engine"),
    "workers": attrgetter("workers"),
    "data": attrgetter("dataset"),
    "rows": attrgetter("rows"),
    "epochs": attrgetter("epochs"),
    "start s": attrgetter("seconds_to_start"),
    "epoch s": lambda run: median(run.seconds_per_epoch) if run.seconds_per_epoch else None,
    "rows/s": lambda run: run.rows_per_second if isfinite(run.rows_per_second or 0) else None,
    "total s": attrgetter("seconds_total"),
    "tags": lambda run: ", ".join(run.tags) or None,
    "note": lambda run: run.note or None,
}


def table(
    home: Path | str | None = None,
    *,
    last: int | None = None,
    columns: Sequence[str] | None = None,
    **filters: Any,
) -> "pandas.DataFrame":
    """One row per run, the newest first. Times are in seconds; ``epoch s`` is the median epoch.

    Each setting (`RunRecord.config`) that differs between these runs has a column. ``checkpoint`` is the path
    of a run's latest checkpoint.

    Args:
        home: the lab's home folder; default: from the settings.
        last: only this many, the newest.
        columns: what to show; with metrics that are not rounded.
        filters: columns and the values that they must have, such as ``name="03-torch"``.

    Raises:
        RunError: there is no such run, or no run has such a column.
    """
    import pandas

    found = select(home, last, **filters)
    if columns is not None:
        rows = [{column: value_of(run, column) for column in columns} for run in found]
        for column in columns:
            if all(row[column] is None for row in rows):
                fix = f"use a metric, a setting, or one of {', '.join([*_COLUMNS, *_FIELDS])}"
                raise RunError(f"show the column {column!r}", f"none of {len(found)} runs has a value", fix)
        return pandas.DataFrame(rows, index=range(1, len(found) + 1))
    return overview(found)


def overview(found: list[RunRecord]) -> "pandas.DataFrame":
    """The table of these runs, in their order."""
    import pandas

    rows = pandas.DataFrame({column: [of(run) for run in found] for column, of in _COLUMNS.items()})
    rows = rows.astype(dict.fromkeys(_DIGITS, float)).round(_DIGITS)
    measured = [{name: v for name, v in run.metrics.items() if figures.is_number(v)} for run in found]
    metrics = {name: [values.get(name) for values in measured] for name in _metrics(measured)}
    metrics = pandas.DataFrame(metrics, index=rows.index, dtype=float).round(4)
    configs = [flat(run.config) for run in found]
    settings = {name: [config.get(name) for config in configs] for name in _differing(configs)}
    settings = pandas.DataFrame(settings, index=rows.index).convert_dtypes()
    taken = {*rows, *metrics, "checkpoint"}
    settings = settings.rename(columns={name: f"config {name}" for name in settings if name in taken})
    checkpoints = pandas.DataFrame({"checkpoint": [run.checkpoint for run in found]})
    frame = pandas.concat(
        [rows.dropna(axis=1, how="all"), settings, metrics, checkpoints.dropna(axis=1, how="all")], axis=1
    )
    # One run without a count would turn those of all others into floats.
    whole = [name for name in ("rows", "rows/s") if name in frame]
    return frame.astype(dict.fromkeys(whole, "Int64")).set_axis(range(1, len(found) + 1))


def _differing(configs: list[dict[str, Any]]) -> list[str]:
    """The settings that are not equal in all of these."""
    names = dict.fromkeys(name for config in configs for name in config)
    return [name for name in names if len({str(config.get(name)) for config in configs}) > 1]


def plot(
    home: Path | str | None = None,
    *,
    last: int = 6,
    metrics: str | Sequence[str] | None = None,
    by: str | None = None,
    **filters: Any,
) -> "Figure":
    """Plot `metrics` per epoch of the newest runs and, below them, where the seconds of each run went.

    The figure is closed for pyplot, so a notebook shows it once: as the value of its cell.

    Args:
        home, last, filters: as in `table`.
        metrics: one name or several. Default: loss and accuracy; for runs that report neither, their first
            two metrics.
        by: a column; runs with the same value in it have the same colour.

    Raises:
        RunError: there is no such run, or none of them reports one of `metrics`.
    """
    found = select(home, last, **filters)
    label = None if by is None else lambda run: str(value_of(run, by))
    return figures.plot([read(run.folder) for run in found], metrics, label=label)


def latest(
    name: str | None = None,
    home: Path | str | None = None,
    *,
    state: str | None = "finished",
    **filters: Any,
) -> RunRecord:
    """Return the record of the newest run (with this name) that finished.

    Args:
        name, home, filters: as in `table`.
        state: "finished", "failed", "stopped", "running" or "lost"; None for the newest run of all.

    Raises:
        RunError: there is no such run.
    """
    return read(select(home, 1, name=name, state=state, **filters)[0].folder)


def best(
    metric: str,
    home: Path | str | None = None,
    *,
    mode: str,
    state: str | None = "finished",
    **filters: Any,
) -> RunRecord:
    """Return the record of the run whose last value of `metric` is the best; of equal ones, the newest.

    Args:
        metric: its name. Runs without it, or with NaN, don't count.
        home, filters: as in `table`.
        mode: "min" or "max": which is better.
        state: as in `latest`.

    Raises:
        RunError: there is no such run, or none has a value.
    """
    attempt = f"find the run with the best {metric}"
    if mode not in ("min", "max"):
        raise RunError(attempt, f"mode is {mode!r}", "mode='min' for a loss, mode='max' for an accuracy")
    found = select(home, None, state=state, **filters)
    values = {
        i: v
        for i, run in enumerate(found)
        if figures.is_number(v := run.metrics.get(metric)) and not isnan(v)
    }
    if not values:
        names = ", ".join(dict.fromkeys(name for run in found for name in run.metrics)) or "nothing"
        raise RunError(
            attempt, f"none of {len(found)} runs has it; they report {names}"[:300], "use another metric"
        )
    return read(found[(min if mode == "min" else max)(values, key=values.__getitem__)].folder)


def get(run: str | RunRecord, home: Path | str | None = None) -> RunRecord:
    """Return the record of the run with this id, as its file is now.

    Raises:
        RunError: there is no such run, or several have this id.
    """
    if isinstance(run, RunRecord) and run.folder:
        return read(run.folder)
    found = select(home, None, run_id=run.run_id if isinstance(run, RunRecord) else str(run))
    if len(found) > 1:
        fact = f"{' and '.join(one.folder for one in found)} have this id"
        raise RunError(f"find the run {run}", fact, "pass a record: runs.latest(...) returns one")
    return read(found[0].folder)


def value_of(run: RunRecord, column: str) -> Any:
    """What a run has in a column, as the table's filters take it; None if it has nothing."""
    column = column.replace("config ", "config.", 1)
    first, _, rest = column.partition(".")
    if first in _FIELDS:
        whole = read(run.folder) if first in LEFT_OUT and run.folder else run
        return _inside(getattr(whole, first), rest)
    if column in _COLUMNS:
        return _COLUMNS[column](run)
    return run.metrics[column] if column in run.metrics else _inside(run.config, column)


def _inside(values: Any, path: str) -> Any:
    """`values["a"]["b"]` for "a.b", where a name may have dots; None where there is no such value."""
    if not path:
        return values
    if not isinstance(values, Mapping):
        return None
    if path in values:
        return values[path]
    first, _, rest = path.partition(".")
    return _inside(values.get(first), rest) if rest else None


def flat(values: Mapping[str, Any], prefix: str = "", separator: str = ".") -> dict[str, Any]:
    """A dict of dicts on one level, with names like "config.model.width"."""
    found = {}
    for name, value in values.items() if isinstance(values, Mapping) else ():  # a record may have any text
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}{separator}", separator)
        else:
            found[f"{prefix}{name}"] = value
    return found


def select(home: Path | str | None, last: int | None, **wanted: Any) -> list[RunRecord]:
    """The newest `last` runs whose columns have one of the `wanted` values, as `find` returns them."""
    home = Settings.from_env().home if home is None else Path(home)
    asked = {
        column: list(value) if isinstance(value, (list, tuple, set)) else [value]
        for column, value in wanted.items()
        if value is not None
    }
    named = find(home, names=asked.get("name"))
    found = [run for run in named if all(_has(run, column, values) for column, values in asked.items())]
    if found:
        return found[:last]
    attempt = "find a run" + "".join(f" with {column}={value!r}" for column, value in wanted.items() if value)
    if named and asked.keys() <= {"name", "state"}:
        reason = f" ({named[0].error})" if named[0].error else ""
        fact = f"the newest, {named[0].run_id}, is {named[0].state}{reason}"
        fix = "runs.latest(..., state=None) returns the newest, runs.table() lists all"
    elif named:
        seen = {c: sorted({str(value_of(run, c)) for run in named})[:8] for c in asked if c != "name"}
        fact = "; ".join(f"{column} is {', '.join(values)}" for column, values in seen.items())
        fix = "use values that one run has together; runs.table() lists all"
    elif names := ", ".join(sorted({repr(run.name) for run in find(home)})[:8]):
        fact, fix = f"the runs below {home / 'runs'} are called {names}", "use one of these names"
    else:
        fact, fix = f"{home / 'runs'} has no run yet", "train once: lesson 00 does, in a minute"
    raise RunError(attempt, fact, fix)


def _has(run: RunRecord, column: str, values: list) -> bool:
    """Whether the run has one of `values` in the column; for "tag", one of them among its tags."""
    mine = run.tags if column == "tag" else [value_of(run, column)]
    return any(value in values for value in mine)


def _metrics(measured: list[dict[str, Any]]) -> list[str]:
    """The metrics that most runs have, loss and accuracy before others."""
    seen = Counter(name for values in measured for name in values)
    first = [m for m in ("loss", "accuracy") if m in seen]
    # A training may report "rows" and similar, which the table has already.
    others = [m for m, _ in seen.most_common() if m not in {*first, *_COLUMNS}]
    return (first + others)[:_METRICS_SHOWN]
