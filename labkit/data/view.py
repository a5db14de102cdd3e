"""An execution of Ray Data as HTML, as a line of text and as figures: pure functions of its state."""

import math
from html import escape
from typing import TYPE_CHECKING, Any

from labkit.data.state import ExecutionState, OperatorState
from labkit.display import formatting
from labkit.display.figures import figure_style
from labkit.display.style import STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEAD = ("operator", "rows", "blocks", "tasks", "task seconds", "of them CPU", "held back", "rows/s", "MB")
_SHOWN = 12  # operators
_WORDS = {"finished": ("lk-ok", "✓"), "failed": ("lk-bad", "✕"), "stopped": ("lk-wait", "■")}


def row(operator: OperatorState) -> tuple[str, ...]:
    """What is known of an operator, in words, as `HEAD` names it; MB is its peak in the object store."""
    rate = operator.rows_per_second
    known = bool(operator.seconds)
    return (
        formatting.short(operator.name, 48),
        f"{operator.rows:,}",
        f"{operator.blocks:,}",
        f"{operator.finished:,}",
        f"{operator.seconds:.2f}" if known else formatting.UNKNOWN,
        f"{operator.cpu_seconds:.2f}" if known else formatting.UNKNOWN,
        f"{operator.held:.1f} s" if operator.held >= 0.05 else formatting.UNKNOWN,
        formatting.count(rate) if math.isfinite(rate) else formatting.UNKNOWN,
        f"{operator.memory_peak / 1e6:.1f}",
    )


def line(state: ExecutionState) -> str:
    """The whole execution in one line."""
    chain = " → ".join(
        f"{formatting.short(o.name)} {formatting.count(o.rows)}" for o in state.operators[:_SHOWN]
    )
    rate = formatting.count(state.rows / state.seconds) if state.seconds else formatting.UNKNOWN
    parts = [f"{state.status} after {formatting.seconds(state.seconds)}"]
    parts += [f"{state.rows:,} rows, {rate} rows/s"] if state.rows else []
    parts += [chain] if chain else []
    return f"{state.name}: " + " · ".join(parts)


def html(state: ExecutionState) -> str:
    """The panel: while it runs a bar for each operator, afterwards its figures."""
    kind, mark = _WORDS.get(state.status, ("lk-dim", "●"))
    rate = f" · {formatting.count(state.rows / state.seconds)} rows/s" if state.rows else ""
    hint = '<span class="lk-dim">stop: the kernel\'s ■</span>' if state.status == "running" else ""
    head = (
        f'<div class="lk-head"><b>{escape(state.name)}</b><span class="lk-dim">Ray Data</span>'
        f'<span class="{kind}">{mark} {escape(state.status)}</span>'
        f'<span class="lk-dim lk-num">{formatting.seconds(state.seconds)}{rate}</span>{hint}</div>'
    )
    body = _live(state) if state.status == "running" else _final(state)
    failure = f'<pre class="lk-rule">{escape(state.failure)}</pre>' if state.failure else ""
    rest = f'<div class="lk-rule lk-text">{body}</div>{failure}'
    return f'{STYLE}<div class="labkit lk-card">{head}{rest}</div>'


def plot(state: ExecutionState) -> "Figure":
    """Three bars for each operator: seconds of its tasks, rows in each of them, its peak in the object store.

    The figure is closed for pyplot, so a notebook shows it once: as the value of its cell.
    """
    import matplotlib.pyplot as plt

    operators = state.operators[:_SHOWN]
    with plt.rc_context(figure_style()):
        size = (8.5, 1.0 + 0.42 * max(len(operators), 1))
        figure, axes = plt.subplots(1, 3, figsize=size, sharey=True, layout="constrained")
        plt.close(figure)
        _bars(axes[0], "seconds of its tasks", [o.seconds for o in operators], formatting.seconds)
        rates = [o.rows_per_second if math.isfinite(o.rows_per_second) else 0.0 for o in operators]
        _bars(axes[1], "rows in a task second", rates, formatting.count)
        _bars(
            axes[2], "peak in Ray's object store", [float(o.memory_peak) for o in operators], formatting.size
        )
        labels = [formatting.short(o.name, 32).replace("$", r"\$") for o in operators]
        axes[0].set_yticks(range(len(operators)), labels)
        axes[0].invert_yaxis()
    return figure


def plot_memory(state: ExecutionState) -> "Figure":
    """The bytes in the object store over time, and a line at all that passed through it."""
    import matplotlib.pyplot as plt

    with plt.rc_context(figure_style()):
        figure, axes = plt.subplots(figsize=(8.5, 2.6), layout="constrained")
        plt.close(figure)
        times = [at for at, *_ in state.samples]
        axes.plot(times, [stored / 1e6 for _, stored, _ in state.samples], label="in Ray's object store")
        axes.axhline(state.bytes / 1e6, color="#7a7a7a", ls=":", label="all that passed through it")
        axes.set(xlabel="seconds", ylabel="MB", ylim=(0, None))
        figure.legend(loc="outside upper left", ncols=2)
    return figure


def _bars(axes: "Axes", title: str, values: list[float], words: Any) -> None:
    axes.barh(range(len(values)), values, height=0.6)
    for place, value in enumerate(values):
        axes.annotate(words(value), (value, place), (4, 0), textcoords="offset points", va="center")
    axes.set_title(title)
    axes.set_xmargin(0.35)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)


def _live(state: ExecutionState) -> str:
    operators = state.operators[-_SHOWN:]
    if not operators:
        return "nothing is executed yet"
    most = max(operator.rows for operator in operators) or 1
    rows = "".join(_live_row(operator, most) for operator in operators)
    # Fixed widths: what moves must not make the table jump.
    widths = {"operator": 34, "rows": 12, "": 20, "tasks": 12, "waiting": 12, "stored": 10}
    head = "".join(f'<th style="width:{width}%">{name}</th>' for name, width in widths.items())
    return f'<table style="table-layout:fixed"><tr>{head}</tr>{rows}</table>'


def _live_row(operator: OperatorState, most: int) -> str:
    done = "✓ " if operator.over else ""
    bar = f'<div class="lk-bar"><i style="width:{100 * operator.rows / most:.1f}%"></i></div>'
    return (
        f"<tr><td>{escape(formatting.short(operator.name, 48))}</td><td>{done}{operator.rows:,}</td>"
        f"<td>{bar}</td><td>{operator.running} running</td>"
        f"<td>{operator.queued} blocks</td><td>{formatting.size(operator.memory)}</td></tr>"
    )


def _final(state: ExecutionState) -> str:
    if not state.operators:
        return "nothing was executed here"
    head = "".join(f"<th>{name}</th>" for name in HEAD)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row(operator))}</tr>"
        for operator in state.operators[:_SHOWN]
    )
    return f"<table><tr>{head}</tr>{rows}</table>"
