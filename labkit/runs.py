"""Past runs side by side: a table, a figure, the latest record.

    >>> runs.table(last=3)
    >>> runs.plot(name="03-torch")
    >>> runs.latest("03-torch").metrics["accuracy"]
    0.967

They read the run records (`labkit.records`) below ``LABKIT_HOME/runs``, whatever engine wrote them.
"""

from collections import Counter
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from labkit import figures, records
from labkit.errors import RunError
from labkit.records import RunRecord
from labkit.settings import Settings

if TYPE_CHECKING:  # each takes a second to import, and `latest` needs neither
    import pandas
    from matplotlib.figure import Figure

__all__ = ["latest", "plot", "table"]

_METRICS_SHOWN = 4


def table(
    home: Path | str | None = None,
    *,
    name: str | Sequence[str] | None = None,
    engine: str | None = None,
    last: int | None = None,
) -> "pandas.DataFrame":
    """One row per run, the newest first. Seconds in s; ``epoch s`` is the median epoch.

    Args:
        home: the lab's home folder; default: that of the settings.
        name, engine: only runs with this name (or one of these), of this engine.
        last: only so many, the newest.

    Raises:
        RunError: there is no such run.
    """
    import pandas

    found = _select(home, name=name, engine=engine, last=last)
    metrics = _metric_names(found)
    rows = [{**_row(r), **{m: _number(r.metrics.get(m), 4) for m in metrics}} for r in found]
    columns = [c for c in rows[0] if any(row[c] is not None for row in rows)]
    frame = pandas.DataFrame(rows, index=range(1, len(rows) + 1))[columns]
    # A count that one run lacks would turn those of all others into floats.
    return frame.astype({c: "Int64" for c in ("rows", "batch", "rows/s") if c in columns})


def plot(
    home: Path | str | None = None,
    *,
    name: str | Sequence[str] | None = None,
    engine: str | None = None,
    last: int = 6,
    metrics: Sequence[str] = ("loss", "accuracy"),
) -> "Figure":
    """A figure of the newest runs: `metrics` per epoch, and where the seconds of each run went.

    The figure is closed for pyplot, so a notebook shows it once: as the value of its cell.

    Args:
        home, name, engine, last: as in `table`.
        metrics: what to draw per epoch; for "loss", a run without it shows "val_loss" or the like.

    Raises:
        RunError: there is no such run.
    """
    return figures.compare(_select(home, name=name, engine=engine, last=last), metrics=metrics)


def latest(name: str | None = None, home: Path | str | None = None) -> RunRecord:
    """The record of the newest run (with this name).

    Raises:
        RunError: there is no such run.
    """
    return _select(home, name=name, last=1)[0]


def _select(home: Path | str | None, **wanted: Any) -> list[RunRecord]:
    home = Settings.from_env().home if home is None else Path(home)
    last = wanted.pop("last", None)
    everything = records.find(home)
    wanted = {field: value for field, value in wanted.items() if value is not None}
    found = [r for r in everything if all(_is(getattr(r, field), value) for field, value in wanted.items())]
    if found and (last is None or last > 0):
        return found[:last]
    asked = " and ".join(f"{field}={value!r}" for field, value in wanted.items())
    names = ", ".join(sorted({repr(r.name) for r in everything})[:8])
    raise RunError(
        "find a run" + (f" with {asked}" if asked else ""),
        f"the runs below {home / 'runs'} are called {names}" if names else f"{home / 'runs'} has no run yet",
        "leave name= and engine= away, and last= from 1 on"
        if names
        else "train once: lesson 00 does, in a minute",
    )


def _is(value: str, wanted: str | Sequence[str]) -> bool:
    return value == wanted if isinstance(wanted, str) else value in wanted


def _row(record: RunRecord) -> dict[str, Any]:
    return {
        "run": record.name,
        "started": f"{record.started:%m-%d %H:%M}",
        "engine": record.engine,
        "workers": record.workers,
        "data": record.dataset,
        "rows": record.rows,
        "batch": record.batch_size,
        "epochs": record.epochs,
        "start s": _number(record.seconds_to_start, 1),
        "epoch s": _number(median(record.seconds_per_epoch), 2) if record.seconds_per_epoch else None,
        "rows/s": _number(record.rows_per_second, 0) if isfinite(record.rows_per_second or 0) else None,
        "total s": _number(record.seconds_total, 1),
        "state": record.state,
    }


def _number(value: Any, digits: int) -> float | None:
    return round(float(value), digits) if isinstance(value, (int, float)) else None


def _metric_names(found: list[RunRecord]) -> list[str]:
    """The metrics that most runs have, loss and accuracy before others."""
    seen = Counter(m for r in found for m, v in r.metrics.items() if isinstance(v, (int, float)))
    first = [m for m in ("loss", "accuracy") if m in seen]
    # A training may report "rows" and the like too: the run's own are in the table already.
    others = [m for m, _ in seen.most_common() if m not in {*first, *_row(found[0])}]
    return (first + others)[:_METRICS_SHOWN]
