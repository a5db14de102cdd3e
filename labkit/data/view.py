"""An execution of Ray Data as a panel: pure functions of its state."""

from collections.abc import Hashable, Iterator

from markupsafe import Markup

from labkit.data.state import ExecutionState, OperatorState
from labkit.display import cards
from labkit.display.formatting import UNKNOWN, count, seconds, short
from labkit.panel.view.base import View

_HEAD = {  # widths in percent: a live table must not jump
    "operator": 24, "rows": 9, "blocks": 8, "tasks": 8, "waiting": 8, "task seconds": 10, "of them CPU": 10,
    "held back": 8, "rows/s": 8, "MB": 7,
}  # fmt: skip
SHOWN = 12  # operators


class ExecutionView(View):
    """Draws a `DataPanel`: the same table while Ray Data works and afterwards."""

    def body(self, state: ExecutionState, now: float) -> Markup:
        if not state.operators:
            return cards.text("nothing is executed yet")
        words = " · ".join(part for part in (seconds(state.elapsed(now)), _rate(state)) if part)
        return cards.join([cards.rule(cards.mark("dim", words)), self.figures(state)])

    def figures(self, state: ExecutionState) -> Markup:
        rows, more = map(_row, state.operators[:SHOWN]), len(state.operators) - SHOWN
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
        chain = " → ".join(f"{short(o.name)} {count(o.rows)}" for o in state.operators[:SHOWN])
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
    return f"{count(state.rows_per_second)} rows/s" if state.rows_per_second else ""
