"""When each of several tasks ran, and where: bars on a time axis.

    >>> Timeline([{"node": "head", "pid": 7, "begin": 0.0, "end": 1.0},
    ...           {"node": "head", "pid": 7, "begin": 1.0, "end": 2.0}])
    2 tasks on 1 worker, at most 1 at once, 2.0 s

Tasks report their own begin and end (``time.time()``), so the clocks of a cluster's machines must agree.
"""

from collections import Counter
from collections.abc import Sequence
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
            self._spans = sorted(spans, key=lambda span: span["begin"])
            self._workers = sorted({(span["node"], span["pid"]) for span in self._spans})
            self._zero = min((span["begin"] for span in self._spans), default=0.0)
            self.seconds = max((span["end"] for span in self._spans), default=0.0) - self._zero
        except (TypeError, KeyError):
            fact = f"a list of dicts with node, pid, begin and end is expected, not {spans!r:.80}"
            fix = "Timeline(ray.get([task.remote() for _ in range(4)]))"
            raise LabError("draw a timeline", fact, fix) from None

    @property
    def at_once(self) -> int:
        """The most tasks that ran at one moment."""
        edges = [(s["begin"], 1) for s in self._spans] + [(s["end"], -1) for s in self._spans]
        running = most = 0
        for _, change in sorted(edges):
            running += change
            most = max(most, running)
        return most

    def __repr__(self) -> str:
        workers = plural(len(self._workers), "worker")
        per_node = sorted(Counter(span["node"] for span in self._spans).items())
        nodes = ", ".join(f"{node} {count}" for node, count in per_node)
        where = f" ({nodes})" if len(per_node) > 1 else ""
        tasks = plural(len(self._spans), "task")
        return f"{tasks} on {workers}{where}, at most {self.at_once} at once, {self.seconds:.1f} s"

    def _repr_html_(self) -> str:
        workers = self._workers
        axis = svg.Axis(0.0, self.seconds, _LEFT, _WIDTH - _RIGHT)
        parts = [axis.time_grid(_ROW * len(workers))]
        for number, (node, pid) in enumerate(workers):
            parts.append(svg.text(0, number * _ROW + 14, f"{node} · {pid}"))
        for span in self._spans:
            begin, end = axis(span["begin"] - self._zero), axis(span["end"] - self._zero)
            top = workers.index((span["node"], span["pid"])) * _ROW + 3
            # A little short, so that there is a gap between bars.
            width, said = max(end - begin - 1.5, 1), f"{span['end'] - span['begin']:.2f} s"
            parts.append(svg.bar(begin, top, width, _ROW - 6, svg.MAIN, said, opacity=0.75))
        figure = svg.svg(_WIDTH, _ROW * len(workers) + 24, repr(self), *parts)
        return str(cards.figure(repr(self), figure))
