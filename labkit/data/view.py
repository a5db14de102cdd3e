"""An execution of Ray Data as a panel and as figures: pure functions of its state."""

import math
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING

from markupsafe import Markup

from labkit.data.state import ExecutionState, OperatorState
from labkit.display import cards
from labkit.display.figures import GREY, figure_style
from labkit.display.formatting import UNKNOWN, count, plural, seconds, short, size
from labkit.panel.view.base import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEAD = ("operator", "rows", "blocks", "tasks", "task seconds", "of them CPU", "held back", "rows/s", "MB")
_LIVE = {"operator": 34, "rows": 12, "": 20, "tasks": 12, "waiting": 12, "stored": 10}  # widths in percent
_SHOWN = 12  # operators


def row(operator: OperatorState) -> tuple[str, ...]:
    """An operator's figures as `HEAD` names them; MB is its peak in the object store."""
    rate, known = operator.rows_per_second, bool(operator.seconds)
    held = operator.backpressure_seconds
    return (
        short(operator.name, 48),
        f"{operator.rows:,}",
        f"{operator.blocks:,}",
        f"{operator.finished:,}",
        f"{operator.seconds:.2f}" if known else UNKNOWN,
        f"{operator.cpu_seconds:.2f}" if known else UNKNOWN,
        f"{held:.1f} s" if held >= 0.05 else UNKNOWN,
        count(rate) if math.isfinite(rate) else UNKNOWN,
        f"{operator.memory_peak / 1e6:.1f}",
    )


class ExecutionView(View):
    """Draws a `DataPanel`."""

    def body(self, state: ExecutionState, now: float) -> Markup:
        operators = state.operators[-_SHOWN:]
        if not operators:
            return cards.text("nothing is executed yet")
        most = max(operator.rows for operator in operators) or 1
        rows = [
            (
                short(operator.name, 48),
                f"{'✓ ' if operator.over else ''}{operator.rows:,}",
                cards.bar("", operator.rows / most),
                f"{operator.running} running",
                plural(operator.queued, "block"),
                size(operator.memory),
            )
            for operator in operators
        ]
        table = cards.table(list(_LIVE), rows, widths=list(_LIVE.values()))
        words = " · ".join(part for part in (seconds(state.elapsed(now)), _rate(state)) if part)
        return cards.rule(cards.mark("dim", words), table)

    def figures(self, state: ExecutionState) -> Markup:
        shown, more = state.operators[:_SHOWN], len(state.operators) - _SHOWN
        return cards.rule(cards.table(HEAD, map(row, shown), more=more)) if shown else cards.NOTHING

    def result(self, state: ExecutionState) -> str:
        if not state.operators:
            return "nothing was executed here"
        return " · ".join(part for part in (f"{state.rows:,} rows", _rate(state)) if part)

    def lines(self, state: ExecutionState) -> Iterator[tuple[Hashable, str]]:
        if state.over:  # a dataset is executed in seconds, so one line is enough
            yield "end", self.last_line(state)
            yield from ((("failure", number), one.text) for number, one in enumerate(state.failures))

    def last_line(self, state: ExecutionState) -> str:
        chain = " → ".join(f"{short(o.name)} {count(o.rows)}" for o in state.operators[:_SHOWN])
        return " · ".join(part for part in (super().last_line(state), self.result(state), chain) if part)


def _rate(state: ExecutionState) -> str:
    """Rows per second over the whole time."""
    return f"{count(state.rows / state.seconds)} rows/s" if state.rows and state.seconds else ""


def plot(state: ExecutionState) -> "Figure":
    """Three bars for each operator: seconds of its tasks, rows in each of them, its peak in the object store.

    The figure is closed for pyplot, so a notebook shows it once: as the value of its cell.
    """
    import matplotlib.pyplot as plt

    operators = state.operators[:_SHOWN]
    with plt.rc_context(figure_style()):
        height = 1.0 + 0.42 * max(len(operators), 1)
        figure, axes = plt.subplots(1, 3, figsize=(8.5, height), sharey=True, layout="constrained")
        plt.close(figure)
        _bars(axes[0], "seconds of its tasks", [o.seconds for o in operators], seconds)
        rates = [o.rows_per_second if math.isfinite(o.rows_per_second) else 0.0 for o in operators]
        _bars(axes[1], "rows in a task second", rates, count)
        _bars(axes[2], "peak in Ray's object store", [float(o.memory_peak) for o in operators], size)
        labels = [short(o.name, 32).replace("$", r"\$") for o in operators]
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
        axes.axhline(state.bytes / 1e6, color=GREY, ls=":", label="all that passed through it")
        axes.set(xlabel="seconds", ylabel="MB", ylim=(0, None))
        figure.legend(loc="outside upper left", ncols=2)
    return figure


def _bars(axes: "Axes", title: str, values: list[float], words: Callable[[float], str]) -> None:
    axes.barh(range(len(values)), values, height=0.6)
    for place, value in enumerate(values):
        axes.annotate(words(value), (value, place), (4, 0), textcoords="offset points", va="center")
    axes.set_title(title)
    axes.set_xmargin(0.35)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
