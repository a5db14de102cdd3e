"""An execution of Ray Data as a panel and as figures: pure functions of its state."""

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

from markupsafe import Markup

from labkit.data.state import ExecutionState, OperatorState
from labkit.display import cards
from labkit.display.figures import GREY, figure_style
from labkit.display.formatting import UNKNOWN, count, seconds, short, size
from labkit.panel.view.base import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEAD = {  # widths in percent: a live table must not jump
    "operator": 24, "rows": 9, "blocks": 8, "tasks": 8, "waiting": 8, "task seconds": 10, "of them CPU": 10,
    "held back": 8, "rows/s": 8, "MB": 7,
}  # fmt: skip
_SHOWN = 12  # operators


class ExecutionView(View):
    """Draws a `DataPanel`: the same table while Ray Data works and afterwards."""

    def body(self, state: ExecutionState, now: float) -> Markup:
        if not state.operators:
            return cards.text("nothing is executed yet")
        words = " · ".join(part for part in (seconds(state.elapsed(now)), _rate(state)) if part)
        return cards.join([cards.rule(cards.mark("dim", words)), self.figures(state)])

    def figures(self, state: ExecutionState) -> Markup:
        rows, more = map(_row, state.operators[:_SHOWN]), len(state.operators) - _SHOWN
        table = cards.table(list(_HEAD), rows, more=more, widths=list(_HEAD.values()))
        return cards.rule(table) if state.operators else cards.NOTHING

    def result(self, state: ExecutionState) -> str:
        if not state.operators:
            return "nothing was executed here"
        return " · ".join(part for part in (f"{state.rows:,} rows", _rate(state)) if part)

    def lines(self, state: ExecutionState) -> Iterator[tuple[Hashable, str]]:
        if state.over:  # a dataset is executed in seconds, so one line is enough
            yield from ((("failure", number), one.text) for number, one in enumerate(state.failures))
            yield "end", self.last_line(state)

    def last_line(self, state: ExecutionState) -> str:
        chain = " → ".join(f"{short(o.name)} {count(o.rows)}" for o in state.operators[:_SHOWN])
        return " · ".join(part for part in (super().last_line(state), self.result(state), chain) if part)


def _row(operator: OperatorState) -> tuple[str, ...]:
    """An operator's figures as `_HEAD` names them; MB is its peak in the object store."""
    known, held = bool(operator.seconds), operator.backpressure_seconds
    return (
        short(operator.name, 48),
        f"{operator.rows:,}",
        f"{operator.blocks:,}",
        f"{operator.finished:,}" + (f" + {operator.running}" if operator.running else ""),
        f"{operator.queued:,}" if operator.queued else UNKNOWN,
        f"{operator.seconds:.2f}" if known else UNKNOWN,
        f"{operator.cpu_seconds:.2f}" if known else UNKNOWN,
        f"{held:.1f} s" if held >= 0.05 else UNKNOWN,
        count(operator.rows_per_second),
        f"{operator.memory_peak / 1e6:.1f}",
    )


def _rate(state: ExecutionState) -> str:
    return f"{count(state.rows / state.seconds)} rows/s" if state.rows and state.seconds else ""


def plot(state: ExecutionState) -> "Figure":
    """Three bars for each operator: seconds of its tasks, rows in each of them, its peak in the object store.

    The figure is closed for pyplot, so a notebook shows it once: as the value of its cell.
    """
    import matplotlib.pyplot as plt

    operators = state.operators[:_SHOWN]
    bars = {
        "seconds of its tasks": ([o.seconds for o in operators], seconds),
        "rows in a task second": ([o.rows / o.seconds if o.seconds else 0.0 for o in operators], count),
        "peak in Ray's object store": ([o.memory_peak for o in operators], size),
    }
    with plt.rc_context(figure_style()):
        height = 1.0 + 0.42 * max(len(operators), 1)
        figure, all_axes = plt.subplots(1, 3, figsize=(8.5, height), sharey=True, layout="constrained")
        plt.close(figure)
        for axes, (title, (values, words)) in zip(all_axes, bars.items(), strict=True):
            drawn = axes.barh(range(len(values)), values, height=0.6)
            axes.bar_label(drawn, map(words, values), padding=4)
            axes.set(title=title, xmargin=0.35, xticks=[])
            axes.spines["bottom"].set_visible(False)
        labels = [short(o.name, 32).replace("$", r"\$") for o in operators]
        all_axes[0].set_yticks(range(len(operators)), labels)
        all_axes[0].invert_yaxis()
    return figure


def plot_memory(state: ExecutionState) -> "Figure":
    """The bytes in the object store over time, and a line at all that passed through it."""
    import matplotlib.pyplot as plt

    with plt.rc_context(figure_style()):
        figure, axes = plt.subplots(figsize=(8.5, 2.6), layout="constrained")
        plt.close(figure)
        times = [at for at, _ in state.samples]
        axes.plot(times, [stored / 1e6 for _, stored in state.samples], label="in Ray's object store")
        axes.axhline(state.bytes / 1e6, color=GREY, ls=":", label="all that passed through it")
        axes.set(xlabel="seconds", ylabel="MB", ylim=(0, None))
        figure.legend(loc="outside upper left", ncols=2)
    return figure
