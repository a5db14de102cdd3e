"""Past runs side by side: a table, a figure, the latest record.

    >>> runs.table(last=3)
    >>> runs.plot(name="03-torch")
    >>> runs.latest("03-torch").metrics["accuracy"]
    0.967

They read the run records (`labkit.runs.record`) below ``LABKIT_HOME/runs``, whatever engine wrote them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from labkit.errors import RunError
from labkit.runs import figures
from labkit.runs import record as records
from labkit.runs.record import RunRecord
from labkit.settings import Settings

if TYPE_CHECKING:  # each takes a second to import, and `latest` needs neither
    import pandas
    from matplotlib.figure import Figure

_METRICS_SHOWN = 4
_STATES = ("finished", "failed", "stopped", "running", "lost")


def table(
    home: Path | str | None = None,
    *,
    name: str | Sequence[str] | None = None,
    engine: str | None = None,
    last: int | None = None,
) -> "pandas.DataFrame":
    """One row per run, the newest first. Seconds in s; ``epoch s`` is the median epoch.

    Of the runs' configurations (`RunRecord.config`), the settings in which they differ have a column each;
    ``checkpoint`` is the path of the latest one.

    Args:
        home: the lab's home folder; default: that of the settings.
        name, engine: only runs with this name (or one of these), of this engine.
        last: only so many, the newest.

    Raises:
        RunError: there is no such run.
    """
    import pandas

    found = _select(home, name=name, engine=engine, last=last)
    metrics, settings = _metric_names(found), _differing_settings(found)
    rows = [
        {**_row(r), **own, **{m: _number(r.metrics.get(m), 4) for m in metrics}, "checkpoint": r.checkpoint}
        for r, own in zip(found, settings, strict=True)
    ]
    columns = [c for c in rows[0] if any(row[c] is not None for row in rows)]
    frame = pandas.DataFrame(rows, index=range(1, len(rows) + 1))[columns]
    # A count that one run lacks would turn those of all others into floats.
    return frame.astype({c: "Int64" for c in ("rows", "rows/s") if c in columns})


def plot(
    home: Path | str | None = None,
    *,
    name: str | Sequence[str] | None = None,
    engine: str | None = None,
    last: int = 6,
    metrics: str | Sequence[str] | None = None,
) -> "Figure":
    """A figure of the newest runs: `metrics` per epoch, and where the seconds of each run went.

    The figure is closed for pyplot, so a notebook shows it once: as the value of its cell.

    Args:
        home, name, engine, last: as in `table`.
        metrics: one name or several, to draw per epoch; for "loss", a run without it shows "val_loss" or the
            like. Default: loss and accuracy; for runs that report neither, their first two metrics.

    Raises:
        RunError: there is no such run, or none of them reports one of `metrics`.
    """
    return figures.compare(_select(home, name=name, engine=engine, last=last), metrics=metrics)


def latest(
    name: str | None = None, home: Path | str | None = None, *, state: str | None = "finished"
) -> RunRecord:
    """The record of the newest run (with this name) that finished.

    Args:
        name, home: as in `table`.
        state: "finished", "failed", "stopped", "running" or "lost"; None for the newest run of all.

    Raises:
        RunError: there is no such run.
    """
    if state not in (None, *_STATES):
        fix = f"one of {', '.join(map(repr, _STATES))}, or None for the newest run of all"
        raise RunError("find the latest run", f"{state!r} is no state of a run", fix)
    found = _select(home, name=name)
    for record in found:
        if state in (None, record.state):
            return record
    newest = found[0]
    reason = f" ({newest.error})" if newest.error else ""
    raise RunError(
        f"find a run of {name!r} that is {state}" if name else f"find a run that is {state}",
        f"none is: the newest, {newest.run_id}, is {newest.state}{reason}",
        "runs.latest(..., state=None) gives that one",
    )


def _select(home: Path | str | None, **wanted: Any) -> list[RunRecord]:
    home = Settings.from_env().home if home is None else Path(home)
    last = wanted.pop("last", None)
    wanted = {field: _texts(field, value) for field, value in wanted.items() if value is not None}
    if last is not None and not (isinstance(last, int) and last > 0):
        raise RunError("find a run", f"last={last!r} is no number of runs", "last=3, for the three newest")
    found = records.find(home, names=wanted.get("name"))
    found = [r for r in found if all(getattr(r, field) in values for field, values in wanted.items())]
    if found:
        return found[:last]
    everything = records.find(home)
    asked = " and ".join(f"{field}={' or '.join(map(repr, values))}" for field, values in wanted.items())
    names = ", ".join(sorted({repr(r.name) for r in everything})[:8])
    raise RunError(
        "find a run" + (f" with {asked}" if asked else ""),
        f"the runs below {home / 'runs'} are called {names}" if names else f"{home / 'runs'} has no run yet",
        "leave name= and engine= out, or take one of these names"
        if names
        else "train once: lesson 00 does, in a minute",
    )


def _texts(field: str, value: str | Sequence[str]) -> list[str]:
    values = [value] if isinstance(value, str) else value
    if isinstance(values, (list, tuple, set)) and values and all(isinstance(text, str) for text in values):
        return list(values)
    raise RunError("find a run", f"{field}={value!r} is no name", f"{field}='03-torch', or a list of names")


def _row(record: RunRecord) -> dict[str, Any]:
    return {
        "run": record.name,
        "started": f"{record.started:%m-%d %H:%M}",
        "engine": record.engine,
        "id": record.run_id,
        "state": record.state,
        "workers": record.workers,
        "data": record.dataset,
        "rows": record.rows,
        "epochs": record.epochs,
        "start s": _number(record.seconds_to_start, 1),
        "epoch s": _number(median(record.seconds_per_epoch), 2) if record.seconds_per_epoch else None,
        "rows/s": _number(record.rows_per_second, 0) if isfinite(record.rows_per_second or 0) else None,
        "total s": _number(record.seconds_total, 1),
    }


def _number(value: Any, digits: int) -> float | None:
    return round(float(value), digits) if isinstance(value, (int, float)) else None


def _differing_settings(found: list[RunRecord]) -> list[dict[str, Any]]:
    """For each run, the settings of its configuration in which the runs are not alike."""
    configs = [dict(_flat(record.config)) for record in found]
    names = dict.fromkeys(name for config in configs for name in config)
    differing = [n for n in names if any(config.get(n) != configs[0].get(n) for config in configs)]
    taken = {*_row(found[0]), *_metric_names(found), "checkpoint"}
    columns = {name: f"config {name}" if name in taken else name for name in differing}
    return [{columns[name]: config.get(name) for name in differing} for config in configs]


def _flat(config: dict, above: str = "") -> Iterator[tuple[str, Any]]:
    """Each setting with its name; one inside another dict is called ``outer.inner``."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _metric_names(found: list[RunRecord]) -> list[str]:
    """The metrics that most runs have, loss and accuracy before others."""
    seen = Counter(m for r in found for m, v in r.metrics.items() if isinstance(v, (int, float)))
    first = [m for m in ("loss", "accuracy") if m in seen]
    # A training may report "rows" and the like too: the run's own are in the table already.
    others = [m for m, _ in seen.most_common() if m not in {*first, *_row(found[0])}]
    return (first + others)[:_METRICS_SHOWN]
