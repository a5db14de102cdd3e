"""When training, uploads and validations of a run took place. They may overlap."""

from collections.abc import Iterator
from dataclasses import dataclass

ROWS = ("training", "upload", "validation")
_KEPT = 300  # of each row


@dataclass
class Span:
    """A stretch of time, in Unix seconds; `end` is None while it lasts.

    Attributes:
        row: one of `ROWS`.
        label: the epoch, counted from 1, or "".
        status: of a validation: "", "in the loop", "validated", "failed" or "timed out".
        key: identifies it in its row: the path of a checkpoint, the number of an epoch.
    """

    row: str
    label: str
    begin: float
    end: float | None = None
    status: str = ""
    key: str = ""

    def seconds(self, now: float) -> float:
        return max((now if self.end is None else self.end) - self.begin, 0.0)


class Spans:
    """All spans of a run, in rows."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Span]] = {row: [] for row in ROWS}

    def __iter__(self) -> Iterator[Span]:
        return (span for spans in self._rows.values() for span in spans)

    def row(self, name: str) -> list[Span]:
        """The spans of one row, in the order of their begin."""
        return self._rows[name]

    def open(self, row: str, label: str, at: float, *, key: str = "", status: str = "") -> Span:
        """A span begins."""
        span = Span(row, label, at, status=status, key=key)
        self._rows[row].append(span)
        del self._rows[row][:-_KEPT]
        return span

    def running(self, row: str, key: str | None = None) -> Span | None:
        """The newest span of a row that still lasts."""
        for span in reversed(self._rows[row]):
            if span.end is None and key in (None, span.key):
                return span
        return None

    def close(self, row: str, at: float, *, key: str | None = None, status: str | None = None) -> None:
        """The newest span of a row ends, if one lasts."""
        span = self.running(row, key)
        if span is not None:
            span.end = max(at, span.begin)
            span.status = span.status if status is None else status

    def name(self, row: str, key: str, label: str, status: str = "") -> None:
        """Set the label of all spans with that key, and the status of the newest."""
        of_key = [span for span in self._rows[row] if span.key == key]
        for span in of_key:
            span.label = label
        if of_key and status:
            of_key[-1].status = status

    def step(self, epoch: int, at: float, seconds: float, *, done: bool) -> None:
        """A step of `epoch`, `seconds` after the begin of its loop."""
        key = str(epoch)
        running = self.running("training")
        if running is not None and running.key != key:
            running.end, running = max(at - seconds, running.begin), None
        if running is None:
            self.open("training", str(epoch + 1), at - seconds, key=key)
        if done:
            self.close("training", at)

    def end(self, at: float) -> None:
        """End all spans that still last: the run is over."""
        for span in self:
            if span.end is None:
                span.end = max(at, span.begin)
