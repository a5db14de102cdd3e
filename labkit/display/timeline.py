"""When each of several tasks ran, and where: bars on a time axis.

    >>> Timeline([{"node": "head", "pid": 7, "begin": 0.0, "end": 1.0},
    ...           {"node": "head", "pid": 7, "begin": 1.0, "end": 2.0}])
    2 tasks on 1 worker, at most 1 at once, 2.0 s

Tasks tell their own begin and end (``time.time()``), so a cluster's machines must agree on the time.
"""

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

from labkit.display.style import STYLE

_WIDTH, _LEFT, _RIGHT, _ROW = 640, 110, 16, 20  # in SVG units
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)  # seconds between two marks


class Timeline:
    """Spans of time as bars, one row for each worker process; shows itself.

    Args:
        spans: one dict for each task, with "node", "pid", "begin" and "end" (seconds); others are ignored.
    """

    def __init__(self, spans: Sequence[dict[str, Any]]) -> None:
        self._spans = sorted(spans, key=lambda span: span["begin"])
        self._zero = min((span["begin"] for span in self._spans), default=0.0)
        self.seconds = max((span["end"] for span in self._spans), default=0.0) - self._zero

    @property
    def at_once(self) -> int:
        """The most tasks that ran at one moment."""
        edges = [(s["begin"], 1) for s in self._spans] + [(s["end"], -1) for s in self._spans]
        running = most = 0
        for _, change in sorted(edges):
            running += change
            most = max(most, running)
        return most

    @property
    def per_node(self) -> dict[str, int]:
        """How many tasks each node ran."""
        return dict(sorted(Counter(span["node"] for span in self._spans).items()))

    def __repr__(self) -> str:
        workers = _count(len(self._workers()), "worker")
        nodes = ", ".join(f"{node} {count}" for node, count in self.per_node.items())
        where = f" ({nodes})" if len(self.per_node) > 1 else ""
        tasks = _count(len(self._spans), "task")
        return f"{tasks} on {workers}{where}, at most {self.at_once} at once, {self.seconds:.1f} s"

    def _repr_html_(self) -> str:
        height = _ROW * len(self._workers()) + 24
        return (
            f'{STYLE}<div class="labkit lk-text">{escape(repr(self))}'
            f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(repr(self))}">'
            f"{self._axis()}{''.join(map(self._row, range(len(self._workers()))))}</svg></div>"
        )

    def _workers(self) -> list[tuple[str, int]]:
        return sorted({(span["node"], span["pid"]) for span in self._spans})

    def _x(self, seconds: float) -> float:
        return _LEFT + seconds / (self.seconds or 1.0) * (_WIDTH - _LEFT - _RIGHT)

    def _axis(self) -> str:
        bottom = _ROW * len(self._workers())
        step = next((tick for tick in _TICKS if self.seconds / tick <= 8), 300)
        marks = []
        for number in range(int(self.seconds / step + 1e-9) + 1):
            x, label = f"{self._x(number * step):.1f}", f"{number * step:g} s"
            marks.append(f'<path d="M{x} 0V{bottom}" stroke="currentColor" opacity=".2"/>')
            marks.append(f'<text x="{x}" y="{bottom + 14}" text-anchor="middle">{label}</text>')
        return "".join(marks)

    def _row(self, number: int) -> str:
        node, pid = worker = self._workers()[number]
        top = number * _ROW
        text = f'<text x="0" y="{top + 14}">{escape(node)} · {pid}</text>'
        return text + "".join(
            self._bar(span, top) for span in self._spans if (span["node"], span["pid"]) == worker
        )

    def _bar(self, span: dict[str, Any], top: int) -> str:
        begin, end = self._x(span["begin"] - self._zero), self._x(span["end"] - self._zero)
        width = max(end - begin - 1.5, 1)  # a little short: bars that follow each other can be told apart
        return (
            f'<rect x="{begin:.1f}" y="{top + 3}" width="{width:.1f}" height="{_ROW - 6}" rx="2" '
            f'fill="var(--lk-main)" opacity=".75"><title>{span["end"] - span["begin"]:.2f} s</title></rect>'
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
