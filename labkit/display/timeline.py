"""When each of several tasks ran, and where: bars on a time axis.

    >>> Timeline([{"node": "head", "pid": 7, "begin": 0.0, "end": 1.0},
    ...           {"node": "head", "pid": 7, "begin": 1.0, "end": 2.0}])
    2 tasks on 1 worker, at most 1 at once, 2.0 s

Tasks report their own begin and end (``time.time()``), so the clocks of a cluster's machines must agree.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from labkit.display import cards, svg
from labkit.display.formatting import plural
from labkit.errors import LabError

_WIDTH, _LEFT, _RIGHT, _ROW = 640, 110, 16, 20  # in SVG units


class Timeline:
    """Spans of time as bars, one row for each worker process; shows itself.

    Args:
        spans: one dict for each task, with "node", "pid", "begin" and "end" (seconds); others are ignored.
    """

    def __init__(self, spans: Sequence[dict[str, Any]]) -> None:
        try:
            self._spans = sorted((s["begin"], s["end"], s["node"], s["pid"]) for s in spans)
        except (TypeError, KeyError):
            fact = f"a list of dicts with node, pid, begin and end is expected, not {spans!r:.80}"
            fix = "Timeline(ray.get([task.remote() for _ in range(4)]))"
            raise LabError("draw a timeline", fact, fix) from None
        self._workers = sorted({span[2:] for span in self._spans})
        self._zero = min((begin for begin, *_ in self._spans), default=0.0)
        self.seconds = max((end for _, end, *_ in self._spans), default=0.0) - self._zero

    @property
    def at_once(self) -> int:
        """The most tasks that ran at one moment."""
        edges = sorted(edge for begin, end, *_ in self._spans for edge in ((begin, 1), (end, -1)))
        return max(accumulate(change for _, change in edges), default=0)

    def __repr__(self) -> str:
        nodes = Counter(node for _, _, node, _ in self._spans)
        listed = ", ".join(f"{node} {count}" for node, count in sorted(nodes.items()))
        where = plural(len(self._workers), "worker") + (f" ({listed})" if len(nodes) > 1 else "")
        tasks = plural(len(self._spans), "task")
        return f"{tasks} on {where}, at most {self.at_once} at once, {self.seconds:.1f} s"

    def _repr_html_(self) -> str:
        bottom, axis = _ROW * len(self._workers), svg.Axis(0.0, self.seconds, _LEFT, _WIDTH - _RIGHT)
        parts = [axis.time_grid(bottom)]
        for row, (node, pid) in enumerate(self._workers):
            parts.append(svg.text(0, row * _ROW + 14, f"{node} · {pid}"))
        for begin, end, *worker in self._spans:
            left, right = axis(begin - self._zero), axis(end - self._zero)
            top, width = self._workers.index(tuple(worker)) * _ROW + 3, max(right - left - 1.5, 1)
            parts.append(svg.bar(left, top, width, _ROW - 6, svg.MAIN, f"{end - begin:.2f} s", opacity=0.75))
        return str(cards.figure(repr(self), svg.svg(_WIDTH, bottom + 24, repr(self), *parts)))
