"""What a panel shows of a training run. `labkit.panel.training` has the facts."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from labkit.display.formatting import (
    UNKNOWN,
    clock,
    count,
    joined,
    number,
    plural,
    seconds,
    short,
    short_metrics,
    size,
)
from labkit.panel.shown import Curve, Mark, Plot, Shown, Table
from labkit.panel.training import CheckpointState, TrainingRun, epochs_in_words
from labkit.panel.workers import WorkerState
from labkit.worker.parts import NO_BACKWARD

_CHECKPOINTS_SHOWN, _WORKERS_SHOWN, _REPORTS_SHOWN, _REPORTS_LOGGED = 6, 8, 240, 20
_COUNTS = {"epoch", "epochs", "step", "steps", "global_step", "rank", "workers", "world", "world_size"}
_STEPS_UNSEEN = 20  # after which a panel says that the parts of steps aren't measured
_DAY = 86_400.0
_PHASES = {"starting": "starting workers", "loading": "loading data"}
_STATUSES = {
    "committed": ("ok", "✓ saved"),
    "pending": ("wait", "○ waits for validation"),
    "validated": ("ok", "✓ validated"),
    "failed": ("bad", "✕ validation failed"),
    "timed out": ("bad", "✕ timed out"),
}
_DECISIONS = {"validated": "validated", "failed": "validation failed", "timed out": "timed out"}


def shown(run: TrainingRun, now: float) -> Shown:
    """Return what is shown of a run at `now` (Unix seconds)."""
    workers = plural(run.world_size, "worker") if run.engine != "one process" else ""
    rows = f"{run.rows:,} rows" if run.rows else ""
    plot: Plot | None = _curves(run)
    tiles = list(_tiles(run))
    spans = run.timeline(now)
    if run.over and not spans and len(run.curve) + len(run.history) < 3:  # nothing to see
        plot, tiles = None, []
    elif run.over and plot is not None and not plot.curves:  # it reported counts alone
        plot = None
    verdict = run.find_verdict(now)
    strip = [(f"rank {rank}", shares) for rank, shares in (verdict.shares or {}).items()][:_WORKERS_SHOWN]
    unseen = {worker.unseen for worker in run.workers.values() if worker.made > _STEPS_UNSEEN}
    says_why = run.names_cause and (strip or unseen - {"", NO_BACKWARD})
    waits = "" if run.over else run.waits
    notes = (_changes(run), run.note, waits, _no_batch(run), run.weights_differ, *run.loop_notes)
    reported = run.epochs_reported if run.epochs_reported <= (run.epochs or 0) else 0
    epochs = len(run.epoch_seconds) or reported
    return Shown(
        subtitle=joined(run.engine, workers, run.dataset, rows),
        steps=list(_phases(run, now)),
        progress=(run.fraction(), _headline(run, now)),
        tiles=tiles,
        tables=[*_workers(run), *_checkpoints(run, now)],
        plot=plot,
        spans=spans,
        strip=strip,
        verdict=verdict.sentence if says_why else "",
        notes=[note for note in notes if note],
        what=plural(epochs, "epoch") if epochs else "",
        result=_result(run, has_strip=bool(strip)),
        news=list(_log(run)),
    )


def _headline(run: TrainingRun, now: float) -> str:
    """Return where the run is: ``epoch 7 of 10 · step 14 of 22 · about 19 s left``."""
    worker = run.workers.leader
    if worker is None or not (run.first_step_at or run.epochs_reported):
        return _PHASES.get(run.phase, run.phase)
    if run.pending and run.fraction() == 1.0:
        return f"all epochs are trained · {plural(run.pending, 'validation')} left"
    left = run.eta(now)
    last = run.epochs if run.epochs and not run.exceeds else math.inf
    step = f"step {worker.step}" + (f" of {worker.total}" if worker.total else "") if worker.begun else ""
    # A run that is between two epochs is drawn at the end of the first.
    epoch = min((run.epochs_reported or worker.epoch) + 1, last)
    return joined(
        "" if run.counts_steps else f"epoch {epoch}" + (f" of {last}" if last < math.inf else ""),
        f"step {run.made} of {run.steps_of_run}" if run.steps_of_run else step,
        "" if left is None else f"about {seconds(left)} left" if left >= 1 else "nearly done",
    )


def _phases(run: TrainingRun, now: float) -> Iterator[Mark]:
    """Yield the phases passed; loading and training alternate, so each name appears once."""
    for name, spent in run.phase_seconds(now).items():
        words = f"{_PHASES.get(name, name)} {seconds(spent)}"
        yield ("now", f"● {words}") if name == run.phase else ("ok", f"✓ {words}")


def _tiles(run: TrainingRun) -> Iterator[tuple[str, str]]:
    """Yield the two most telling metrics of those that are reported, rows per second, waiting for data."""
    reported = {name for report in run.history for name in report}
    metrics = dict(_measured(run, run.metrics()))
    metrics = {name: value for name, value in metrics.items() if name in reported} or metrics
    validated = dict(_measured(run, run.validated()))
    for name in _ranked(metrics | validated)[:2]:
        which = ", validated" if name in validated else ", reported" if run.validates else ""
        yield number(validated.get(name, metrics.get(name))), short(name, 24 - len(which)) + which
    waiting = run.waiting_share()
    if not run.first_step_at:
        yield UNKNOWN, "rows/s"
    elif run.knows_rows:
        yield count(run.rows_per_second()), "rows/s"
    yield UNKNOWN if waiting is None else f"{waiting:.0%}", "waiting for data"


def _workers(run: TrainingRun) -> Iterator[Table]:
    workers, slowest = [run.workers[rank] for rank in sorted(run.workers)], run.workers.slowest
    rows = [_worker_row(worker, slowest=worker is slowest) for worker in workers[:_WORKERS_SHOWN]]
    if rows:
        head = ("rank", "node", "pid", "step", "rows/s", "waiting", "memory")
        yield Table(head, rows, more=len(workers) - len(rows), stays=False)


def _worker_row(worker: WorkerState, *, slowest: bool) -> tuple[str | Mark, ...]:
    """Return a row of the table of workers; that of the one that holds up the others is marked."""
    rate, waits = UNKNOWN, UNKNOWN
    if worker.seconds > 0:
        rate = count(worker.rows_per_second) if worker.counted else UNKNOWN
        waits = f"{worker.waiting_share:.0%}"
    memory = size(worker.memory)
    if worker.gpu_memory is not None:
        memory += f", GPU {size(worker.gpu_memory)}"
    rank = ("wait", f"{worker.rank} slow") if slowest else str(worker.rank)
    step = str(worker.step) if worker.begun else UNKNOWN
    return rank, worker.node, str(worker.pid), step, rate, waits, memory


def _checkpoints(run: TrainingRun, now: float) -> Iterator[Table]:
    rows = []
    for checkpoint in reversed(run.checkpoints[-_CHECKPOINTS_SHOWN:]):
        metrics = {n: value for n, value in checkpoint.metrics.items() if n not in checkpoint.late}
        status = _status(run, checkpoint, now)
        rows.append((checkpoint.label, size(checkpoint.bytes), _words(run, metrics, 2), status))
    if rows:
        head = ("checkpoint", "size", "metrics", "status")
        yield Table(head, rows, more=len(run.checkpoints) - len(rows))


def _status(run: TrainingRun, checkpoint: CheckpointState, now: float) -> Mark:
    kind, words = _STATUSES.get(checkpoint.status, ("dim", checkpoint.status))
    begun_at, decided_at = checkpoint.begun_at, checkpoint.decided_at
    late = _words(run, checkpoint.late, 2)
    if run.over and checkpoint.status == "pending":
        words = "○ not validated yet"
    elif checkpoint.validating and begun_at is not None and not run.over:
        kind, words = "wait", f"● validating {seconds(now - begun_at)}"
    elif late:
        words = f"✓ {late}"
    elif checkpoint.status == "timed out" and begun_at and decided_at:
        words += f" after {seconds(decided_at - begun_at)}"
    elif checkpoint.status == "failed" and checkpoint.reason:
        words += f": {short(checkpoint.reason, 60)}"
    if checkpoint.deleted:
        kind, words = "dim", "deleted" if checkpoint.status == "committed" else f"{words} · deleted"
    return kind, words


def _curves(run: TrainingRun) -> Plot:
    """Draw two metrics over the epochs: the first with its scale at the left, the second at the right.

    Those that are reported are drawn, and pale behind them their values in single steps.
    """
    reports = run.placed_reports(_REPORTS_SHOWN)
    # What a validation brings comes when its epoch is long over.
    reports += [(float(one.epoch), one.late) for one in run.checkpoints if one.epoch]
    steps, reported, latest = _series(run, run.curve), _series(run, reports), run.metrics()
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


def _series(
    run: TrainingRun, rows: Iterable[tuple[float, Mapping[str, Any]]]
) -> dict[str, list[tuple[float, float]]]:
    """Return the points of each metric; one for each place, in order: an epoch may have been repeated."""
    series: dict[str, dict[float, float]] = {}
    for x, metrics in rows:
        for name, value in _measured(run, metrics):
            if abs(value) < 1e12:
                series.setdefault(name, {})[x] = value
    return {name: sorted(points.items()) for name, points in series.items()}


def _measured(run: TrainingRun, metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the metrics that measure something: numbers, but no counts and no moments of this run."""
    for name, value in metrics.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and name not in _COUNTS and not _is_moment(run, value):
            yield name, value


def _is_moment(run: TrainingRun, value: Any) -> bool:
    """Return whether a metric is a Unix time, such as when a validation began; the record has it."""
    return isinstance(value, float) and abs(value - run.started_at) < _DAY < run.started_at


def _words(run: TrainingRun, metrics: Mapping[str, Any], most: int = 4) -> str:
    return short_metrics({n: v for n, v in metrics.items() if not _is_moment(run, v)}, most)


def _changes(run: TrainingRun) -> str:
    """Return restarts, what they cost, and the numbers of workers over time: ``2 → 1 (00:41) workers``."""
    again = f"workers started again {run.workers.restarts} ×" if run.workers.restarts else ""
    again += f", {plural(run.repeated, 'step')} trained twice" if run.repeated else ""
    sizes = " → ".join(f"{n} ({clock(at - run.started_at)})" for at, n in run.sizes[1:])
    return joined(again, f"{run.sizes[0][1]} → {sizes} workers" if sizes else "")


def _no_batch(run: TrainingRun) -> str:
    """Return which ranks had no batch: a shard without rows."""
    ranks = " and ".join(f"rank {rank}" for rank in sorted(run.empty)[:3])
    return f"{ranks} got no batch: its shard is empty (fewer rows than workers?)" if ranks else ""


def _result(run: TrainingRun, *, has_strip: bool) -> str:
    """Return ``loss 0.141 · accuracy 0.967 · 18.1 k rows/s · 10 checkpoints · 3 kept``."""
    waiting = run.waiting_share() or 0.0
    statuses = [checkpoint.status for checkpoint in run.checkpoints]
    validated = run.validated()
    metrics = {name: value for name, value in run.metrics().items() if name not in validated}
    reported, decided = _words(run, metrics), _words(run, validated)
    counted = {**_DECISIONS, "pending": "not validated yet"}
    return joined(
        f"reported {reported}" if run.validates and reported else reported,
        f"validated {decided}" if decided else "",
        _rate(run),
        f"{waiting:.0%} of each epoch waiting for data" if waiting >= 0.005 and not has_strip else "",
        plural(len(statuses), "checkpoint") if statuses else "",
        f"{run.kept} kept" if run.kept < len(statuses) else "",
        *(f"{statuses.count(status)} {words}" for status, words in counted.items() if status in statuses),
    )


def _log(run: TrainingRun) -> Iterator[tuple[tuple, str]]:
    """Yield lines of a log: each phase until the first report, each report, each decided checkpoint."""
    # Loading and training alternate in every epoch; once each is news, after that the epochs are.
    for name in run.phases if not run.history else ():
        yield ("phase", name), _PHASES.get(name, name)
    for index, report in list(enumerate(run.history))[-_REPORTS_LOGGED:]:
        of = f"/{run.epochs}" if report["epoch"] < (run.epochs or 0) else ""
        reported = run.reports[index].epoch
        done = reported if reported is not None and reported % 1 else report["epoch"] + 1
        # A loop that counts steps has its step among the metrics.
        epoch = "" if run.counts_steps else f"epoch {epochs_in_words(done)}{of}"
        yield ("report", index), joined(epoch, _words(run, report), _rate(run))
    for checkpoint in run.checkpoints:
        if checkpoint.status in _DECISIONS:
            words = _words(run, checkpoint.late) or checkpoint.reason
            line = f"{checkpoint.label}: {_DECISIONS[checkpoint.status]} {words}"
            yield ("decided", checkpoint.path), line.rstrip()


def _rate(run: TrainingRun) -> str:
    return f"{count(run.rows_per_second())} rows/s" if run.rows_per_second() >= 1 else ""


def _ranked(names: Iterable[str]) -> list[str]:
    """Return the most telling first: the loss, then an accuracy."""
    return sorted(names, key=lambda name: (name != "loss", "accuracy" not in name, name))
