"""How a training looks: the live panel, the summary that stays, and its lines in a log."""

from collections.abc import Hashable, Iterator

from markupsafe import Markup

from labkit.display import cards
from labkit.display.formatting import (
    UNKNOWN,
    clock,
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
from labkit.panel.view.base import View
from labkit.panel.view.charts import COUNTS, curve, ranked, timeline

_CHECKPOINTS_SHOWN = 6
_WORKERS_SHOWN = 8
_PHASES_SHOWN = 8
_REPORTS_TOLD = 20  # of the latest, at each drawing
_PHASES = {"starting": "starting workers", "loading": "loading data"}
_SAID = {"validated": "validated", "failed": "validation failed", "timed out": "timed out"}
_STATUSES = {
    "committed": ("ok", "✓ saved"),
    "pending": ("wait", "○ waits for validation"),
    "validated": ("ok", "✓ validated"),
    "failed": ("bad", "✕ validation failed"),
    "timed out": ("bad", "✕ timed out"),
}


class RunView(View):
    def subtitle(self, state: RunState) -> str:
        """``Ray Train · 2 workers · digits · 1,437 rows``."""
        workers = plural(state.world_size, "worker") if state.engine != "one process" else ""
        rows = f"{state.rows:,} rows" if state.rows else ""
        return _joined(state.engine, workers, state.dataset, rows)

    def body(self, state: RunState, now: float) -> Markup:
        left = cards.steps(_steps(state, now)) + cards.bar(headline(state, now), state.fraction())
        left += cards.tiles(tiles(state)) + _workers(state) + _checkpoints(state, now)
        if state.hang:
            silent = cards.mark("wait", f"nothing heard for {seconds(now - state.heard_at)}")
            left += cards.part(silent, cards.pre("\n".join(state.hang)))
        for told in filter(None, (_changes(state), state.undefined, state.silence, _empty(state))):
            left += cards.part(cards.mark("wait", told))
        return cards.columns(left, curve(state)) + _timeline(state, now)

    def figures(self, state: RunState) -> Markup:
        spans = _timeline(state, state.ended_at)
        if not spans and len(state.curve) + len(state.history) < 3:
            return cards.NOTHING
        left = _checkpoints(state, state.ended_at) or cards.tiles(tiles(state))
        return cards.columns(left, curve(state)) + spans

    def result(self, state: RunState) -> str:
        """``loss 0.141 · accuracy 0.967 · 18.1 k rows/s · 10 checkpoints, 3 kept``."""
        rate, waiting, saved = state.rows_per_second(), state.waiting_share() or 0.0, state.checkpoints
        found = [one.status for one in saved]
        words = {**_SAID, "pending": "not validated yet"}
        return _joined(
            state.note,
            state.undefined,
            short_metrics(state.metrics()),
            f"{count(rate)} rows/s" if rate >= 1 else "",
            f"{waiting:.0%} of each epoch waiting for data" if waiting >= 0.005 else "",
            plural(len(saved), "checkpoint") if saved else "",
            f"{saved.kept} kept" if saved.kept < len(saved) else "",
            *(f"{found.count(status)} {said}" for status, said in words.items() if status in found),
        )

    def outcome(self, state: RunState) -> str:
        """``failed in epoch 3, rank 1``, as far as that is known."""
        if state.status != "failed" or not state.failures or state.failures[-1].rank is None:
            return super().outcome(state)
        rank = state.failures[-1].rank
        epoch = f" in epoch {state.workers[rank].epoch + 1}" if rank in state.workers else ""
        return f"failed{epoch}" + (f", rank {rank}" if state.world_size > 1 else "")

    def note(self, state: RunState) -> str:
        """``10 epochs in 01:41: start 8.1 s · data 2.0 s · training 84 s``."""
        done = len(state.epoch_seconds)
        epochs = f"{plural(done, 'epoch')} in" if done else "after"
        return _joined(f"{epochs} {duration(state.elapsed())}{_spent(state)}", _changes(state))

    def news(self, state: RunState) -> Iterator[tuple[Hashable, str]]:
        """Each phase until the first report, each epoch, each decided checkpoint."""
        # Loading and training alternate in every epoch; once each is news, after that the epochs are.
        for name in state.phase_seconds() if not state.history else ():
            yield ("phase", name), _PHASES.get(name, name)
        rate = f"{count(state.rows_per_second())} rows/s" if state.rows_per_second() >= 1 else ""
        for number_, report in list(enumerate(state.history))[-_REPORTS_TOLD:]:
            # A loop that counts steps has its step among the metrics.
            of = f"/{state.epochs}" if report["epoch"] < (state.epochs or 0) else ""
            epoch = "" if state.counts_steps else f"epoch {report['epoch'] + 1}{of}"
            yield ("report", number_, report["epoch"]), _joined(epoch, short_metrics(report), rate)
        for told in filter(None, (state.undefined, state.silence, _empty(state))):
            yield ("told", told), told
        for number_, line in enumerate(state.hang):
            yield ("hang", state.heard_at, number_), line
        for one in state.checkpoints:
            if one.status in _SAID:
                words = short_metrics(one.late) or one.reason
                yield ("decided", one.path), f"{one.label}: {_SAID[one.status]} {words}".rstrip()

    def last_line(self, state: RunState) -> str:
        return _joined(f"{super().last_line(state)}{_spent(state)}", state.note, state.undefined)


def headline(state: RunState, now: float) -> str:
    """Where the run is: ``epoch 7 of 10 · step 14 of 22 · about 19 s left``."""
    worker, pending = state.workers.leader, state.checkpoints.pending
    if worker is None or not state.first_step_at:
        return short(_PHASES.get(state.phase, state.phase))
    if pending and state.fraction() == 1.0:
        return f"all epochs are trained · {plural(pending, 'validation')} left"
    left, of = state.eta(now), f" of {state.epochs}" if state.epochs and not state.exceeds else ""
    # A run that is between two epochs is drawn at the end of the first.
    return _joined(
        "" if state.counts_steps else f"epoch {worker.epoch + 1}{of}",
        f"step {state.made} of {state.steps}"
        if state.steps
        else f"step {worker.step}" + (f" of {worker.total}" if worker.total else ""),
        "" if left is None else f"about {seconds(left)} left" if left >= 1 else "nearly done",
    )


def tiles(state: RunState) -> list[tuple[str, str]]:
    """(value, name): the two most telling metrics of those that are reported, rows per second, waiting."""
    reported = {name for report in state.history for name in report}
    metrics = {
        name: value
        for name, value in state.metrics().items()
        if isinstance(value, int | float) and name not in COUNTS
    }
    shown = {name: value for name, value in metrics.items() if name in reported} or metrics
    waiting = state.waiting_share()
    return [
        *((number(shown[name]), short(name, 24)) for name in ranked(shown)[:2]),
        (count(state.rows_per_second()) if state.first_step_at and state.fed else UNKNOWN, "rows/s"),
        (UNKNOWN if waiting is None else f"{waiting:.0%}", "waiting for data"),
    ]


def _workers(state: RunState) -> Markup:
    """A table of the first ones."""
    workers = [state.workers[rank] for rank in sorted(state.workers)]
    slowest = state.workers.slowest
    rows = [_worker(one, slowest=one is slowest) for one in workers[:_WORKERS_SHOWN]]
    names = ("rank", "node", "pid", "step", "rows/s", "waiting", "memory")
    return cards.table(names, rows, more=len(workers) - len(rows)) if rows else cards.NOTHING


def _worker(one: WorkerState, *, slowest: bool) -> tuple[str, ...]:
    """A row of the table of workers; the one that holds up the others is marked."""
    rate, waits = UNKNOWN, UNKNOWN
    if one.seconds > 0:
        rate, waits = count(one.rows_per_second), f"{one.waiting_share:.0%}"
    rank = cards.mark("wait", f"{one.rank} slow") if slowest else str(one.rank)
    memory = size(one.memory)
    if one.gpu_memory is not None:
        use = "" if one.gpu_percent is None else f" {one.gpu_percent}%"
        memory += f", GPU {size(one.gpu_memory)}{use}"
    return rank, one.node, str(one.pid), str(one.step) if one.begun else UNKNOWN, rate, waits, memory


def _changes(state: RunState) -> str:
    """Restarts, what they cost, and the numbers of workers over time: ``2 → 1 (00:41) workers``."""
    again = f"workers started again {state.workers.restarts} ×" if state.workers.restarts else ""
    again += f", {plural(state.repeated, 'step')} trained twice" if state.repeated else ""
    sizes = " → ".join(f"{n} ({clock(at - state.started_at)})" for at, n in state.sizes[1:])
    return _joined(again, f"{state.sizes[0][1]} → {sizes} workers" if sizes else "")


def _empty(state: RunState) -> str:
    """Which ranks had no batch: a shard without rows."""
    ranks = " and ".join(f"rank {rank}" for rank in sorted(state.empty)[:3])
    return f"{ranks} got no batch: its shard is empty (fewer rows than workers?)" if ranks else ""


def _steps(state: RunState, now: float) -> Iterator[tuple[str, str]]:
    """The phases passed, as (kind, words); loading and training alternate, so each name appears once."""
    for name, spent in list(state.phase_seconds(now).items())[-_PHASES_SHOWN:]:
        words = f"{short(_PHASES.get(name, name))} {seconds(spent)}"
        yield ("now", f"● {words}") if name == state.phase else ("ok", f"✓ {words}")


def _checkpoints(state: RunState, now: float) -> Markup:
    rows = []
    for one in reversed(state.checkpoints[-_CHECKPOINTS_SHOWN:]):
        given = {name: value for name, value in one.metrics.items() if name not in one.late}
        status = cards.mark(*_status(one, now, over=state.over))
        rows.append((one.label, size(one.bytes), short_metrics(given, 2), status))
    more = len(state.checkpoints) - len(rows)
    return (
        cards.table(("checkpoint", "size", "metrics", "status"), rows, more=more) if rows else cards.NOTHING
    )


def _status(one: CheckpointState, now: float, *, over: bool) -> tuple[str, str]:
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


def _timeline(state: RunState, now: float) -> Markup:
    spans = state.timeline(now)
    return cards.rule(timeline(spans)) if spans else cards.NOTHING


def _spent(state: RunState) -> str:
    """``: start 8.1 s · data 2.0 s · training 84 s``: what took at least a twentieth of a second."""
    parts = [f"{name} {seconds(value)}" for name, value in state.time_breakdown().items() if value >= 0.05]
    return f": {' · '.join(parts)}" if parts else ""


def _joined(*parts: str | None) -> str:
    return " · ".join(part for part in parts if part)
