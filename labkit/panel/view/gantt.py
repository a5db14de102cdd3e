"""Training, uploads and validations of a run on one time axis: what overlaps, what waits, what failed."""

from html import escape

from labkit.display import formatting
from labkit.panel.state.checkpoints import CheckpointState
from labkit.panel.state.run import RunState
from labkit.panel.state.spans import Span

_WIDTH, _LEFT, _RIGHT = 856, 76, 10  # in SVG units; the panel is as many pixels wide
_ROW, _BAR, _LANES = 22, 14, 4
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600)
_DIGIT = 6.5  # width of a digit or letter
_WAITED = 0.25  # seconds: what is shorter is no queue, it is the way to it

_FILLS = {"training": "var(--lk-main)", "upload": "var(--lk-wait)", "validation": "var(--lk-ok)"}
_BAD = ("failed", "timed out")


def has_something(state: RunState) -> bool:
    """Whether the run has a validation, in its loop or beside it: others need no such picture."""
    return bool(state.spans.row("validation"))


def draw(state: RunState, now: float) -> str:
    """The picture, from the first step on; `now` (Unix seconds) is its right end while the run lasts."""
    spans = list(state.spans)
    begin = min(span.begin for span in spans)
    end = max([span.end or now for span in spans] + [begin + 0.1])
    axis = _Axis(begin, end)
    waits = [c for c in state.checkpoints if _wait_of(c, now, over=state.status != "running")]
    rows = [row for row in ("training", "upload", "waiting", "validation") if _is_there(row, state, waits)]
    parts = [axis.marks(bottom=_ROW * len(rows))]
    for number, row in enumerate(rows):
        top = number * _ROW
        parts.append(f'<text x="0" y="{top + 15}">{row}</text>')
        if row == "waiting":
            parts += [_wait(axis, c, place, top, now) for place, c in enumerate(waits)]
        else:
            parts += [_bar(axis, span, top, now) for span in state.spans.row(row)]
            parts += [_words(axis, span, top, now) for span in state.spans.row(row)]
    label = escape(_label(state))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_ROW * len(rows) + 20}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )


class _Axis:
    """Unix seconds to places in the picture."""

    def __init__(self, begin: float, end: float) -> None:
        self.begin, self.end = begin, end
        self._scale = (_WIDTH - _LEFT - _RIGHT) / (end - begin)

    def x(self, at: float) -> float:
        return _LEFT + (min(max(at, self.begin), self.end) - self.begin) * self._scale

    def marks(self, *, bottom: int) -> str:
        seconds = self.end - self.begin
        step = next((tick for tick in _TICKS if seconds / tick <= 10), seconds / 5)
        parts = []
        for number in range(int(seconds / step + 1e-9) + 1):
            x = f"{self.x(self.begin + number * step):.1f}"
            anchor = "end" if float(x) > _WIDTH - 30 else "middle"
            parts.append(f'<path d="M{x} 0V{bottom}" stroke="currentColor" opacity=".15"/>')
            text = formatting.clock(number * step) if step >= 60 else f"{number * step:g} s"
            parts.append(f'<text x="{x}" y="{bottom + 14}" text-anchor="{anchor}">{text}</text>')
        return "".join(parts)


def _is_there(row: str, state: RunState, waits: list[CheckpointState]) -> bool:
    return bool(waits) if row == "waiting" else bool(state.spans.row(row))


def _bar(axis: _Axis, span: Span, top: int, now: float) -> str:
    """A bar with the number of its epoch; one that went wrong says so, one that lasts is pale."""
    left, width = _place(axis, span, now)
    bad = span.status in _BAD
    fill = "var(--lk-bad)" if bad else _FILLS[span.row]
    pale = ' opacity=".45"' if span.end is None else ""
    y = top + (_ROW - _BAR) / 2
    said = f"{span.row} {span.label}".strip() + f": {formatting.seconds(span.seconds(now))}"
    said += f", {span.status}" if span.status else ""
    return (
        f'<rect x="{left:.1f}" y="{y:g}" width="{width:.1f}" height="{_BAR}" rx="2" fill="{fill}"{pale}>'
        f"<title>{escape(said)}</title></rect>"
    )


def _place(axis: _Axis, span: Span, now: float) -> tuple[float, float]:
    """Left end and width: a little short, so that bars that follow each other can be told apart."""
    left, right = axis.x(span.begin), axis.x(now if span.end is None else span.end)
    return left, max(right - left - 1.5, 1.5)


def _words(axis: _Axis, span: Span, top: int, now: float) -> str:
    """What stands in a bar that is wide enough; of one that went wrong it stands beside it otherwise."""
    left, width = _place(axis, span, now)
    on = "" if span.end is None else ' class="lk-on"'  # a pale bar is no ground for light letters
    number = f"{'✕ ' if span.status in _BAD else ''}{span.label}"
    for words in ([f"{number} {span.status}"] if span.status in _BAD else []) + [number]:
        if words.strip() and len(words) * _DIGIT + 4 <= width:
            return (
                f'<text x="{left + width / 2:.1f}" y="{top + 15}" text-anchor="middle"{on}>'
                f"{escape(words)}</text>"
            )
    if span.status in _BAD:
        x, anchor = (left + width + 3, "start") if left < _WIDTH - 120 else (left - 3, "end")
        return f'<text x="{x:.1f}" y="{top + 15}" text-anchor="{anchor}">{escape(number)}</text>'
    return ""


def _wait_of(checkpoint: CheckpointState, now: float, *, over: bool) -> float:
    """Seconds that a checkpoint waited for its validation; 0 where that is not worth a line."""
    if checkpoint.committed_at is None or checkpoint.status == "committed":
        return 0.0
    if checkpoint.begun_at is None and over:
        return 0.0  # the run ended before its turn
    until = now if checkpoint.begun_at is None else checkpoint.begun_at
    waited = until - checkpoint.committed_at
    return waited if waited >= _WAITED else 0.0


def _wait(axis: _Axis, checkpoint: CheckpointState, place: int, top: int, now: float) -> str:
    """A thin line from the commit to the begin of the validation, in one of a few lanes."""
    y = top + 5 + (place % _LANES) * 4
    left = axis.x(checkpoint.committed_at or now)
    right = axis.x(now if checkpoint.begun_at is None else checkpoint.begun_at)
    return (
        f'<path d="M{left:.1f} {y}H{right:.1f}" stroke="var(--lk-ok)" stroke-width="2" '
        f'stroke-dasharray="3 2"><title>{escape(checkpoint.label)} waits for its validation</title></path>'
    )


def _label(state: RunState) -> str:
    epochs, beside = len(state.spans.row("training")), len(state.spans.row("validation"))
    return f"timeline of {epochs} epochs of training and {beside} validations"
