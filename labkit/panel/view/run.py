"""How a training looks: one snapshot of its state, the live panel, and the summary that stays."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from markupsafe import Markup

from labkit.display import cards
from labkit.display.formatting import count, duration, short_metrics
from labkit.panel.state.checkpoints import DECIDED
from labkit.panel.state.run import RunState
from labkit.panel.view import phrases
from labkit.panel.view.base import Snapshot, View
from labkit.panel.view.charts import Bar, Series, curve, series_of, timeline, timeline_of

_CHECKPOINTS_SHOWN = 4
_VALIDATED_SHOWN = 6  # of a run that validates: their metrics come late
_WORKERS_SHOWN = 8
_REPORTS_TOLD = 200  # of the latest, at each drawing
_CHECKPOINT_HEAD = ("checkpoint", "size", "metrics", "status")
_WORKER_HEAD = ("rank", "node", "pid", "step")

Rows = tuple[tuple[tuple[str, ...], ...], int]


@dataclass(frozen=True, kw_only=True)
class RunSnapshot(Snapshot):
    """What a training's panel says, in words.

    Attributes:
        steps: (kind, words) of the phases, in the order in which they first came.
        headline, fraction: where it is, and the share of all steps that are done, if known.
        tiles: (value, name).
        series: at most two metrics, for the curve; `epochs` is the end of its axis, if known.
        checkpoints, workers: rows of their tables, the newest checkpoint first, and how many more there are.
        bars: the time axis of a run that validates; else empty.
        spent, times, came_out, failed_in, remark: of the summary.
        reports: lines for a log, each with its key.
    """

    steps: tuple[tuple[str, str], ...]
    headline: str
    fraction: float | None
    tiles: tuple[tuple[str, str], ...]
    series: tuple[Series, ...]
    epochs: int | None
    checkpoints: Rows
    workers: Rows
    bars: tuple[Bar, ...]
    spent: str
    times: str
    came_out: str
    failed_in: str
    remark: str
    reports: tuple[tuple[Hashable, str], ...]


class RunView(View):
    """Draws a training."""

    def snapshot(self, state: RunState, now: float) -> RunSnapshot:
        now = state.ended_at or now
        return RunSnapshot(
            **self.common(state, now, phrases.subtitle(state)),
            steps=tuple(phrases.steps(state, now)),
            headline=phrases.headline(state, now),
            fraction=state.fraction(),
            tiles=tuple(phrases.tiles(state)),
            series=series_of(state),
            epochs=state.epochs,
            checkpoints=_checkpoints(state, now),
            workers=_workers(state),
            bars=timeline_of(state, now),
            spent=phrases.spent(state),
            times=phrases.time_spent(state),
            came_out=phrases.result(state),
            failed_in=phrases.failed_in(state),
            remark=state.note,
            reports=tuple(_reports(state)),
        )

    def body(self, snapshot: RunSnapshot) -> Markup:
        left = cards.steps(snapshot.steps) + cards.bar(snapshot.headline, snapshot.fraction)
        left += cards.tiles(snapshot.tiles)
        left += _table(_CHECKPOINT_HEAD, snapshot.checkpoints)
        right = curve(snapshot.series, snapshot.epochs) + _table(_WORKER_HEAD, snapshot.workers)
        return cards.columns(left, right) + _timeline(snapshot)

    def figures(self, snapshot: RunSnapshot) -> Markup:
        if not (snapshot.bars or any(len(one.points + one.steps) > 2 for one in snapshot.series)):
            return cards.NOTHING
        left = _table(_CHECKPOINT_HEAD, snapshot.checkpoints) or cards.tiles(snapshot.tiles)
        return cards.columns(left, curve(snapshot.series, snapshot.epochs)) + _timeline(snapshot)

    def result(self, snapshot: RunSnapshot) -> str:
        return snapshot.came_out

    def note(self, snapshot: RunSnapshot) -> str:
        return snapshot.spent

    def outcome(self, snapshot: RunSnapshot) -> str:
        return f"failed{snapshot.failed_in}" if snapshot.status == "failed" else super().outcome(snapshot)

    def news(self, snapshot: RunSnapshot) -> Iterator[tuple[Hashable, str]]:
        return iter(snapshot.reports)

    def last_line(self, snapshot: RunSnapshot) -> str:
        line = f"{snapshot.status} after {duration(snapshot.seconds)}"
        line += f": {snapshot.times}" if snapshot.times else ""
        return f"{line} · {snapshot.remark}" if snapshot.remark else line


def _table(head: tuple[str, ...], rows: Rows) -> Markup:
    return cards.table(head, rows[0], more=rows[1]) if rows[0] else cards.NOTHING


def _timeline(snapshot: RunSnapshot) -> Markup:
    return cards.rule(timeline(snapshot.bars)) if snapshot.bars else cards.NOTHING


def _checkpoints(state: RunState, now: float) -> Rows:
    most = _VALIDATED_SHOWN if state.spans.row("validation") else _CHECKPOINTS_SHOWN
    shown = [phrases.checkpoint(one, state, now) for one in reversed(state.checkpoints[-most:])]
    return tuple(shown), len(state.checkpoints) - len(shown)


def _workers(state: RunState) -> Rows:
    shown = [phrases.worker(state.workers[rank]) for rank in sorted(state.workers)[:_WORKERS_SHOWN]]
    return tuple(shown), len(state.workers) - len(shown)


def _reports(state: RunState) -> Iterator[tuple[Hashable, str]]:
    """The lines of a log: each phase until the first report, each epoch, each decided checkpoint."""
    # Loading and training alternate in every epoch; once each is news, after that the epochs are.
    for name in state.phase_seconds() if not state.history else ():
        yield ("phase", name), phrases.PHASES.get(name, name)
    first = max(len(state.history) - _REPORTS_TOLD, 0)
    of = f"/{state.epochs}" if state.epochs else ""
    rate = state.rows_per_second()
    for number, report in enumerate(state.history[first:], first):
        parts = [f"epoch {report['epoch'] + 1:g}{of}", short_metrics(report)]
        parts += [f"{count(rate)} rows/s"] if rate >= 1 else []
        yield ("report", number), " · ".join(part for part in parts if part)
    for one in state.checkpoints:
        if one.status in DECIDED:
            words = short_metrics(one.late) or one.reason
            yield ("decided", one.path), f"{one.label}: {phrases.DECISIONS[one.status]} {words}".rstrip()
