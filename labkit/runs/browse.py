"""Past runs: a table of them, the latest one, the best one, and the reader's tags and notes.

A *column* is a column of `table`, a field of `RunRecord` ("seed") or a part of one ("versions.torch"), a
metric, or a setting ("lr", "model.width"), looked for in this order. A setting that has the name of something
else is "config.lr". A *filter* is a column and its value, or a list of values; ``tag="paper"`` is one, too.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isnan
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from labkit.display import formatting
from labkit.errors import LabError, expect_installed, expect_int
from labkit.files import atomic_write
from labkit.runs.record import MARKS_NAME, Home, RunRecord, find, number, read
from labkit.settings import Settings

if TYPE_CHECKING:  # takes a second to import, and `latest` doesn't need it
    import pandas

_PATIENCE = 10  # seconds, while another process marks the same run
_EXACT = 2**53  # a float has all digits of whole numbers up to here
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
    "rows/s": attrgetter("rows_per_second"),
    "total s": attrgetter("seconds_total"),
    "tags": lambda run: ", ".join(map(str, run.tags)) or None,
    "note": lambda run: run.note or None,
}
_DIGITS = {"start s": 1, "epoch s": 2, "rows/s": 0, "total s": 1}
_METRICS_SHOWN = 4


def table(
    home: Home = None, *, last: int | None = None, columns: Sequence[str] | str = (), **filters: Any
) -> "pandas.DataFrame":
    """One row per run, the newest first. Times are in seconds; ``epoch s`` is the median epoch.

    Without `columns`, it has what differs between these runs: when and how each was made, its speed, and the
    settings (`RunRecord.config`) that all of them have; and the first four metrics.

    Args:
        home: the lab's home folder; default: from the settings.
        last: only this many, the newest.
        columns: what to show instead.
        filters: columns and the values that they must have, such as ``name="03-torch"``.
    """
    found = select(home, last, **filters)
    if not columns:
        return overview(found)
    columns = [columns] if isinstance(columns, str) else columns
    shown = {column: values_of(found, column) for column in columns}
    for column, values in shown.items():
        if all(value is None for value in values):
            fix = f"use a metric, a setting, a field of RunRecord, or one of {', '.join(_COLUMNS)}"
            raise LabError(f"show the column {column!r}", f"none of {len(found)} runs has a value", fix)
    return _frame(shown)


def overview(found: Sequence[RunRecord]) -> "pandas.DataFrame":
    """The table of these runs, in their order: what identifies them, what differs, and their metrics."""
    shown = {column: [of(run) for run in found] for column, of in _COLUMNS.items()}
    always = tuple(_COLUMNS) if len(found) == 1 else ("run", "id", "state")
    shown = {column: values for column, values in shown.items() if column in always or _differ(values)}
    # A run may report "rows" and similar, which the table has already.
    metrics = [name for name in _metrics(found) if name not in _COLUMNS][:_METRICS_SHOWN]
    configs = [flat(run.config) for run in found]
    for name in (name for name in configs[0] if all(name in config for config in configs)):
        values = [config[name] for config in configs]
        if _differ(values):
            shown[f"config.{name}" if name in (*_COLUMNS, *metrics) else name] = values
    for name in metrics:
        values = [number(run.metrics.get(name)) for run in found]
        shown[name] = [value if value is None else _short(value) for value in values]
    return _frame({name: values for name, values in shown.items() if any(v is not None for v in values)})


def _short(value: float) -> float:
    """Four places, or three digits of what these would make 0."""
    return round(value, 4) if abs(value) >= 0.001 else float(f"{value:.3g}")


def _differ(values: Sequence[Any]) -> bool:
    return len(set(map(repr, values))) > 1


def _frame(columns: dict[str, list]) -> "pandas.DataFrame":
    """The columns as a table whose rows count from 1; pandas has no type for a seed of 128 bits."""
    expect_installed("make a table of runs", "pandas")
    import pandas

    frame = pandas.DataFrame(columns, dtype=object)
    for name, values in columns.items():
        if not any(isinstance(value, int) and abs(value) > _EXACT for value in values):
            frame[name] = frame[name].infer_objects()
    return frame.set_axis(frame.index + 1).round(_DIGITS)


def latest(
    name: str | None = None, home: Home = None, *, state: str | None = "finished", **filters: Any
) -> RunRecord:
    """Return the record of the newest run (with this name) that finished.

    Another `state` is "failed", "stopped", "running" or "lost"; None for the newest run of all.
    """
    return select(home, 1, name=name, state=state, **filters)[0]


def best(
    metric: str, home: Home = None, *, mode: str, state: str | None = "finished", **filters: Any
) -> RunRecord:
    """Return the record of the run whose last value of `metric` is the best; of equal ones, the newest.

    `mode` is "min" or "max": which is better. Runs without the metric, or with NaN, don't count.
    """
    attempt = f"find the run with the best {metric}"
    if mode not in ("min", "max"):
        raise LabError(attempt, f"mode is {mode!r}", "mode='min' for a loss, mode='max' for an accuracy")
    found = select(home, None, state=state, **filters)
    values = [(number(run.metrics.get(metric)), run) for run in found]
    values = [(value, run) for value, run in values if value is not None and not isnan(value)]
    if not values:
        names = ", ".join(_metrics(found)) or "nothing"
        fact = f"none of {len(found)} runs has a value of it; they report {names}"[:300]
        raise LabError(attempt, fact, "use another metric")
    return (min if mode == "min" else max)(values, key=lambda pair: pair[0])[1]


def get(run: str | RunRecord, home: Home = None) -> RunRecord:
    """Return the record of the run with this id, as its file is now."""
    if isinstance(run, RunRecord) and run.folder:
        return read(run.folder)
    return select(home, 1, run_id=run.run_id if isinstance(run, RunRecord) else str(run))[0]


def values_of(found: Sequence[RunRecord], column: str) -> list[Any]:
    """What each run has in a column, None where it has nothing; all of them from the same place."""
    for place in zip(*map(_places, found), strict=True):
        values = [one.get(column) for one in place]
        if any(value is not None for value in values):
            return values
    return [None] * len(found)


def _places(run: RunRecord) -> tuple[dict[str, Any], ...]:
    """Where a column of a run is looked for, one after the other."""
    shown = {column: of(run) for column, of in _COLUMNS.items()}
    settings = {**run.config, **flat(run.config)} if isinstance(run.config, Mapping) else {}
    fields = vars(run) | flat(vars(run)) | {"tag": run.tags}
    return shown, fields, run.metrics, settings


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A dict of dicts on one level, with names like "config.model.width"."""
    found = {}
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def select(home: Home, last: int | None, **wanted: Any) -> list[RunRecord]:
    """The newest `last` runs whose columns have one of the `wanted` values; a filter of None is none."""
    home = Settings.from_env().home if home is None else Path(home)
    if last is not None:
        expect_int("find runs", "last", last)
    asked = {
        column: list(value) if isinstance(value, (list, tuple, set)) else [value]
        for column, value in wanted.items()
        if value is not None
    }

    found = find(home)
    if not found:
        fix = "train once: lesson 00 does, in a minute"
        raise LabError("find a run", f"{home / 'runs'} has no run yet", fix)
    for column, values in asked.items():
        cells = [one if isinstance(one, list) else [one] for one in values_of(found, column)]
        pairs = list(zip(found, cells, strict=True))
        # The setting itself may be a list: layers=[64, 32].
        whole = isinstance(wanted[column], (list, tuple)) and column not in ("tag", "tags")
        chosen = [run for run, cell in pairs if whole and cell == values]
        chosen = chosen or [run for run, cell in pairs if any(one in values for one in cell)]
        if not chosen:
            given = " and ".join(f"{name}={wanted[name]!r:.80}" for name in asked)
            seen = sorted({formatting.short(repr(one), 60) for cell in cells for one in cell})
            fact = f"{column} is {', '.join(seen[:8])} in the runs that are there"
            fix = "runs.table() lists all; runs.latest(..., state=None) returns the newest"
            raise LabError(f"find a run with {given}", fact, fix)
        found = chosen
    return found[:last]


def _metrics(found: Sequence[RunRecord]) -> list[str]:
    """The metrics of these runs that are numbers, loss and accuracy before others."""
    names = {name: 0 for run in found for name, value in run.metrics.items() if number(value) is not None}
    return sorted(names, key=lambda name: name not in ("loss", "accuracy"))


def tag(run: str | RunRecord, *tags: str, remove: bool = False, home: Home = None) -> list[str]:
    """Add tags to a run, given by its id or its record, or remove them; return those that it has then."""
    each = (one for tag in tags for one in (tag if isinstance(tag, (list, tuple, set)) else [tag]))
    given = list(dict.fromkeys(map(str, each)))

    def change(record: RunRecord) -> RunRecord:
        kept = [one for one in record.tags if one not in given]
        return replace(record, tags=kept if remove else kept + given)

    return _mark(run, home, change).tags


def note(run: str | RunRecord, text: str, *, home: Home = None) -> None:
    """Write a note on a run, in place of an earlier one."""
    _mark(run, home, lambda record: replace(record, note="" if text is None else str(text)))


def _mark(run: str | RunRecord, home: Home, change: Callable[[RunRecord], RunRecord]) -> RunRecord:
    """Change the marks of a run, one process after the other.

    They have a file of their own, because a running run writes its record every few seconds.
    """
    from filelock import FileLock

    path = Path(get(run, home).folder) / MARKS_NAME
    try:
        with FileLock(path.with_name(f".{MARKS_NAME}.lock"), timeout=_PATIENCE):
            changed = change(read(path.parent))
            atomic_write(path, json.dumps({"tags": changed.tags, "note": changed.note}, indent=1))
    except OSError as error:
        raise LabError(f"mark the run in {path.parent}", str(error), "make that folder writable") from error
    return changed
