"""What a panel shows of a training run. `labkit.panel.training` has the facts."""

import math
from collections.abc import Iterable, Iterator
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
from labkit.panel.checkpoints import CheckpointState
from labkit.panel.epochs import epochs_in_words
from labkit.panel.shown import Curve, Mark, Plot, Shown, Table
from labkit.panel.training import Metrics, TrainingRun
from labkit.panel.workers import WorkerState
from labkit.worker.parts import NO_BACKWARD

_CHECKPOINTS_SHOWN = 6
_WORKERS_SHOWN = 8
_REPORTS_LOGGED = 20
_COUNTS = {
    "epoch",
    "epochs",
    "step",
    "steps",
    "global_step",
    "rank",
    "workers",
    "world",
    "world_size",
}
_LARGEST = 1e12  # of a metric that is drawn
_STEPS_UNSEEN = 20  # after which a panel says that the parts of steps aren't measured
_DAY = 86_400.0
_PHASES = {
    "starting": "starting workers",
    "loading": "loading data",
}
_STATUSES = {
    "committed": ("ok", "✓ saved"),
    "pending": ("wait", "○ waits for validation"),
    "validated": ("ok", "✓ validated"),
    "failed": ("bad", "✕ validation failed"),
    "timed out": ("bad", "✕ timed out"),
}
_DECISIONS = {
    "validated": "validated",
    "failed": "validation failed",
    "timed out": "timed out",
}
_WORKER_COLUMNS = (
    "rank",
    "node",
    "pid",
    "step",
    "rows/s",
    "waiting",
    "memory",
)
_CHECKPOINT_COLUMNS = ("checkpoint", "size", "metrics", "status")


def shown(run: TrainingRun, now: float) -> Shown:
    """Return what is shown of a run at `now` (Unix seconds)."""
    workers = plural(run.world_size, "worker") if run.engine != "one process" else ""
    rows = f"{run.rows:,} rows" if run.rows else ""
    spans = run.timeline(now)
    plot = _curves(run)
    points = len(run.curve) + len(run.history)
    is_empty = run.over and not spans and points < 3
    has_plot = not run.over or plot.curves  # a run may have reported counts alone
    verdict = run.find_verdict(now)
    shares = verdict.shares or {}
    strip = [(f"rank {rank}", shares[rank]) for rank in shares][:_WORKERS_SHOWN]
    says_why = run.names_cause and (strip or _misses_parts(run))
    return Shown(
        subtitle=joined(run.engine, workers, run.dataset, rows),
        steps=list(_phases(run, now)),
        progress=(run.fraction(), _headline(run, now)),
        tiles=[] if is_empty else list(_tiles(run)),
        tables=[*_workers(run), *_checkpoints(run, now)],
        plot=plot if has_plot and not is_empty else None,
        spans=spans,
        strip=strip,
        verdict=verdict.sentence if says_why else "",
        notes=list(_notes(run)),
        what=_epochs_done(run),
        result=_result(run, has_strip=bool(strip)),
        news=list(_log(run)),
    )


def _misses_parts(run: TrainingRun) -> bool:
    """Return whether a rank can't measure the parts of its steps, and has made so many that it matters."""
    reasons = {worker.unseen for worker in run.workers.values() if worker.made > _STEPS_UNSEEN}
    return bool(reasons - {"", NO_BACKWARD})


def _notes(run: TrainingRun) -> Iterator[str]:
    """Return what is wrong, or happened meanwhile."""
    notes = [
        _changes(run),
        run.note,
        "" if run.over else run.waits,
        _no_batch(run),
        run.weights_differ,
        *run.loop_notes,
    ]
    return filter(None, notes)


def _epochs_done(run: TrainingRun) -> str:
    """Return ``10 epochs``: those that were timed, or else those that were reported."""
    epochs = len(run.epoch_seconds)
    if not epochs and run.epochs_reported <= (run.epochs or 0):
        epochs = run.epochs_reported
    return plural(epochs, "epoch") if epochs else ""


def _headline(run: TrainingRun, now: float) -> str:
    """Return where the run is: ``epoch 7 of 10 · step 14 of 22 · about 19 s left``."""
    worker = run.workers.leader
    if worker is None or not (run.first_step_at or run.epochs_reported):
        return _PHASES.get(run.phase, run.phase)
    if run.pending and run.fraction() == 1.0:
        return f"all epochs are trained · {plural(run.pending, 'validation')} left"
    last = None if run.exceeds else run.epochs
    epoch = (run.epochs_reported or worker.epoch) + 1
    if last:  # a run that is between two epochs is drawn at the end of the first
        epoch = min(epoch, last)
    parts = []
    if not run.counts_steps:
        parts.append(f"epoch {_of(epoch, last)}")
    if run.steps_of_run:
        parts.append(f"step {_of(run.made, run.steps_of_run)}")
    elif worker.begun:
        parts.append(f"step {_of(worker.step, worker.total)}")
    left = run.eta(now)
    if left is not None:
        parts.append(f"about {seconds(left)} left" if left >= 1 else "nearly done")
    return joined(*parts)


def _of(number: int, total: int | None) -> str:
    return f"{number} of {total}" if total else str(number)


def _phases(run: TrainingRun, now: float) -> Iterator[Mark]:
    """Yield the phases passed; loading and training alternate, so each name appears once."""
    for name, spent in run.phase_seconds(now).items():
        text = f"{_PHASES.get(name, name)} {seconds(spent)}"
        if name == run.phase:
            yield "now", f"● {text}"
        else:
            yield "ok", f"✓ {text}"


def _tiles(run: TrainingRun) -> Iterator[tuple[str, str]]:
    """Yield the two most telling metrics of those that are reported, rows per second, waiting for data."""
    reported = {name for report in run.history for name in report}
    latest = dict(_measured(run, run.metrics()))
    metrics = {name: value for name, value in latest.items() if name in reported} or latest
    validated = dict(_measured(run, run.validated()))
    values = metrics | validated
    for name in _ranked(values)[:2]:
        source = ", reported" if run.validates else ""
        if name in validated:
            source = ", validated"
        yield number(values[name]), short(name, 24 - len(source)) + source
    if not run.first_step_at:
        yield UNKNOWN, "rows/s"
    elif run.knows_rows:
        yield count(run.rows_per_second()), "rows/s"
    waiting = run.waiting_share()
    share = UNKNOWN if waiting is None else f"{waiting:.0%}"
    yield share, "waiting for data"


def _workers(run: TrainingRun) -> Iterator[Table]:
    """Yield the table of workers, if there are any; the rank that holds up the others is marked."""
    slowest = run.workers.slowest
    rows = []
    for _, worker in sorted(run.workers.items())[:_WORKERS_SHOWN]:
        rows.append(_worker_row(worker, is_slowest=worker is slowest))
    if rows:
        more = len(run.workers) - len(rows)
        yield Table(_WORKER_COLUMNS, rows, more=more, stays=False)


def _worker_row(worker: WorkerState, *, is_slowest: bool) -> tuple[str | Mark, ...]:
    has_time = worker.seconds > 0
    memory = size(worker.memory)
    if worker.gpu_memory is not None:
        memory += f", GPU {size(worker.gpu_memory)}"
    return (
        ("wait", f"{worker.rank} slow") if is_slowest else str(worker.rank),
        worker.node,
        str(worker.pid),
        str(worker.step) if worker.begun else UNKNOWN,
        count(worker.rows_per_second) if has_time and worker.counted else UNKNOWN,
        f"{worker.waiting_share:.0%}" if has_time else UNKNOWN,
        memory,
    )


def _checkpoints(run: TrainingRun, now: float) -> Iterator[Table]:
    """Yield the table of checkpoints, if there are any: the latest, from the last one on."""
    rows = []
    for checkpoint in reversed(run.checkpoints[-_CHECKPOINTS_SHOWN:]):
        late = checkpoint.late
        reported = {name: value for name, value in checkpoint.metrics.items() if name not in late}
        row = (
            checkpoint.label,
            size(checkpoint.bytes),
            _metrics_text(run, reported, 2),
            _status(run, checkpoint, now),
        )
        rows.append(row)
    if rows:
        more = len(run.checkpoints) - len(rows)
        yield Table(_CHECKPOINT_COLUMNS, rows, more=more)


def _status(run: TrainingRun, checkpoint: CheckpointState, now: float) -> Mark:
    status = checkpoint.status
    look, text = _STATUSES.get(status, ("dim", status))
    begun_at = checkpoint.begun_at
    decided_at = checkpoint.decided_at
    late = _metrics_text(run, checkpoint.late, 2)
    if run.over and status == "pending":
        text = "○ not validated yet"
    elif checkpoint.validating and begun_at is not None and not run.over:
        look = "wait"
        text = f"● validating {seconds(now - begun_at)}"
    elif late:
        text = f"✓ {late}"
    elif status == "timed out" and begun_at and decided_at:
        text += f" after {seconds(decided_at - begun_at)}"
    elif status == "failed" and checkpoint.reason:
        text += f": {short(checkpoint.reason, 60)}"
    if checkpoint.deleted:
        look = "dim"
        text = "deleted" if status == "committed" else f"{text} · deleted"
    return look, text


def _curves(run: TrainingRun) -> Plot:
    """Draw two metrics over the epochs: the first with its scale at the left, the second at the right.

    Those that are reported are drawn, and pale behind them their values in single steps.
    """
    reports = run.placed_reports()
    # What a validation brings comes when its epoch is long over.
    for checkpoint in run.checkpoints:
        if checkpoint.epoch:
            reports.append((float(checkpoint.epoch), checkpoint.late))
    steps = _series(run, run.curve)
    reported = _series(run, reports)
    latest = run.metrics()
    behind = []
    curves = []
    names = _ranked(steps | reported)[:2]
    looks = (("main", "pale"), ("second", "pale second"))
    for name, (look, pale) in zip(names, looks, strict=False):
        points = reported.get(name) or steps[name]
        if name in reported and name in steps:
            behind.append(Curve(name, steps[name], pale))
        value = latest.get(name, points[-1][1])
        curves.append(Curve(f"{short(name, 16)} {number(value)}", points, look))
    curves = behind + curves
    ends = [curve.points[-1][0] for curve in curves]
    end = max(run.epochs or 0, math.ceil(max(ends, default=0.0)), 1)
    label = "report" if run.counts_steps else "epoch"
    return Plot(label, curves, end)


def _series(run: TrainingRun, rows: Iterable[tuple[float, Metrics]]) -> dict[str, list[tuple[float, float]]]:
    """Return the points of each metric; one for each place, in order: an epoch may have been repeated."""
    series: dict[str, dict[float, float]] = {}
    for x, metrics in rows:
        for name, value in _measured(run, metrics):
            if abs(value) < _LARGEST:
                series.setdefault(name, {})[x] = value
    return {name: sorted(points.items()) for name, points in series.items()}


def _measured(run: TrainingRun, metrics: Metrics) -> Iterator[tuple[str, float]]:
    """Yield the metrics that measure something: numbers, but no counts and no moments of this run."""
    for name, value in metrics.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and name not in _COUNTS and not _is_moment(run, value):
            yield name, value


def _is_moment(run: TrainingRun, value: Any) -> bool:
    """Return whether a metric is a Unix time, such as when a validation began; the record has it."""
    return isinstance(value, float) and abs(value - run.started_at) < _DAY < run.started_at


def _metrics_text(run: TrainingRun, metrics: Metrics, most: int = 4) -> str:
    lasting = {name: value for name, value in metrics.items() if not _is_moment(run, value)}
    return short_metrics(lasting, most)


def _changes(run: TrainingRun) -> str:
    """Return restarts, what they cost, and the numbers of workers over time: ``2 → 1 (00:41) workers``."""
    text = ""
    if run.workers.restarts:
        text = f"workers started again {run.workers.restarts} ×"
    if run.repeated:
        text += f", {plural(run.repeated, 'step')} trained twice"
    if len(run.sizes) < 2:
        return text
    sizes = [f"{workers} ({clock(at - run.started_at)})" for at, workers in run.sizes]
    sizes[0] = str(run.sizes[0][1])
    return joined(text, f"{' → '.join(sizes)} workers")


def _no_batch(run: TrainingRun) -> str:
    """Return which ranks had no batch: a shard without rows."""
    if not run.empty:
        return ""
    ranks = " and ".join(f"rank {rank}" for rank in sorted(run.empty)[:3])
    return f"{ranks} got no batch: its shard is empty (fewer rows than workers?)"


def _result(run: TrainingRun, *, has_strip: bool) -> str:
    """Return ``loss 0.141 · accuracy 0.967 · 18.1 k rows/s · 10 checkpoints · 3 kept``."""
    validated = run.validated()
    metrics = {name: value for name, value in run.metrics().items() if name not in validated}
    reported = _metrics_text(run, metrics)
    if reported and run.validates:
        reported = f"reported {reported}"
    decided = _metrics_text(run, validated)
    waiting = run.waiting_share() or 0.0
    shows_waiting = waiting >= 0.005 and not has_strip
    return joined(
        reported,
        f"validated {decided}" if decided else "",
        _rate(run),
        f"{waiting:.0%} of each epoch waiting for data" if shows_waiting else "",
        *_checkpoint_counts(run),
    )


def _checkpoint_counts(run: TrainingRun) -> Iterator[str]:
    """Yield ``10 checkpoints``, ``3 kept``, ``9 validated``, as far as there are any."""
    statuses = [checkpoint.status for checkpoint in run.checkpoints]
    if statuses:
        yield plural(len(statuses), "checkpoint")
    if run.kept < len(statuses):
        yield f"{run.kept} kept"
    for status, text in {**_DECISIONS, "pending": "not validated yet"}.items():
        if status in statuses:
            yield f"{statuses.count(status)} {text}"


def _log(run: TrainingRun) -> Iterator[tuple[tuple, str]]:
    """Yield lines of a log: each phase until the first report, each report, each decided checkpoint."""
    # Loading and training alternate in every epoch; once each is news, after that the epochs are.
    if not run.history:
        for name in run.phases:
            yield ("phase", name), _PHASES.get(name, name)
    for index in range(len(run.history))[-_REPORTS_LOGGED:]:
        yield ("report", index), _report_line(run, index)
    for checkpoint in run.checkpoints:
        if checkpoint.status in _DECISIONS:
            detail = _metrics_text(run, checkpoint.late) or checkpoint.reason
            line = f"{checkpoint.label}: {_DECISIONS[checkpoint.status]} {detail}"
            yield ("decided", checkpoint.path), line.rstrip()


def _report_line(run: TrainingRun, index: int) -> str:
    """Return ``epoch 3/10 · loss 0.141 · 18.1 k rows/s``."""
    report = run.history[index]
    metrics = _metrics_text(run, report)
    if run.counts_steps:  # its step is among the metrics
        return joined(metrics, _rate(run))
    reported = run.reports[index].epoch
    done = report["epoch"] + 1
    if reported is not None and reported % 1:
        done = reported
    epoch = f"epoch {epochs_in_words(done)}"
    if report["epoch"] < (run.epochs or 0):
        epoch += f"/{run.epochs}"
    return joined(epoch, metrics, _rate(run))


def _rate(run: TrainingRun) -> str:
    rate = run.rows_per_second()
    return f"{count(rate)} rows/s" if rate >= 1 else ""


def _ranked(names: Iterable[str]) -> list[str]:
    """Return the most telling first: the loss, then an accuracy."""

    def order(name: str) -> tuple[bool, bool, str]:
        return name != "loss", "accuracy" not in name, name

    return sorted(names, key=order)
