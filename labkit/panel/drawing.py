"""Draw a `Run` and what is `Shown` of it as a frozen `Snapshot`: HTML, live and as the summary, and lines.

`labkit.panel.plots` draws the figures.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup

from labkit.display import cards
from labkit.display.formatting import clock, duration, joined, plural, seconds, short
from labkit.panel.plots import plot, timeline
from labkit.panel.run import Run
from labkit.panel.shown import Shown
from labkit.runs.verdict import PARTS, in_words

_TEXT_SHOWN = 16_000  # characters
_FAILURE_SHOWN = 4_000
_NAME_SHOWN = 80
_ERRORS_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A panel at one moment, drawn. Reporters need no lock for it, and only put it where it shows."""

    name: str
    subtitle: str  # what it runs on, behind the name
    over: bool
    seconds: float  # how long it took so far
    html: Markup  # what is below the head of the live panel; of a run that is over, the summary that stays
    lines: tuple[tuple[Hashable, str], ...]  # the latest of a log by keys that stay; the last: how it ended


def snapshot(run: Run, shown: Shown, now: float, files: Sequence[tuple[str, str]] = ()) -> Snapshot:
    """Draw a run at `now` (Unix seconds). It must not change meanwhile.

    Args:
        shown: what is shown of it at that time.
        files: those that the summary lists, as (title, path).
    """
    html = _template().render(run=run, shown=shown, now=now, files=files)
    return Snapshot(
        name=short(run.name, _NAME_SHOWN),
        subtitle=shown.subtitle,
        over=run.over,
        seconds=run.elapsed(now),
        html=Markup(html),
        lines=tuple(_lines(run, shown)),
    )


def _lines(run: Run, shown: Shown) -> Iterator[tuple[Hashable, str]]:
    """Yield the lines of a log by keys that stay: in later snapshots, a line has the same key."""
    if not shown.brief:
        yield "begin", shown.subtitle
    elif not run.over:
        return
    for place, line in enumerate(run.prints, run.printed - len(run.prints)):
        yield ("print", place), line
    yield from shown.news
    for note in shown.notes:
        yield ("note", note), note
    for place, line in enumerate(run.hang):
        yield ("hang", run.heard_at, place), line
    for place, failure in enumerate(run.failures):
        yield ("failure", place), run.failed(failure)
    if run.over:
        yield from _last_lines(run, shown)


def _last_lines(run: Run, shown: Shown) -> Iterator[tuple[Hashable, str]]:
    for owner, shares in shown.strip:
        yield ("strip", owner), f"{owner}: {in_words(shares)}"
    if shown.verdict:
        yield "verdict", shown.verdict
    for owner, text in _errors(run):
        yield ("error", text), f"{owner}\n{text}".lstrip()
    end = f"{run.status} after {_time(run)}"
    yield "end", joined(end, shown.what, shown.result)


def _time(run: Run) -> str:
    """Return ``01:41: start 8.1 s · data 2.0 s · training 84 s``."""
    parts = []
    for name, value in run.time_breakdown().items():
        if value >= 0.05:
            parts.append(f"{name} {seconds(value)}")
    total = duration(run.elapsed())
    return f"{total}: {joined(*parts)}" if parts else total


def _errors(run: Run) -> list[tuple[str, str]]:
    """Return pairs of owner and traceback: what ended the run or, if it went on, each distinct failure."""
    if run.status == "failed" and run.failures:
        last = run.failures[-1]
        if run.unit == "rank" or last.rank is None:
            return [("", last.text[-_FAILURE_SHOWN:])]
    owners: dict[str, list[str]] = {}
    for failure in run.failures:
        text = failure.text[-_FAILURE_SHOWN:]
        owners.setdefault(text, []).append(f"{run.unit} {failure.rank}")
    errors = [(f"{', '.join(names)}:", text) for text, names in owners.items()]
    return errors[:_ERRORS_SHOWN]


def _means(strip: Sequence[tuple[str, Sequence[float]]]) -> list[tuple[str, float]]:
    """Return the parts with the mean share of all ranks."""
    by_part = zip(*(shares for _, shares in strip), strict=True)
    means = [sum(shares) / len(strip) for shares in by_part]
    return list(zip(PARTS, means, strict=True))


def _printed(run: Run) -> str:
    """Return the last printed lines, as many as a notebook can carry."""
    lines = "\n".join(run.prints)
    if len(lines) <= _TEXT_SHOWN and run.printed <= len(run.prints):
        return lines
    return f"… the lines before are in the logs\n{lines[-_TEXT_SHOWN:]}"


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "errors": _errors,
        "in_words": in_words,
        "means": _means,
        "plot": plot,
        "plural": plural,
        "printed": _printed,
        "style": Markup(cards.STYLE),
        "table": cards.table,
        "time": _time,
        "timeline": timeline,
    }
    environment.filters |= {
        "clock": clock,
        "seconds": seconds,
        "short": short,
    }
    return environment.get_template("panel.html.j2")
