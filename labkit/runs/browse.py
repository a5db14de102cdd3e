"""Past runs: a table of them, the record of one, and the reader's note on it."""

import json
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from labkit.errors import BadInput, LabError, expect_installed, expect_int
from labkit.files import atomic_write
from labkit.runs.record import NOTE_NAME, Home, RunRecord, find
from labkit.settings import Settings

if TYPE_CHECKING:  # takes a second to import, and `latest` doesn't need it
    import pandas

_EXACT = 2**53  # a float has all digits of whole numbers up to here


def median_epoch(record: RunRecord) -> float | None:
    """Return the seconds of the median epoch; None if no epoch has ended."""
    if not record.seconds_per_epoch:
        return None
    return median(record.seconds_per_epoch)


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
    "epoch s": median_epoch,
    "rows/s": attrgetter("rows_per_second"),
    "waiting": attrgetter("waiting_share"),
    "total s": attrgetter("seconds_total"),
    "verdict": lambda run: run.verdict.get("verdict") or None,
    "note": attrgetter("note"),
}
_DIGITS = {"start s": 1, "epoch s": 2, "rows/s": 0, "waiting": 2, "total s": 1}


def table(name: str | None = None, home: Home = None, *, last: int | None = None) -> "pandas.DataFrame":
    """Return a table with a row for each run (of this name), the newest first, or for the `last` of them.

    Its columns are what identifies a run, its times in seconds (``epoch s`` is the median), its last metrics,
    and its settings. A setting in another one is "model.width"; one whose name is taken is "config.loss".
    """
    expect_installed("make a table of runs", "pandas")
    import pandas

    if last is not None:
        expect_int("make a table of runs", "last", last)
    records = _named(name, home)[:last]
    taken = set(_COLUMNS)
    for record in records:
        taken.update(record.metrics)
    rows = [_row(record, taken) for record in records]
    numbers = range(1, len(rows) + 1)
    frame = pandas.DataFrame(rows, index=numbers, dtype=object)
    for column, values in frame.items():
        if not any(map(_is_long, values)):
            frame[column] = values.infer_objects()
    return frame.round(_DIGITS)


def _is_long(value: Any) -> bool:
    """Return whether pandas can't keep a number: it has no type for a seed of 128 bits, and rounds 60."""
    return isinstance(value, int) and abs(value) > _EXACT


def _row(record: RunRecord, taken: set[str]) -> dict[str, Any]:
    """Return what the table shows of a run; `taken` are names that no setting may have."""
    row = {column: value_of(record) for column, value_of in _COLUMNS.items()}
    for metric, value in record.metrics.items():
        column = f"metrics.{metric}" if metric in _COLUMNS else metric
        row[column] = value
    for setting, value in _flat(record.config).items():
        column = f"config.{setting}" if setting in taken else setting
        row[column] = value
    return row


def _flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Return a dict of dicts as one, with names such as "model.width"; an empty one for anything else."""
    if not isinstance(settings, Mapping):
        return {}
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        path = f"{prefix}{name}"
        inner = _flat(value, f"{path}.")
        if inner:
            flat |= inner
        else:
            flat[path] = value
    return flat


def latest(name: str | None = None, home: Home = None, *, state: str | None = "finished") -> RunRecord:
    """Return the record of the newest run (of this name) that finished.

    Another `state` is "failed", "stopped", "running" or "lost"; None for the newest run of all.
    """
    records = _named(name, home)
    for record in records:
        if state in (None, record.state):
            return record
    attempt = f"find a {state} run"
    if name:
        attempt += f" of the name {name!r}"
    states = sorted({record.state for record in records})
    raise LabError(
        attempt,
        f"the runs there are {', '.join(states)}",
        "runs.latest(…, state=None) returns the newest, runs.table() lists all",
    )


def get(run_id: str, home: Home = None) -> RunRecord:
    """Return the record of the run with this id, as its file is now."""
    for record in _named(None, home):
        if record.run_id == run_id:
            return record
    raise BadInput(
        f"find the run {run_id!r:.80}",
        "no run has this id",
        "runs.table() lists all",
    )


def note(run_id: str, text: str, *, home: Home = None) -> None:
    """Write a note on a run, in place of an earlier one. `labkit clean` keeps a run that has one."""
    # It has a file of its own, because a running run writes its record every few seconds.
    path = Path(get(run_id, home).folder) / NOTE_NAME
    try:
        atomic_write(path, json.dumps({"note": str(text)}))
    except OSError as error:
        raise LabError(f"write a note on {path.parent}", str(error), "make that folder writable") from error


def _named(name: str | None, home: Home) -> list[RunRecord]:
    """Return the runs with this name, or all, the newest first; at least one."""
    if home is None:
        home = Settings.from_env().home
    records = find(home)
    if not records:
        raise LabError(
            "find a run",
            f"{Path(home) / 'runs'} has no run yet",
            "train once: lesson 00 does, in a minute",
        )
    named = [record for record in records if name in (None, record.name)]
    if not named:
        names = sorted({repr(record.name)[:60] for record in records})
        raise BadInput(
            f"find a run of the name {name!r:.80}",
            f"the runs there are called {', '.join(names[:8])}",
            "use one of these names",
        )
    return named
