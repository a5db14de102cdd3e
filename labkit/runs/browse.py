"""Past runs: a table, a figure, the latest record.

    >>> runs.table(last=3)
    >>> runs.plot(name="03-torch")
    >>> runs.latest("03-torch").metrics["accuracy"]
    0.967

All of them read the run records below ``LABKIT_HOME/runs``, whatever engine wrote them.
"""

from collections import Counter
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from labkit.errors import RunError
from labkit.runs import figures, record
from labkit.runs.record import RunRecord
from labkit.settings import Settings

if TYPE_CHECKING:  # each takes a second to import, and `latest` needs neither
    import pandas
    from matplotlib.figure import Figure

_METRICS_SHOWN = 4


def table(
    home: Path | str | None = None,
    *,
    name: str | Sequence[str] | None = None,
    engine: str | Sequence[str] | None = None,
    last: int | None = None,
) -> "pandas.DataFrame":
    """One row per run, the newest first. Times are in seconds; ``epoch s`` is the median epoch.

    Each setting (`RunRecord.config`) that differs between these runs has a column. ``checkpoint`` is the path
    of a run's latest checkpoint.

    Args:
        home: the lab's home folder; default: from the settings.
        name, engine: only runs with this name or engine, or one of these.
        last: only this many, the newest.

    Raises:
        RunError: there is no such run.
    """
    import pandas

    found = _select(home, last, name=name, engine=engine)
    rows = pandas.DataFrame([_row(run) for run in found])
    metrics = pandas.DataFrame(
        [{m: _number(run.metrics.get(m), 4) for m in _metrics(found)} for run in found]
    )
    settings = pandas.json_normalize([run.config for run in found]).convert_dtypes()
    settings = settings[[name for name in settings if settings[name].astype(str).nunique(dropna=False) > 1]]
    taken = {*rows, *metrics, "checkpoint"}
    settings = settings.rename(columns={name: f"config {name}" for name in settings if name in taken})
    checkpoints = pandas.DataFrame({"checkpoint": [run.checkpoint for run in found]})
    frame = pandas.concat(
        [rows.dropna(axis=1, how="all"), settings, metrics, checkpoints.dropna(axis=1, how="all")], axis=1
    )
    # One run without a count would turn those of all others into floats.
    whole = [name for name in ("rows", "rows/s") if name in frame]
    return frame.astype(dict.fromkeys(whole, "Int64")).set_axis(range(1, len(found) + 1))


def plot(
    home: Path | str | None = None,
    *,
    name: str | Sequence[str] | None = None,
    engine: str | Sequence[str] | None = None,
    last: int = 6,
    metrics: str | Sequence[str] | None = None,
) -> "Figure":
    """Plot `metrics` per epoch of the newest runs and, below them, where the seconds of each run went.

    The figure is closed for pyplot, so a notebook shows it once: as the value of its cell.

    Args:
        home, name, engine, last: as in `table`.
        metrics: one name or several; for "loss", a run without it shows "val_loss" or similar. Default:
            loss and accuracy; for runs that report neither, their first two metrics.

    Raises:
        RunError: there is no such run, or none of them reports one of `metrics`.
    """
    return figures.plot(_select(home, last, name=name, engine=engine), metrics)


def latest(
    name: str | None = None, home: Path | str | None = None, *, state: str | None = "finished"
) -> RunRecord:
    """Return the record of the newest run (with this name) that finished.

    Args:
        name, home: as in `table`.
        state: "finished", "failed", "stopped", "running" or "lost"; None for the newest run of all.

    Raises:
        RunError: there is no such run.
    """
    return _select(home, 1, name=name, state=state)[0]


def _select(
    home: Path | str | None, last: int | None, **wanted: str | Sequence[str] | None
) -> list[RunRecord]:
    """The newest `last` runs whose fields have one of the `wanted` values."""
    asked = {
        field: [value] if isinstance(value, str) else value
        for field, value in wanted.items()
        if value is not None
    }
    home = Settings.from_env().home if home is None else Path(home)
    named = record.find(home, names=asked.get("name"))
    found = [run for run in named if all(getattr(run, field) in values for field, values in asked.items())]
    if found:
        return found[:last]
    attempt = "find a run" + "".join(f" with {field}={value!r}" for field, value in wanted.items() if value)
    if named:
        reason = f" ({named[0].error})" if named[0].error else ""
        fact = f"the newest, {named[0].run_id}, is {named[0].state}{reason}"
        fix = "runs.latest(..., state=None) returns the newest, runs.table() lists all"
    elif names := ", ".join(sorted({repr(run.name) for run in record.find(home)})[:8]):
        fact, fix = f"the runs below {home / 'runs'} are called {names}", "use one of these names"
    else:
        fact, fix = f"{home / 'runs'} has no run yet", "train once: lesson 00 does, in a minute"
    raise RunError(attempt, fact, fix)


def _row(run: RunRecord) -> dict[str, Any]:
    epochs = run.seconds_per_epoch
    return {
        "run": run.name,
        "started": f"{run.started:%m-%d %H:%M}",
        "id": run.run_id,
        "state": run.state,
        "engine": run.engine,
        "workers": run.workers,
        "data": run.dataset,
        "rows": run.rows,
        "epochs": run.epochs,
        "start s": _number(run.seconds_to_start, 1),
        "epoch s": _number(median(epochs), 2) if epochs else None,
        "rows/s": _number(run.rows_per_second, 0) if isfinite(run.rows_per_second or 0) else None,
        "total s": _number(run.seconds_total, 1),
    }


def _number(value: Any, digits: int) -> float | None:
    return round(float(value), digits) if isinstance(value, (int, float)) else None


def _metrics(found: list[RunRecord]) -> list[str]:
    """The metrics that most runs have, loss and accuracy before others."""
    seen = Counter(m for run in found for m, v in run.metrics.items() if isinstance(v, (int, float)))
    first = [m for m in ("loss", "accuracy") if m in seen]
    # A training may report "rows" and similar, which the table has already.
    others = [m for m, _ in seen.most_common() if m not in {*first, *_row(found[0])}]
    return (first + others)[:_METRICS_SHOWN]
