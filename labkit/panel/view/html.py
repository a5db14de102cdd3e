"""A run's state as HTML: pure functions, so that a live panel, a saved notebook and a test draw the same.

Only JupyterLab's own CSS variables are used, each with a fallback that is legible on white and on black
for places without them (an HTML export, another front end). Colour never stands alone: a word says it too.
"""

from html import escape

from labkit.display import formatting
from labkit.display.style import STYLE
from labkit.panel.state.checkpoints import CheckpointState
from labkit.panel.state.run import RunState
from labkit.panel.state.workers import WorkerState
from labkit.panel.view import curve as curve_svg
from labkit.panel.view import gantt as gantt_svg
from labkit.panel.view import phrases as wording

_CHECKPOINTS_SHOWN = 4
_VALIDATED_SHOWN = 6  # of a run that validates beside its training: their metrics come late
_WORKERS_SHOWN = 8
_PHASES_SHOWN = 8
_TEXT_SHOWN = 16_000  # characters of printed lines; all of them are in the logs
_FAILURE_SHOWN = 4_000

_STATUS_CLASS = {"finished": "lk-ok", "failed": "lk-bad", "stopped": "lk-wait", "running": "lk-dim"}
_CHECKPOINT_WORDS = {
    "committed": ("lk-ok", "✓ saved"),
    "pending": ("lk-wait", "○ waits for validation"),
    "validating": ("lk-wait", "● validating"),
    "validated": ("lk-ok", "✓ validated"),
    "failed": ("lk-bad", "✕ validation failed"),
    "timed out": ("lk-bad", "✕ timed out"),
}


def title(state: RunState) -> str:
    """Name and what it runs on: the left part of the panel's head."""
    return (
        f'<div class="labkit"><div class="lk-head"><b>{escape(_name(state))}</b>'
        f'<span class="lk-dim">{escape(wording.subtitle(state))}</span></div></div>'
    )


def clock_and_status(state: RunState, now: float, *, stopping: bool = False) -> str:
    """Elapsed time: the right part of the panel's head."""
    word = "stopping … " if stopping and state.status == "running" else ""
    words = word + formatting.clock(state.elapsed(now))
    return f'<div class="labkit"><span class="lk-dim lk-num">{words}</span></div>'


def body(state: RunState, now: float) -> str:
    """The panel while the run lasts: phases, bar, figures, checkpoints; the curve and the workers."""
    left = _steps(state, now) + _bar(state, now) + _tiles(state, now)
    left += _checkpoints(state, now) if state.checkpoints else ""
    right = curve_svg.draw(state) + _workers(state)
    return (
        f'<div class="labkit lk-rule"><div class="lk-body"><div class="lk-main">{left}</div>'
        f"<div>{right}</div></div>{_timeline(state, now)}</div>"
    )


def details(state: RunState, *, output: bool, logs: list[tuple[str, str]] | None = None) -> str:
    """What the panel's toggles open: printed lines, and where the logs lie."""
    parts = []
    if output:
        text = _printed(state) or "nothing was printed so far"
        parts.append(f'<pre class="lk-rule">{escape(text)}</pre>')
    if logs is not None:
        rows = "".join(
            f"<tr><td>{escape(what)}</td><td><code>{escape(path)}</code></td></tr>" for what, path in logs
        )
        parts.append(f'<div class="lk-text lk-rule"><table>{rows}</table></div>')
    return f'<div class="labkit">{"".join(parts)}</div>' if parts else ""


def summary(state: RunState, *, logs: list[tuple[str, str]] | None = None, record: str | None = None) -> str:
    """What stays in the notebook when the run is over: no script, no widget, legible without our style."""
    head = (
        f'<div class="lk-head"><b>{escape(_name(state))}</b>'
        f'<span class="{_STATUS_CLASS.get(state.status, "lk-dim")}">{escape(_outcome(state))}</span>'
        f'<span class="lk-dim">{escape(_spent(state))}</span></div>'
    )
    parts = [head]
    if state.status == "failed" and state.failures:
        parts.append(f'<pre class="lk-rule">{escape(state.failures[-1].text[-_FAILURE_SHOWN:])}</pre>')
    else:
        parts.append(f'<div class="lk-rule lk-text">{escape(_result(state))}</div>')
    if len(state.curve) > 1 or len(state.history) > 1 or gantt_svg.has_something(state):
        table = _checkpoints(state, state.ended_at) if state.checkpoints else _tiles(state, state.ended_at)
        parts.append(
            f'<div class="lk-body lk-rule"><div>{table}</div><div>{curve_svg.draw(state)}</div></div>'
        )
    parts.append(_timeline(state, state.ended_at))
    if state.prints:
        parts.append(
            f'<details class="lk-rule lk-text"><summary>{state.printed} printed line'
            f"{'s' * (state.printed != 1)}</summary><pre>{escape(_printed(state))}</pre></details>"
        )
    links = list(logs or []) + ([("run record", record)] if record else [])
    if links:
        rows = "".join(f"<tr><td>{escape(w)}</td><td><code>{escape(p)}</code></td></tr>" for w, p in links)
        parts.append(
            f'<details class="lk-rule lk-text"><summary>files</summary><table>{rows}</table></details>'
        )
    return f'{STYLE}<div class="labkit lk-card">{"".join(parts)}</div>'


def _name(state: RunState) -> str:
    return formatting.short(state.name, 80)


def _printed(state: RunState) -> str:
    """The last printed lines, as many as a notebook can carry."""
    lines = list(state.prints)
    while lines and sum(map(len, lines)) > _TEXT_SHOWN:
        del lines[: len(lines) // 4 + 1]
    if state.printed > len(lines):
        lines.insert(0, f"… {state.printed - len(lines)} lines before these are in the logs")
    return "\n".join(lines)


def _outcome(state: RunState) -> str:
    if state.status == "failed" and state.failures:
        failure = state.failures[-1]
        epoch = f" in epoch {failure.epoch + 1}" if failure.epoch is not None else ""
        rank = f", rank {failure.rank}" if state.world_size > 1 and failure.rank is not None else ""
        return f"failed{epoch}{rank}"
    return {"stopped": "stopped by you"}.get(state.status, state.status)


def _spent(state: RunState) -> str:
    done = len(state.epoch_seconds)
    epochs = f"{done} epoch{'s' * (done != 1)} in " if done else "after "
    again = f" · workers started again {state.restarts} ×" if state.restarts else ""
    return f"{epochs}{formatting.clock(state.elapsed())}: {wording.time_spent(state)}{again}"


def _result(state: RunState) -> str:
    parts = [formatting.short_metrics(state.metrics())]
    if state.rows_per_second() >= 1:
        parts.append(f"{formatting.count(state.rows_per_second())} rows/s")
    waiting = state.waiting_share()
    if waiting is not None and waiting >= 0.005:
        parts.append(f"{waiting:.0%} of each epoch waiting for data")
    if state.checkpoints:
        count, kept = len(state.checkpoints), state.checkpoints.kept
        parts.append(f"{count} checkpoint" + "s" * (count != 1) + (f", {kept} kept" if kept < count else ""))
        parts += wording.validations(state)
    if state.note:
        parts.insert(0, state.note)
    return " · ".join(part for part in parts if part) or "nothing was reported"


def _steps(state: RunState, now: float) -> str:
    """The phases passed, as one line; loading and training alternate, so each name stands once."""
    spent = state.spent(now)
    names = list(spent)
    shown = [name for name in names if name in names[-_PHASES_SHOWN:] or name == state.phase]
    marks = ['<span class="lk-dim">…</span>'] if len(shown) < len(names) else []
    for name in shown:
        text = f"{escape(formatting.short(wording.PHASES.get(name, name)))} {formatting.seconds(spent[name])}"
        if name == state.phase and state.status == "running":
            marks.append(f'<span class="lk-now">● {text}</span>')
        else:
            marks.append(f'<span class="lk-ok">✓ {text}</span>')
    return f'<div class="lk-steps lk-num">{"".join(marks)}</div>'


def _bar(state: RunState, now: float) -> str:
    done = state.fraction()
    text = f'<div class="lk-dim lk-num" style="margin-top:8px">{escape(wording.headline(state, now))}</div>'
    if done is None:
        # Nobody knows how long this takes: the bar says so instead of standing at nothing.
        return f'{text}<div class="lk-bar lk-unknown"><i style="width:100%"></i></div>'
    return f'{text}<div class="lk-bar"><i style="width:{done * 100:.1f}%"></i></div>'


def _tiles(state: RunState, now: float) -> str:
    metrics = {n: v for n, v in state.metrics().items() if isinstance(v, (int, float))}
    names = curve_svg.ranked(metrics)
    if not state.history or not metrics:  # nothing was reported yet: most trainings report these two
        names += [name for name in ("loss", "accuracy") if name not in metrics]
    tiles = [
        (formatting.number(metrics.get(name, formatting.UNKNOWN)), formatting.short(name, 24))
        for name in names[:2]
    ]
    tiles.append(
        (formatting.count(state.rows_per_second()) if state.first_step_at else formatting.UNKNOWN, "rows/s")
    )
    waiting = state.waiting_share()
    tiles.append((f"{waiting:.0%}" if waiting is not None else formatting.UNKNOWN, "waiting for data"))
    cells = "".join(f'<div><b>{escape(v)}</b><span class="lk-dim">{escape(n)}</span></div>' for v, n in tiles)
    return f'<div class="lk-tiles">{cells}</div>'


def _timeline(state: RunState, now: float) -> str:
    if not gantt_svg.has_something(state):
        return ""
    return f'<div class="lk-rule lk-timeline">{gantt_svg.draw(state, now)}</div>'


def _checkpoints(state: RunState, now: float) -> str:
    most = _VALIDATED_SHOWN if gantt_svg.has_something(state) else _CHECKPOINTS_SHOWN
    rows = "".join(_checkpoint(c, state, now) for c in reversed(state.checkpoints[-most:]))
    more = len(state.checkpoints) - most
    rows += f'<tr><td class="lk-dim" colspan="4">and {more} before these</td></tr>' if more > 0 else ""
    return f"<table><tr><th>checkpoint</th><th>size</th><th>metrics</th><th>status</th></tr>{rows}</table>"


def _checkpoint(checkpoint: CheckpointState, state: RunState, now: float) -> str:
    kind, words = _CHECKPOINT_WORDS.get(checkpoint.status, ("lk-dim", checkpoint.status))
    if checkpoint.validating and state.status == "running":
        kind, words = _CHECKPOINT_WORDS["validating"]
        words += f" {formatting.seconds(now - (checkpoint.begun_at or now))}"
    elif checkpoint.status == "pending" and state.status != "running":
        words = "○ not validated yet"
    elif checkpoint.late:
        words = f"✓ {formatting.short_metrics(checkpoint.late, 2)}"
    elif checkpoint.status == "timed out" and checkpoint.begun_at and checkpoint.decided_at:
        words += f" after {formatting.seconds(checkpoint.decided_at - checkpoint.begun_at)}"
    elif checkpoint.status == "failed" and checkpoint.reason:
        words += f": {formatting.short(checkpoint.reason, 60)}"
    if checkpoint.deleted:
        kind, words = "lk-dim", "deleted" if checkpoint.status == "committed" else f"{words} · deleted"
    given = {name: value for name, value in checkpoint.metrics.items() if name not in checkpoint.late}
    return (
        f"<tr><td>{escape(checkpoint.label)}</td>"
        f'<td style="white-space:nowrap">{formatting.size(checkpoint.bytes)}</td>'
        f'<td style="white-space:nowrap">{escape(formatting.short_metrics(given, 2))}</td>'
        f'<td class="{kind}">{escape(words)}</td></tr>'
    )


def _workers(state: RunState) -> str:
    if not state.workers:
        return ""
    ranks = sorted(state.workers)
    rows = "".join(_worker(state.workers[rank]) for rank in ranks[:_WORKERS_SHOWN])
    more = len(ranks) - _WORKERS_SHOWN
    rows += f'<tr><td class="lk-dim" colspan="4">and {more} more</td></tr>' if more > 0 else ""
    return f"<table><tr><th>rank</th><th>node</th><th>pid</th><th>step</th></tr>{rows}</table>"


def _worker(worker: WorkerState) -> str:
    step = f"{worker.step}" if worker.seconds else formatting.UNKNOWN
    return (
        f"<tr><td>{worker.rank}</td><td>{escape(worker.node)}</td><td>{worker.pid}</td><td>{step}</td></tr>"
    )
