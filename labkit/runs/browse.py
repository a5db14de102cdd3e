"""Past runs: a table of them, the latest one, the best one, and the reader's tags and notes.

    >>> runs.table(last=3, columns=["id", "lr", "loss", "seed"])
    >>> runs.latest("03-torch").metrics["accuracy"]
    0.967
    >>> runs.best("loss", mode="min", lr=0.1).run_id
    >>> runs.tag("20260131-120000-a1b2c3", "paper")
    ['paper']

All of them read the run records below ``LABKIT_HOME/runs``, whatever engine wrote them. A *column* is a
column of `table`, a field of `RunRecord` ("seed") or a part of one ("versions.torch"), a metric, or a setting
("lr", "model.width"), looked for in this order. A setting that has the name of something else is "config lr".
A *filter* is a column and its value, or a list of values; ``tag="paper"`` is one, too.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isfinite, isnan
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from labkit.errors import LabError, expect_installed
from labkit.files import atomic_write
from labkit.runs.record import MARKS_NAME, Home, RunRecord, find, number, read
from labkit.settings import Settings

if TYPE_CHECKING:  # takes a second to import, and `latest` doesn't need it
    import pandas

_EXACT = 2**53  # a float has all digits of whole numbers up to here
_PATIENCE = 10  # seconds, while another process marks the same run
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
    "start s": lambda run: _rounded(run.seconds_to_start, 1),
    "epoch s": lambda run: _rounded(median(run.seconds_per_epoch), 2) if run.seconds_per_epoch else None,
    "rows/s": lambda run: _rounded(run.rows_per_second),
    "total s": lambda run: _rounded(run.seconds_total, 1),
    "tags": lambda run: ", ".join(map(str, run.tags)) or None,
    "note": lambda run: run.note or None,
    "checkpoint": attrgetter("checkpoint"),
}
_SHOWN = ("run", "id", "state", "rows/s", "total s", "tags", "note")  # without columns=
_SHOWN_IF_DIFFERENT = ("engine", "workers", "data")
_METRICS_SHOWN = {False: 2, True: 4}  # with columns="all": 4


def table(
    home: Home = None, *, last: int | None = None, columns: Sequence[str] | str = (), **filters: Any
) -> "pandas.DataFrame":
    """One row per run, the newest first. Times are in seconds; ``epoch s`` is the median epoch.

    Without `columns`, it shows what one compares: state, speed, the first metrics, and what differs between
    these runs: engine, workers, data, and each setting (`RunRecord.config`) that all of them have.

    Args:
        home: the lab's home folder; default: from the settings.
        last: only this many, the newest.
        columns: what to show instead, or "all"; metrics that are named are not rounded.
        filters: columns and the values that they must have, such as ``name="03-torch"``.

    Raises:
        LabError: there is no such run, or no run has such a column.
    """
    found = select(home, last, **filters)
    if not columns or columns == "all":
        return overview(found, everything=columns == "all")
    shown = {column: values_of(found, column) for column in columns}
    for column, values in shown.items():
        if all(value is None for value in values):
            fix = f"use a metric, a setting, a field of RunRecord, or one of {', '.join(_COLUMNS)}"
            raise LabError(f"show the column {column!r}", f"none of {len(found)} runs has a value", fix)
    return _frame(shown)


def overview(found: Sequence[RunRecord], *, everything: bool) -> "pandas.DataFrame":
    """The table of these runs, in their order."""
    shown = {column: [of(run) for run in found] for column, of in _COLUMNS.items()}
    shown = {column: values for column, values in shown.items() if any(v is not None for v in values)}
    if not everything:
        wanted = (*_SHOWN, *(one for one in _SHOWN_IF_DIFFERENT if _differ(shown.get(one, []))))
        shown = {column: values for column, values in shown.items() if column in wanted}
    reported = _metrics(found)[: _METRICS_SHOWN[everything]]
    metrics = {name: [_rounded(run.metrics.get(name), 4) for run in found] for name in reported}
    configs = [flat(run.config) for run in found]
    for name in dict.fromkeys(name for config in configs for name in config):
        values = [config.get(name) for config in configs]
        if _differ(values) and (everything or all(value is not None for value in values)):
            shown.setdefault(f"config {name}" if name in _COLUMNS or name in metrics else name, values)
    return _frame(shown | {name: values for name, values in metrics.items() if name not in shown})


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
    return frame.set_axis(frame.index + 1)


def latest(
    name: str | None = None, home: Home = None, *, state: str | None = "finished", **filters: Any
) -> RunRecord:
    """Return the record of the newest run (with this name) that finished.

    Args:
        name, home, filters: as in `table`.
        state: "finished", "failed", "stopped", "running" or "lost"; None for the newest run of all.

    Raises:
        LabError: there is no such run.
    """
    return select(home, 1, name=name, state=state, **filters)[0]


def best(
    metric: str, home: Home = None, *, mode: str, state: str | None = "finished", **filters: Any
) -> RunRecord:
    """Return the record of the run whose last value of `metric` is the best; of equal ones, the newest.

    Args:
        metric: its name. Runs without it, or with NaN, don't count.
        home, filters: as in `table`.
        mode: "min" or "max": which is better.
        state: as in `latest`.

    Raises:
        LabError: there is no such run, or none has a value.
    """
    attempt = f"find the run with the best {metric}"
    if mode not in ("min", "max"):
        raise LabError(attempt, f"mode is {mode!r}", "mode='min' for a loss, mode='max' for an accuracy")
    found = select(home, None, state=state, **filters)
    pairs = [(number(run.metrics.get(metric)), run) for run in found]
    pairs = [(value, run) for value, run in pairs if value is not None and not isnan(value)]
    if not pairs:
        names = ", ".join(_metrics(found)) or "nothing"
        fact = f"none of {len(found)} runs has a value of it; they report {names}"[:300]
        raise LabError(attempt, fact, "use another metric")
    return (min if mode == "min" else max)(pairs, key=lambda pair: pair[0])[1]


def get(run: str | RunRecord, home: Home = None) -> RunRecord:
    """Return the record of the run with this id, as its file is now.

    Raises:
        LabError: there is no such run.
    """
    if isinstance(run, RunRecord) and run.folder:
        return read(run.folder)
    return select(home, 1, run_id=run.run_id if isinstance(run, RunRecord) else str(run))[0]


def values_of(found: Sequence[RunRecord], column: str) -> list[Any]:
    """What each run has in a column, None where it has nothing; all of them from the same place."""
    if column in _COLUMNS:
        return [_COLUMNS[column](run) for run in found]
    settings = [run.config if isinstance(run.config, Mapping) else {} for run in found]
    settings = [{**config} | flat(config) for config in settings]
    places = (
        [(vars(run) | flat(vars(run))).get(column) for run in found],
        [run.metrics.get(column) for run in found],
        [config.get(column) for config in settings],
        [config.get(column.removeprefix("config ")) for config in settings],
    )
    return next((values for values in places if any(v is not None for v in values)), [None] * len(found))


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
    """The newest `last` runs whose columns have one of the `wanted` values; a filter of None is none.

    Raises:
        LabError: there is no such run; it says what there is instead.
    """
    home = Settings.from_env().home if home is None else Path(home)
    asked = {
        column: list(value) if isinstance(value, (list, tuple, set)) else [value]
        for column, value in wanted.items()
        if value is not None
    }

    def cells(runs: Sequence[RunRecord], column: str) -> list[list]:
        return [run.tags for run in runs] if column == "tag" else [[v] for v in values_of(runs, column)]

    found = named = find(home, names=asked.get("name"))
    for column, values in asked.items():
        each = zip(found, cells(found, column), strict=True)
        found = [run for run, mine in each if any(one in values for one in mine)]
    if found:
        return found[:last]
    attempt = "find a run" + "".join(f" with {one}={' or '.join(map(repr, v))}" for one, v in asked.items())
    if not (known := named or find(home)):
        raise LabError(attempt, f"{home / 'runs'} has no run yet", "train once: lesson 00 does, in a minute")
    facts = [f"the newest, {known[0].run_id}, is {known[0].state} ({known[0].error or 'without an error'})"]
    for column in {"name": 0} | asked:
        seen = sorted({repr(one) for mine in cells(known, column) for one in mine})
        facts.append(f"{column} is {', '.join(seen[:8])}")
    fix = "runs.table() lists all; runs.latest(..., state=None) returns the newest"
    raise LabError(attempt, "; ".join(facts), fix)


def _metrics(found: Sequence[RunRecord]) -> list[str]:
    """The metrics that most runs have, loss and accuracy before others."""
    seen = Counter(name for run in found for name, v in run.metrics.items() if number(v) is not None)
    first = [m for m in ("loss", "accuracy") if m in seen]
    # A training may report "rows" and similar, which the table has already.
    return first + [m for m, _ in seen.most_common() if m not in {*first, *_COLUMNS}]


def _rounded(value: Any, digits: int | None = None) -> float | None:
    value = number(value)
    return None if value is None or (digits is None and not isfinite(value)) else round(value, digits)


def tag(run: str | RunRecord, *tags: str, remove: bool = False, home: Home = None) -> list[str]:
    """Add tags to a run, given by its id or its record, or remove them; return those that it has then.

    Raises:
        LabError: there is no such run, or its folder cannot be written to.
    """
    given = list(dict.fromkeys(map(str, tags)))

    def change(record: RunRecord) -> dict[str, Any]:
        kept = [one for one in record.tags if one not in given]
        return {"tags": kept if remove else kept + given}

    return _mark(run, home, change)["tags"]


def note(run: str | RunRecord, text: str, *, home: Home = None) -> None:
    """Write a note on a run, in place of an earlier one; errors belong to `tag`."""
    _mark(run, home, lambda _: {"note": str(text)})


def _mark(run: str | RunRecord, home: Home, change: Callable[[RunRecord], dict[str, Any]]) -> dict[str, Any]:
    """Change the marks of a run, one process after the other, and return them.

    They have their own file, because the panel of a running run writes its record every few seconds.
    """
    from filelock import FileLock

    path = Path(get(run, home).folder) / MARKS_NAME
    try:
        with FileLock(path.with_name(f".{MARKS_NAME}.lock"), timeout=_PATIENCE):
            record = read(path.parent)  # those of version 0.1.0 have their marks in the record
            marks = {"tags": record.tags, "note": record.note} | change(record)
            atomic_write(path, json.dumps(marks, indent=1))
    except OSError as error:
        raise LabError(f"mark the run in {path.parent}", str(error), "make that folder writable") from error
    return marks
