"""States of a training in words, the same in the live panel, the summary and the log."""

from collections.abc import Iterator

from labkit.display import cards
from labkit.display.formatting import (
    UNKNOWN,
    count,
    duration,
    number,
    plural,
    seconds,
    short,
    short_metrics,
    size,
)  # fmt: skip
from labkit.panel.state.checkpoints import CheckpointState
from labkit.panel.state.run import RunState
from labkit.panel.state.workers import WorkerState
from labkit.panel.view.charts import ranked

PHASES = {"starting": "starting workers", "loading": "loading data"}
DECISIONS = {"validated": "validated", "failed": "validation failed", "timed out": "validation timed out"}

_PHASES_SHOWN = 8
_CHECKPOINT = {
    "committed": ("ok", "✓ saved"),
    "pending": ("wait", "○ waits for validation"),
    "validated": ("ok", "✓ validated"),
    "failed": ("bad", "✕ validation failed"),
    "timed out": ("bad", "✕ timed out"),
}


def subtitle(state: RunState) -> str:
    """``Ray Train · 2 workers · digits · 1,437 rows``."""
    parts = [state.engine]
    parts += [plural(state.world_size, "worker")] if state.engine != "one process" else []
    parts += [state.dataset] if state.dataset else []
    parts += [f"{state.rows:,} rows"] if state.rows else []
    return " · ".join(parts)


def headline(state: RunState, now: float) -> str:
    """Where the run is: ``epoch 7 of 10 · step 14 of 22 · about 19 s left``."""
    worker = state.leader
    if worker is None or not state.first_step_at:
        return short(PHASES.get(state.phase, state.phase))
    running = state.status == "running"
    if pending := state.checkpoints.pending if running and state.fraction() == 1.0 else 0:
        return f"all epochs are trained · {plural(pending, 'validation')} left"
    # A run that is between two epochs stands at the end of the first.
    parts = [f"epoch {worker.epoch + 1}" + (f" of {state.epochs}" if state.epochs else "")]
    parts.append(f"step {worker.step}" + (f" of {worker.total}" if worker.total else ""))
    left = state.eta(now)
    if left is not None and running:
        parts.append(f"about {seconds(left)} left" if left >= 1 else "nearly done")
    return " · ".join(parts)


def steps(state: RunState, now: float) -> Iterator[tuple[str, str]]:
    """The phases passed, as (kind, words); loading and training alternate, so each name stands once."""
    spent = state.phase_seconds(now)
    names = list(spent)
    shown = [name for name in names if name in names[-_PHASES_SHOWN:] or name == state.phase]
    if len(shown) < len(names):
        yield "dim", "…"
    for name in shown:
        words = f"{short(PHASES.get(name, name))} {seconds(spent[name])}"
        is_now = name == state.phase and state.status == "running"
        yield ("now", f"● {words}") if is_now else ("ok", f"✓ {words}")


def tiles(state: RunState) -> Iterator[tuple[str, str]]:
    """(value, name): the two most telling metrics of those that are reported, rows per second, waiting."""
    reported = {name for report in state.history for name in report}
    metrics = {name: value for name, value in state.metrics().items() if isinstance(value, int | float)}
    of_reports = {name: value for name, value in metrics.items() if name in reported}
    shown = of_reports or metrics
    for name in ranked(shown)[:2]:
        yield number(shown[name]), short(name, 24)
    yield (count(state.rows_per_second()) if state.first_step_at else UNKNOWN), "rows/s"
    waiting = state.waiting_share()
    yield (f"{waiting:.0%}" if waiting is not None else UNKNOWN), "waiting for data"


def checkpoint(one: CheckpointState, state: RunState, now: float) -> tuple[str, ...]:
    """A row: label, size, metrics, status."""
    kind, words = _CHECKPOINT.get(one.status, ("dim", one.status))
    if one.validating and state.status == "running":
        kind, words = "wait", f"● validating {seconds(now - (one.begun_at or now))}"
    elif one.status == "pending" and state.status != "running":
        words = "○ not validated yet"
    elif one.late:
        words = f"✓ {short_metrics(one.late, 2)}"
    elif one.status == "timed out" and one.begun_at and one.decided_at:
        words += f" after {seconds(one.decided_at - one.begun_at)}"
    elif one.status == "failed" and one.reason:
        words += f": {short(one.reason, 60)}"
    if one.deleted:
        kind, words = "dim", "deleted" if one.status == "committed" else f"{words} · deleted"
    given = {name: value for name, value in one.metrics.items() if name not in one.late}
    return one.label, size(one.bytes), short_metrics(given, 2), cards.mark(kind, words)


def worker(one: WorkerState) -> tuple[str, ...]:
    """A row: rank, node, pid, step."""
    return str(one.rank), one.node, str(one.pid), str(one.step) if one.seconds else UNKNOWN


def validations(state: RunState) -> list[str]:
    """``["3 validated", "1 validation failed"]``: how many there are of each."""
    words = {
        "validated": "validated",
        "failed": "validation failed",
        "timed out": "timed out",
        "pending": "waits for validation" if state.status == "running" else "not validated yet",
    }
    found = [checkpoint.status for checkpoint in state.checkpoints]
    return [f"{found.count(status)} {said}" for status, said in words.items() if status in found]


def time_spent(state: RunState) -> str:
    """``start 8.1 s · data 2.0 s · training 84 s``: what took at least a twentieth of a second."""
    parts = [f"{name} {seconds(value)}" for name, value in state.time_breakdown().items() if value >= 0.05]
    return " · ".join(parts)


def spent(state: RunState) -> str:
    """``10 epochs in 01:41: start 8.1 s · data 2.0 s · training 84 s``."""
    done = len(state.epoch_seconds)
    epochs = f"{plural(done, 'epoch')} in " if done else "after "
    again = f" · workers started again {state.restarts} ×" if state.restarts else ""
    parts = time_spent(state)
    return f"{epochs}{duration(state.elapsed())}{': ' * bool(parts)}{parts}{again}"


def result(state: RunState) -> str:
    """``loss 0.141 · accuracy 0.967 · 18.1 k rows/s · 10 checkpoints, 3 kept``."""
    parts = [state.note, short_metrics(state.metrics())]
    if state.rows_per_second() >= 1:
        parts.append(f"{count(state.rows_per_second())} rows/s")
    waiting = state.waiting_share()
    if waiting is not None and waiting >= 0.005:
        parts.append(f"{waiting:.0%} of each epoch waiting for data")
    if state.checkpoints:
        kept = state.checkpoints.kept
        some = f", {kept} kept" if kept < len(state.checkpoints) else ""
        parts.append(plural(len(state.checkpoints), "checkpoint") + some)
        parts += validations(state)
    return " · ".join(part for part in parts if part)


def failed_in(state: RunState) -> str:
    """`` in epoch 3, rank 1``, if they are known."""
    if not state.failures:
        return ""
    failure = state.failures[-1]
    epoch = f" in epoch {failure.epoch + 1}" if failure.epoch is not None else ""
    rank = f", rank {failure.rank}" if state.world_size > 1 and failure.rank is not None else ""
    return epoch + rank
