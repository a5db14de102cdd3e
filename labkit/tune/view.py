"""A sweep as HTML and as lines of text: pure functions of its state, as `panel.view` is for a run."""

from collections.abc import Sequence
from html import escape
from typing import Any

from labkit.display import formatting
from labkit.display.style import STYLE
from labkit.tune import charts as sweep_svg
from labkit.tune.state import OVER, STATUSES, SweepState, TrialState

OUTPUT = "errors"  # what the panel's first toggle opens

_ROWS_LIVE, _ROWS_KEPT = 10, 200
_COLUMNS = 4  # parameters that have room
_ERROR_SHOWN = 4_000  # characters of one traceback
_ERRORS_SHOWN = 3
_LOOK = {
    "finished": ("lk-ok", "✓ finished"),
    "stopped early": ("lk-dim", "stopped early"),
    "running": ("lk-wait", "● running"),
    "paused": ("lk-wait", "○ paused"),
    "waiting": ("lk-dim", "○ waiting"),
    "cut off": ("lk-wait", "cut off"),
    "failed": ("lk-bad", "✕ failed"),
}
_STATUS_CLASS = {"finished": "lk-ok", "failed": "lk-bad", "stopped": "lk-wait"}


def title(state: SweepState) -> str:
    """Name, and how many trials at a time: the left part of the panel's head."""
    return (
        f'<div class="labkit"><div class="lk-head"><b>{escape(formatting.short(state.name, 80))}</b>'
        f'<span class="lk-dim">{escape(subtitle(state))}</span></div></div>'
    )


def subtitle(state: SweepState) -> str:
    """``Ray Tune · 32 trials · 2 at a time``."""
    total = max(state.total or 0, len(state.trials))
    parts = [state.engine] + ([f"{total} trial{'s' * (total != 1)}"] if total else [])
    parts += [f"{state.at_once} at a time"] if state.at_once else []
    return " · ".join(parts)


def clock_and_status(state: SweepState, now: float, *, stopping: bool = False) -> str:
    """Elapsed time: the right part of the panel's head."""
    word = "stopping … " if stopping and state.status == "running" else ""
    words = word + formatting.clock(state.elapsed(now))
    return f'<div class="labkit"><span class="lk-dim lk-num">{words}</span></div>'


def body(state: SweepState, now: float) -> str:
    """The panel while the sweep lasts: counts, bar, the best trials; their curves, and the best so far."""
    left = (
        f'<div class="lk-steps lk-num">{_counts(state)}</div>{_bar(state, now)}{_table(state, _live(state))}'
    )
    if (more := len(state.trials) - _ROWS_LIVE) > 0:
        left += f'<div class="lk-dim">and {more} more trials</div>'
    left += _first_error(state)
    return (
        f'<div class="labkit lk-rule"><div class="lk-body"><div class="lk-main">{left}</div>'
        f"<div>{sweep_svg.trials(state)}{sweep_svg.best(state)}</div></div></div>"
    )


def details(state: SweepState, *, output: bool, logs: Sequence[tuple[str, str]] | None = None) -> str:
    """What the panel's toggles open: the tracebacks, and where the files lie."""
    parts = [_errors(state) or '<div class="lk-text lk-rule">no trial failed so far</div>'] if output else []
    if logs is not None:
        parts.append(f'<div class="lk-text lk-rule">{_files(logs)}</div>')
    return f'<div class="labkit">{"".join(parts)}</div>' if parts else ""


def summary(
    state: SweepState, *, logs: Sequence[tuple[str, str]] | None = None, record: str | None = None
) -> str:
    """What stays in the notebook when the sweep is over: no script, no widget."""
    outcome = {"stopped": "stopped by you"}.get(state.status, state.status)
    spent = " · ".join(f"{name} {formatting.seconds(value)}" for name, value in state.seconds().items())
    parts = [
        f'<div class="lk-head"><b>{escape(formatting.short(state.name, 80))}</b>'
        f'<span class="{_STATUS_CLASS.get(state.status, "lk-dim")}">{escape(outcome)}</span>'
        f'<span class="lk-dim">{escape(counts_line(state))} in {formatting.clock(state.elapsed())}: {spent}'
        "</span></div>",
        f'<div class="lk-rule lk-text">{escape(best_line(state))}</div>',
    ]
    shown = state.ranked()
    if shown:
        top = _table(state, shown[:_ROWS_LIVE])
        parts.append(
            f'<div class="lk-body lk-rule"><div>{top}</div>'
            f"<div>{sweep_svg.trials(state)}{sweep_svg.best(state)}</div></div>"
        )
    parts.append(_errors(state))
    if len(shown) > _ROWS_LIVE:
        rest = _table(state, shown[_ROWS_LIVE:_ROWS_KEPT])
        count = len(shown) - _ROWS_LIVE
        parts.append(
            f'<details class="lk-rule lk-text"><summary>{count} more trials</summary>'
            f'<div style="max-height:320px;overflow:auto">{rest}</div></details>'
        )
    links = [*(logs or []), *([("run record", record)] if record else [])]
    if links:
        parts.append(f'<details class="lk-rule lk-text"><summary>files</summary>{_files(links)}</details>')
    return f'{STYLE}<div class="labkit lk-card">{"".join(parts)}</div>'


# -- in words, for a terminal too -------------------------------------------------------------------


def counts_line(state: SweepState) -> str:
    """``9 finished · 14 stopped early · 2 running · 6 waiting · 1 failed``."""
    counts = {**state.counts(), "waiting": state.waiting}
    word = {"waiting": "not begun"} if state.ended_at else {}
    said = [f"{counts[status]} {word.get(status, status)}" for status in STATUSES if counts.get(status)]
    return " · ".join(said) or "no trial yet"


def best_line(state: SweepState) -> str:
    """Return the best value of all reports, and the best last one: that is what `get_best_result` goes by.

    ``best accuracy 0.986, trial 17 · lr 0.081 (last 0.962) · best at its end: 0.979, trial 9 · lr 0.043``
    """
    if state.best is None:
        return f"no trial reported {state.metric}" if state.metric else "no metric to compare trials by"
    best, at_end = state.best, state.best_at_end
    line = f"best {state.metric} {formatting.number(best.best)}, {trial_line(state, best)}"
    if best.value != best.best:
        line += f" (last {formatting.number(best.value)})"
    if at_end is not best:
        line += f" · best at its end: {formatting.number(at_end.value)}, {trial_line(state, at_end)}"
    return line


def trial_line(state: SweepState, trial: TrialState) -> str:
    """``trial 17 · lr 0.081 · momentum 0.83``."""
    names = parameters(state)
    said = [f"{name} {_value(trial.config[name])}" for name in names if name in trial.config]
    return " · ".join([f"trial {trial.number}", *said])


def parameters(state: SweepState, most: int = _COLUMNS) -> list[str]:
    """The parameters in which trials differ; all of them where there is one trial."""
    seen: dict[str, set[str]] = {}
    for trial in state.trials.values():
        for name, value in trial.config.items():
            seen.setdefault(name, set()).add(repr(value))
    several = len(state.trials) > 1
    return [name for name, values in seen.items() if len(values) > 1 or not several][:most]


# -- inside -----------------------------------------------------------------------------------------


def _value(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float)):
        return formatting.number(value)
    return formatting.short(str(value), 18)


def _counts(state: SweepState) -> str:
    counts = {**state.counts(), "waiting": state.waiting}
    return "".join(
        f'<span class="{_LOOK[status][0]}">{counts[status]} {status}</span>'
        for status in STATUSES
        if counts.get(status)
    )


def _bar(state: SweepState, now: float) -> str:
    total = max(state.total or 0, len(state.trials))
    words = [f"{state.done} of {total} trials over" if total else "starting"]
    if not state.first_trial_at:
        words = ["starting the first trial's process"]
    left = state.eta(now)
    if left is not None:
        words.append(f"about {formatting.seconds(left)} left" if left >= 1 else "nearly done")
    text = f'<div class="lk-dim lk-num" style="margin-top:8px">{escape(" · ".join(words))}</div>'
    if not total or state.total is None:
        return f'{text}<div class="lk-bar lk-unknown"><i style="width:100%"></i></div>'
    return f'{text}<div class="lk-bar"><i style="width:{100 * state.done / total:.1f}%"></i></div>'


def _live(state: SweepState) -> list[TrialState]:
    """The rows while it runs: the best ones, and among them whatever runs or failed last."""
    ranked = state.ranked()
    busy = [trial for trial in ranked if trial.status in ("running", "failed")][-4:]
    rest = [trial for trial in ranked if trial not in busy][: _ROWS_LIVE - len(busy)]
    return [trial for trial in ranked if trial in busy or trial in rest]


def _table(state: SweepState, rows: Sequence[TrialState]) -> str:
    names = parameters(state)
    nodes = len({trial.node for trial in state.trials.values() if trial.node}) > 1
    metric = formatting.short(state.metric or "metric", 16)
    head = ["trial", *(formatting.short(name, 14) for name in names), f"best {metric}", "last", "iteration"]
    head += ["seconds"]
    head += ["node"] * nodes + [""]
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    return f"<table><tr>{cells}</tr>{''.join(_row(state, trial, names, nodes) for trial in rows)}</table>"


def _row(state: SweepState, trial: TrialState, names: Sequence[str], nodes: bool) -> str:
    values = [str(trial.number), *(_value(trial.config.get(name, formatting.UNKNOWN)) for name in names)]
    cells = "".join(f"<td>{escape(value)}</td>" for value in values)
    number, last = (
        formatting.number(value) if value is not None else formatting.UNKNOWN
        for value in (trial.best, trial.value)
    )
    best = state.best is trial
    cells += f"<td>{f'<b>{number}</b>' if best else number}</td><td>{last}</td><td>{trial.iteration}</td>"
    cells += f"<td>{f'{trial.seconds:.1f}' if trial.iteration else formatting.UNKNOWN}</td>"
    cells += f"<td>{escape(formatting.short(trial.node, 16))}</td>" if nodes else ""
    kind, words = _LOOK[trial.status]
    if trial.why and trial.status in OVER:
        words = ("✓ " if trial.status == "finished" else "✕ " * (trial.status == "failed")) + trial.why
    if best:
        words = f"{words} · best" if trial.status not in OVER else "✓ best"
        kind = "lk-ok"
    if trial.changes:
        words += f" · changed {trial.changes} ×"
    return f'<tr>{cells}<td class="{kind}">{escape(formatting.short(words, 36))}</td></tr>'


def _first_error(state: SweepState) -> str:
    if not state.failures:
        return ""
    count = state.counts()["failed"] or 1
    words = f"✕ {count} failed: {formatting.short(state.failures[0].message, 120)}"
    return f'<div class="lk-bad">{escape(words)}</div>'


def _errors(state: SweepState) -> str:
    """Each different traceback once, with the trials that ended by it."""
    by_text: dict[str, list[int]] = {}
    for failure in state.failures:
        by_text.setdefault(failure.text, []).append(failure.rank)
    parts = []
    for text, numbers in list(by_text.items())[:_ERRORS_SHOWN]:
        known = [str(number) for number in numbers if number >= 0]
        named = ", ".join(known[:8]) + (" …" if len(known) > 8 else "")
        who = f"trial{'s' * (len(known) != 1)} {named}:\n" if known else ""
        parts.append(f'<pre class="lk-rule">{escape(who + text[-_ERROR_SHOWN:])}</pre>')
    return "".join(parts)


def _files(links: Sequence[tuple[str, str]]) -> str:
    rows = "".join(
        f"<tr><td>{escape(what)}</td><td><code>{escape(path)}</code></td></tr>" for what, path in links
    )
    return f"<table>{rows}</table>"
