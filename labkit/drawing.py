"""A run's state as HTML and SVG: pure functions, so that a live panel, a saved notebook and a test draw the same.

Only JupyterLab's own CSS variables are used, each with a fallback that is legible on white and on black
for places without them (an HTML export, another front end). Colour never stands alone: a word says it too.
"""

from html import escape

from labkit import wording
from labkit.progress import CheckpointState, RunState, WorkerState

__all__ = ["STYLE", "body", "clock_and_status", "details", "summary", "title"]

_WIDTH, _HEIGHT = 300, 132  # of the curve, in SVG units
_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 8, 8, 104
_CHECKPOINTS_SHOWN = 4
_WORKERS_SHOWN = 8

STYLE = """<style>
.labkit{--lk-fg:var(--jp-content-font-color1,inherit);--lk-dim:var(--jp-content-font-color2,#767676);
--lk-line:var(--jp-border-color2,#9996);--lk-fill:var(--jp-layout-color2,#9993);
--lk-main:var(--jp-brand-color1,#1976d2);--lk-ok:var(--jp-success-color1,#2e8b57);
--lk-wait:var(--jp-warn-color1,#b26a00);--lk-bad:var(--jp-error-color1,#d13438);
color:var(--lk-fg);font:13px/1.45 var(--jp-content-font-family,system-ui,sans-serif);max-width:880px}
.labkit *{box-sizing:border-box}
.labkit.lk-card{border:1px solid var(--lk-line);border-radius:6px;background:var(--jp-layout-color1,transparent)}
.labkit .lk-head{display:flex;flex-wrap:wrap;gap:2px 12px;align-items:baseline;padding:7px 12px}
.labkit .lk-head b{font-size:14px}.labkit .lk-dim{color:var(--lk-dim)}
.labkit .lk-ok{color:var(--lk-ok)}.labkit .lk-wait{color:var(--lk-wait)}.labkit .lk-bad{color:var(--lk-bad)}
.labkit .lk-rule{border-top:1px solid var(--lk-line)}
.labkit .lk-body{display:grid;grid-template-columns:minmax(0,1fr) 300px;gap:16px;padding:8px 12px 10px}
.labkit .lk-main{min-height:190px}
.labkit .lk-steps span{margin-right:14px;white-space:nowrap}.labkit .lk-now{font-weight:600}
.labkit .lk-bar{height:8px;border-radius:4px;background:var(--lk-fill);overflow:hidden;margin:4px 0 8px}
.labkit .lk-bar i{display:block;height:100%;background:var(--lk-main)}
.labkit .lk-bar.lk-unknown i{background:repeating-linear-gradient(135deg,var(--lk-main) 0 8px,transparent 8px 16px);opacity:.5}
.labkit .lk-tiles{display:grid;grid-template-columns:repeat(4,minmax(0,1fr));gap:8px;margin:6px 0 8px}
.labkit .lk-tiles div{border-left:2px solid var(--lk-line);padding-left:8px;white-space:nowrap;overflow:hidden}
.labkit .lk-tiles b{display:block;font-size:16px}
.labkit b,.labkit table,.labkit .lk-num{font-variant-numeric:tabular-nums}
.labkit table{border-collapse:collapse;width:100%;margin:0;font-size:13px;color:inherit;border:0}
.labkit td,.labkit th{text-align:left!important;padding:2px 8px 2px 0!important;font-weight:400;border:0;background:none;vertical-align:top}
.labkit th{color:var(--lk-dim)}.labkit tr{background:none!important}
.labkit svg{display:block;width:100%;height:auto}.labkit text{fill:var(--lk-dim);font-size:10px;
paint-order:stroke;stroke:var(--jp-layout-color1,transparent);stroke-width:3px}
.labkit pre{margin:0;padding:8px 12px;overflow:auto;max-height:260px;white-space:pre-wrap;color:inherit;background:none;
font:12px/1.5 var(--jp-code-font-family,ui-monospace,monospace)}
.labkit .lk-text{padding:6px 12px 8px;color:var(--lk-dim)}
.labkit code{font-size:12px;background:none;color:inherit;overflow-wrap:anywhere}
@media (max-width:720px){.labkit .lk-body{grid-template-columns:minmax(0,1fr)}.labkit .lk-tiles{grid-template-columns:repeat(2,1fr)}}
</style>"""

_STATUS_CLASS = {"finished": "lk-ok", "failed": "lk-bad", "stopped": "lk-wait", "running": "lk-dim"}
_CHECKPOINT_WORDS = {
    "committed": ("lk-ok", "✓ saved"),
    "pending": ("lk-wait", "● validating"),
    "validated": ("lk-ok", "✓ validated"),
    "failed": ("lk-bad", "✕ validation failed"),
    "timed out": ("lk-bad", "✕ timed out"),
}


def title(state: RunState) -> str:
    """Name and what it runs on: the left part of the panel's head."""
    return (
        f'<div class="labkit"><div class="lk-head"><b>{escape(state.name)}</b>'
        f'<span class="lk-dim">{escape(wording.subtitle(state))}</span></div></div>'
    )


def clock_and_status(state: RunState, now: float, *, stopping: bool = False) -> str:
    """Elapsed time: the right part of the panel's head."""
    word = "stopping … " if stopping and state.status == "running" else ""
    return f'<div class="labkit"><span class="lk-dim lk-num">{word}{wording.clock(state.elapsed(now))}</span></div>'


def body(state: RunState, now: float) -> str:
    """The panel while the run lasts: phases, bar, figures, checkpoints; the curve and the workers."""
    left = _steps(state, now) + _bar(state, now) + _tiles(state, now)
    left += _checkpoints(state) if state.checkpoints else ""
    right = _curve(state) + _workers(state)
    return (
        f'<div class="labkit lk-rule"><div class="lk-body"><div class="lk-main">{left}</div>'
        f"<div>{right}</div></div></div>"
    )


def details(state: RunState, *, output: bool, logs: list[tuple[str, str]] | None = None) -> str:
    """What the panel's toggles open: printed lines, and where the logs lie."""
    parts = []
    if output:
        lines = list(state.prints) or ["nothing was printed so far"]
        if state.printed > len(state.prints):
            lines.insert(0, f"… {state.printed - len(state.prints)} lines before these are in the logs")
        parts.append(f'<pre class="lk-rule">{escape(chr(10).join(lines))}</pre>')
    if logs is not None:
        rows = "".join(
            f"<tr><td>{escape(what)}</td><td><code>{escape(path)}</code></td></tr>" for what, path in logs
        )
        parts.append(f'<div class="lk-text lk-rule"><table>{rows}</table></div>')
    return f'<div class="labkit">{"".join(parts)}</div>' if parts else ""


def summary(state: RunState, *, logs: list[tuple[str, str]] | None = None, record: str | None = None) -> str:
    """What stays in the notebook when the run is over: no script, no widget, legible without our style."""
    head = (
        f'<div class="lk-head"><b>{escape(state.name)}</b>'
        f'<span class="{_STATUS_CLASS.get(state.status, "lk-dim")}">{escape(_outcome(state))}</span>'
        f'<span class="lk-dim">{escape(_spent(state))}</span></div>'
    )
    parts = [head]
    if state.status == "failed" and state.failures:
        parts.append(f'<pre class="lk-rule">{escape(state.failures[-1].text)}</pre>')
    else:
        parts.append(f'<div class="lk-rule lk-text">{escape(_result(state))}</div>')
    if len(state.curve) > 1 or len(state.history) > 1:
        table = _checkpoints(state) if state.checkpoints else _tiles(state, state.ended_at)
        parts.append(f'<div class="lk-body lk-rule"><div>{table}</div><div>{_curve(state)}</div></div>')
    if state.prints:
        text = escape("\n".join(state.prints))
        parts.append(
            f'<details class="lk-rule lk-text"><summary>{state.printed} printed line'
            f"{'s' * (state.printed != 1)}</summary><pre>{text}</pre></details>"
        )
    links = list(logs or []) + ([("run record", record)] if record else [])
    if links:
        rows = "".join(f"<tr><td>{escape(w)}</td><td><code>{escape(p)}</code></td></tr>" for w, p in links)
        parts.append(
            f'<details class="lk-rule lk-text"><summary>files</summary><table>{rows}</table></details>'
        )
    return f'{STYLE}<div class="labkit lk-card">{"".join(parts)}</div>'


def _outcome(state: RunState) -> str:
    if state.status == "failed" and state.failures:
        failure = state.failures[-1]
        epoch = f" in epoch {failure.epoch + 1}" if failure.epoch is not None else ""
        rank = f", rank {failure.rank}" if state.world_size > 1 else ""
        return f"failed{epoch}{rank}"
    return {"stopped": "stopped by you"}.get(state.status, state.status)


def _spent(state: RunState) -> str:
    done = len(state.epoch_seconds)
    epochs = f"{done} epoch{'s' * (done != 1)} in " if done else "after "
    again = f" · workers started again {state.restarts} ×" if state.restarts else ""
    return f"{epochs}{wording.clock(state.elapsed())}: {wording.time_spent(state)}{again}"


def _result(state: RunState) -> str:
    parts = [wording.short_metrics(state.metrics())]
    if state.rows_per_second() >= 1:
        parts.append(f"{wording.rate(state.rows_per_second())} rows/s")
    waiting = state.waiting_share()
    if waiting is not None and waiting >= 0.005:
        parts.append(f"{waiting:.0%} of each epoch waiting for data")
    if state.checkpoints:
        parts.append(f"{len(state.checkpoints)} checkpoint" + "s" * (len(state.checkpoints) != 1))
    return " · ".join(part for part in parts if part) or "nothing was reported"


def _steps(state: RunState, now: float) -> str:
    """The phases passed, as one line; loading and training alternate, so each name stands once."""
    spent: dict[str, float] = {}
    for phase in state.phases:
        spent[phase.name] = spent.get(phase.name, 0.0) + phase.seconds(now)
    marks = []
    for name, seconds in spent.items():
        text = f"{escape(wording.PHASES.get(name, name))} {wording.seconds(seconds)}"
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
    tiles = [(wording.number(v), n) for n, v in state.metrics().items() if isinstance(v, (int, float))][:2]
    tiles += [(wording.UNKNOWN, name) for name in ("loss", "accuracy")[len(tiles) :]]
    tiles.append(
        (wording.rate(state.rows_per_second()) if state.first_step_at else wording.UNKNOWN, "rows/s")
    )
    waiting = state.waiting_share()
    tiles.append((f"{waiting:.0%}" if waiting is not None else wording.UNKNOWN, "waiting for data"))
    cells = "".join(f'<div><b>{escape(v)}</b><span class="lk-dim">{escape(n)}</span></div>' for v, n in tiles)
    return f'<div class="lk-tiles">{cells}</div>'


def _checkpoints(state: RunState) -> str:
    rows = "".join(_checkpoint(c) for c in reversed(state.checkpoints[-_CHECKPOINTS_SHOWN:]))
    more = len(state.checkpoints) - _CHECKPOINTS_SHOWN
    rows += f'<tr><td class="lk-dim" colspan="4">and {more} before these</td></tr>' if more > 0 else ""
    return f"<table><tr><th>checkpoint</th><th>size</th><th>metrics</th><th>status</th></tr>{rows}</table>"


def _checkpoint(checkpoint: CheckpointState) -> str:
    kind, words = _CHECKPOINT_WORDS.get(checkpoint.status, ("lk-dim", checkpoint.status))
    return (
        f"<tr><td>{escape(checkpoint.label)}</td><td>{wording.size(checkpoint.bytes)}</td>"
        f"<td>{escape(wording.short_metrics(checkpoint.metrics, 2))}</td>"
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
    step = f"{worker.step}" if worker.seconds else wording.UNKNOWN
    return (
        f"<tr><td>{worker.rank}</td><td>{escape(worker.node)}</td><td>{worker.pid}</td><td>{step}</td></tr>"
    )


def _series(state: RunState) -> dict[str, list[tuple[float, float]]]:
    """At most two metrics to draw: (epochs done, value). Live points where there are some, else reports."""
    series: dict[str, list[tuple[float, float]]] = {}
    for x, metrics in state.curve:
        for name, value in metrics.items():
            series.setdefault(name, []).append((x, value))
    for report in state.history:
        for name, value in report.items():
            known = series.get(name)
            if name != "epoch" and isinstance(value, (int, float)) and not (known and name in _live(state)):
                series.setdefault(name, []).append((report["epoch"] + 1, value))
    drawn = {name: [p for p in points if abs(p[1]) < 1e12] for name, points in series.items()}
    # The loss and one more: two scales can be read, three cannot.
    names = sorted(drawn, key=lambda name: (name != "loss", "accuracy" not in name, name))
    return {name: drawn[name] for name in names[:2] if drawn[name]}


def _live(state: RunState) -> set[str]:
    return set(state.curve[0][1]) if state.curve else set()


def _curve(state: RunState) -> str:
    series = _series(state)
    last = max((x for points in series.values() for x, _ in points), default=0.0)
    span = max(state.epochs or 0, last, 1e-9)
    parts = [
        f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_WIDTH - _RIGHT}" fill="none" stroke="currentColor" opacity=".35"/>'
    ]
    styles = ('stroke="var(--lk-main)"', 'stroke="var(--lk-ok)" stroke-dasharray="4 3"')
    taken: list[float] = []
    for (name, points), style in zip(series.items(), styles, strict=False):
        parts.append(_line(name, points, style, span, taken))
    parts.append(f'<text x="{_LEFT}" y="{_BOTTOM + 14}">0</text>')
    if state.epochs or series:
        parts.append(
            f'<text x="{_WIDTH - _RIGHT}" y="{_BOTTOM + 14}" text-anchor="end">{wording.number(span)}</text>'
        )
    parts.append(f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_BOTTOM + 14}" text-anchor="middle">epoch</text>')
    label = "curve of " + " and ".join(series) if series else "no metrics yet"
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _line(name: str, points: list[tuple[float, float]], style: str, span: float, taken: list[float]) -> str:
    values = [value for _, value in points]
    # An accuracy lives between 0 and 1; everything else gets the range that it had.
    low, high = (0.0, 1.0) if "accuracy" in name else (min(0.0, *values), max(values))
    height = (high - low) or 1.0

    def place(x: float, value: float) -> tuple[float, float]:
        return (
            _LEFT + x / span * (_WIDTH - _LEFT - _RIGHT),
            _BOTTOM - (value - low) / height * (_BOTTOM - _TOP),
        )

    spots = [place(x, value) for x, value in points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
    dot = (
        f'<circle cx="{spots[-1][0]:.1f}" cy="{spots[-1][1]:.1f}" r="2.5" fill="{style.split(chr(34))[1]}"/>'
    )
    x, y = spots[-1]
    anchor, x = ("end", x - 6) if x > _WIDTH * 0.6 else ("start", x + 6)
    y = y + 16 if y < (_TOP + _BOTTOM) / 2 else y - 8
    while any(abs(y - other) < 11 for other in taken):
        y += 11 if y < _BOTTOM - 26 else -22
    taken.append(y)
    text = f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(name)} {wording.number(values[-1])}</text>'
    return f'<path d="{path}" fill="none" {style} stroke-width="2" stroke-linejoin="round"/>{dot}{text}'
