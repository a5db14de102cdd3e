"""What a panel shows of a training run: it fills a `TrainingRun`."""

import math
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from labkit.display.formatting import (
    UNKNOWN,
    clock,
    count,
    number,
    plural,
    seconds,
    short,
    short_metrics,
    size,
)  # fmt: skip
from labkit.panel.run import Curve, Mark, Plot, Table, joined
from labkit.panel.training import CheckpointState, TrainingRun
from labkit.panel.workers import WorkerState

_CHECKPOINTS_SHOWN, _WORKERS_SHOWN, _PHASES_SHOWN = 6, 8, 8
_REPORTS_SHOWN = 240
_COUNTS = {"epoch", "epochs", "step", "steps", "global_step", "rank", "workers", "world", "world_size"}
_PHASES = {"starting": "starting workers", "loading": "loading data"}
_STATUSES = {
    "committed": ("ok", "✓ saved"),
    "pending": ("wait", "○ waits for validation"),
    "validated": ("ok", "✓ validated"),
    "failed": ("bad", "✕ validation failed"),
    "timed out": ("bad", "✕ timed out"),
}
_SAID = {"validated": "validated", "failed": "validation failed", "timed out": "timed out"}


def fill(run: TrainingRun, now: float) -> None:
    """Set what is shown at `now`."""
    workers = plural(run.world_size, "worker") if run.engine != "one process" else ""
    run.subtitle = joined(run.engine, workers, run.dataset, f"{run.rows:,} rows" if run.rows else "")
    run.steps = list(_phases(run, now))
    run.progress = run.fraction(), headline(run, now)
    run.tiles = tiles(run)
    run.tables = [*_workers(run), *_checkpoints(run, now)]
    run.plot, run.spans = _curves(run), run.timeline(now)
    run.notes = list(filter(None, (_changes(run), run.note, run.undefined, _empty(run))))
    run.what = plural(len(run.epoch_seconds), "epoch") if run.epoch_seconds else ""
    run.result = _result(run)
    run.news = list(_news(run))
    if run.over and not run.spans and len(run.curve) + len(run.history) < 3:  # nothing to see
        run.plot, run.tiles, run.tables = None, [], []
    elif run.over and not run.plot.curves:  # it reported counts alone
        run.plot = None


def headline(run: TrainingRun, now: float) -> str:
    """Where the run is: ``epoch 7 of 10 · step 14 of 22 · about 19 s left``."""
    worker, pending = run.workers.leader, run.checkpoints.pending
    if worker is None or not run.first_step_at:
        return short(_PHASES.get(run.phase, run.phase))
    if pending and run.fraction() == 1.0:
        return f"all epochs are trained · {plural(pending, 'validation')} left"
    left, of = run.eta(now), f" of {run.epochs}" if run.epochs and not run.exceeds else ""
    step = f"step {worker.step}" + (f" of {worker.total}" if worker.total else "")
    # A run that is between two epochs is drawn at the end of the first.
    return joined(
        "" if run.counts_steps else f"epoch {worker.epoch + 1}{of}",
        f"step {run.made} of {run.steps_of_run}" if run.steps_of_run else step,
        "" if left is None else f"about {seconds(left)} left" if left >= 1 else "nearly done",
    )


def tiles(run: TrainingRun) -> list[tuple[str, str]]:
    """(value, name): the two most telling metrics of those that are reported, rows per second, waiting."""
    reported = {name for report in run.history for name in report}
    metrics = {
        name: value
        for name, value in run.metrics().items()
        if isinstance(value, int | float) and name not in _COUNTS
    }
    shown = {name: value for name, value in metrics.items() if name in reported} or metrics
    waiting = run.waiting_share()
    return [
        *((number(shown[name]), short(name, 24)) for name in _ranked(shown)[:2]),
        (count(run.rows_per_second()) if run.first_step_at and run.fed else UNKNOWN, "rows/s"),
        (UNKNOWN if waiting is None else f"{waiting:.0%}", "waiting for data"),
    ]


def _phases(run: TrainingRun, now: float) -> Iterator[Mark]:
    """The phases passed; loading and training alternate, so each name appears once."""
    for name, spent in list(run.phase_seconds(now).items())[-_PHASES_SHOWN:]:
        words = f"{short(_PHASES.get(name, name))} {seconds(spent)}"
        yield ("now", f"● {words}") if name == run.phase else ("ok", f"✓ {words}")


def _workers(run: TrainingRun) -> Iterator[Table]:
    """A table of the first ones."""
    workers, slowest = [run.workers[rank] for rank in sorted(run.workers)], run.workers.slowest
    if workers:
        head = ("rank", "node", "pid", "step", "rows/s", "waiting", "memory")
        rows = [_worker(one, slowest=one is slowest) for one in workers[:_WORKERS_SHOWN]]
        yield Table(head, rows, more=len(workers) - len(rows), stays=False)


def _worker(one: WorkerState, *, slowest: bool) -> tuple[str | Mark, ...]:
    """A row of the table of workers; the one that holds up the others is marked."""
    rate, waits = UNKNOWN, UNKNOWN
    if one.seconds > 0:
        rate, waits = count(one.rows_per_second), f"{one.waiting_share:.0%}"
    memory = size(one.memory)
    if one.gpu_memory is not None:
        memory += f", GPU {size(one.gpu_memory)}"
    rank = ("wait", f"{one.rank} slow") if slowest else str(one.rank)
    return rank, one.node, str(one.pid), str(one.step) if one.begun else UNKNOWN, rate, waits, memory


def _checkpoints(run: TrainingRun, now: float) -> Iterator[Table]:
    rows = []
    for one in reversed(run.checkpoints[-_CHECKPOINTS_SHOWN:]):
        given = {name: value for name, value in one.metrics.items() if name not in one.late}
        rows.append((one.label, size(one.bytes), short_metrics(given, 2), _status(one, now, over=run.over)))
    if rows:
        yield Table(("checkpoint", "size", "metrics", "status"), rows, more=len(run.checkpoints) - len(rows))


def _status(one: CheckpointState, now: float, *, over: bool) -> Mark:
    kind, words = _STATUSES.get(one.status, ("dim", one.status))
    if over and one.status == "pending":
        words = "○ not validated yet"
    elif one.validating and not over:
        kind, words = "wait", f"● validating {seconds(now - one.begun_at)}"
    elif one.late:
        words = f"✓ {short_metrics(one.late, 2)}"
    elif one.status == "timed out" and one.begun_at:
        words += f" after {seconds(one.decided_at - one.begun_at)}"
    elif one.status == "failed" and one.reason:
        words += f": {short(one.reason, 60)}"
    if one.deleted:
        kind, words = "dim", "deleted" if one.status == "committed" else f"{words} · deleted"
    return kind, words


def _curves(run: TrainingRun) -> Plot:
    """Two metrics over the epochs: the first with its scale at the left, the second at the right.

    Those that are reported are drawn, and pale behind them their values in single steps.
    """
    history = run.history[:: -(len(run.history) // _REPORTS_SHOWN + 1)]
    reports = [(report["epoch"] + 1.0, report) for report in reversed(history)]
    # What a validation brings comes when its epoch is long over.
    reports += [(float(one.epoch), one.late) for one in run.checkpoints if one.epoch]
    steps, reported, latest = _series(run.curve), _series(reports), run.metrics()
    behind, curves = [], []
    for name, look in zip(_ranked(steps | reported)[:2], ("main", "second"), strict=False):
        points = reported.get(name) or steps[name]
        if name in reported and name in steps:
            behind.append(Curve(name, steps[name], "pale" if look == "main" else "pale second"))
        words = f"{short(name, 16)} {number(latest.get(name, points[-1][1]))}"
        curves.append(Curve(words, points, look))
    last = max((curve.points[-1][0] for curve in behind + curves), default=0.0)
    end = max(run.epochs or 0, math.ceil(last), 1)
    return Plot("report" if run.counts_steps else "epoch", behind + curves, end)


def _series(rows: Iterable[tuple[float, dict[str, Any]]]) -> dict[str, list[tuple[float, float]]]:
    """The points of each metric; one for each place, in order: an epoch may have been repeated."""
    found: dict[str, dict[float, float]] = {}
    for x, metrics in rows:
        for name, value in metrics.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and abs(value) < 1e12 and name not in _COUNTS:
                found.setdefault(name, {})[x] = value
    return {name: sorted(points.items()) for name, points in found.items()}


def _ranked(names: Iterable[str]) -> list[str]:
    """The most telling first: the loss, then an accuracy."""
    return sorted(names, key=lambda name: (name != "loss", "accuracy" not in name, name))


def _changes(run: TrainingRun) -> str:
    """Restarts, what they cost, and the numbers of workers over time: ``2 → 1 (00:41) workers``."""
    again = f"workers started again {run.workers.restarts} ×" if run.workers.restarts else ""
    again += f", {plural(run.repeated, 'step')} trained twice" if run.repeated else ""
    sizes = " → ".join(f"{n} ({clock(at - run.started_at)})" for at, n in run.sizes[1:])
    return joined(again, f"{run.sizes[0][1]} → {sizes} workers" if sizes else "")


def _empty(run: TrainingRun) -> str:
    """Which ranks had no batch: a shard without rows."""
    ranks = " and ".join(f"rank {rank}" for rank in sorted(run.empty)[:3])
    return f"{ranks} got no batch: its shard is empty (fewer rows than workers?)" if ranks else ""


def _result(run: TrainingRun) -> str:
    """``loss 0.141 · accuracy 0.967 · 18.1 k rows/s · 10 checkpoints · 3 kept``."""
    waiting, saved = run.waiting_share() or 0.0, run.checkpoints
    found, words = [one.status for one in saved], {**_SAID, "pending": "not validated yet"}
    return joined(
        short_metrics(run.metrics()),
        _rate(run),
        f"{waiting:.0%} of each epoch waiting for data" if waiting >= 0.005 else "",
        plural(len(saved), "checkpoint") if saved else "",
        f"{saved.kept} kept" if saved.kept < len(saved) else "",
        *(f"{found.count(status)} {said}" for status, said in words.items() if status in found),
    )


def _news(run: TrainingRun) -> Iterator[tuple[Hashable, str]]:
    """Each phase until the first report, each report, each decided checkpoint."""
    # Loading and training alternate in every epoch; once each is news, after that the epochs are.
    for name in run.phases if not run.history else ():
        yield ("phase", name), _PHASES.get(name, name)
    for place, report in list(enumerate(run.history))[-20:]:
        of = f"/{run.epochs}" if report["epoch"] < (run.epochs or 0) else ""
        # A loop that counts steps has its step among the metrics.
        epoch = "" if run.counts_steps else f"epoch {report['epoch'] + 1}{of}"
        yield ("report", place), joined(epoch, short_metrics(report), _rate(run))
    for one in run.checkpoints:
        if one.status in _SAID:
            words = short_metrics(one.late) or one.reason
            yield ("decided", one.path), f"{one.label}: {_SAID[one.status]} {words}".rstrip()


def _rate(run: TrainingRun) -> str:
    return f"{count(run.rows_per_second())} rows/s" if run.rows_per_second() >= 1 else ""
