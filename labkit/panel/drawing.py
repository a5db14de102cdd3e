"""From a `Run` to one frozen `Snapshot`: as HTML, live and as the summary, and as lines of text."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup

from labkit.display import cards
from labkit.display.formatting import clock, plural, seconds, short
from labkit.panel.charts import plot, timeline
from labkit.panel.run import Run

_TEXT_SHOWN, _FAILURE_SHOWN, _NAME_SHOWN = 16_000, 4_000, 80  # characters
_ERRORS_SHOWN = 3

Files = Sequence[tuple[str, str]]  # (what, path)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A panel at one moment, drawn. Reporters need no lock for it, and only put it where it shows.

    Attributes:
        subtitle: what it runs on, behind the name.
        over, seconds: whether the run has ended, and how long it took so far.
        body: below the head of the live panel.
        lines: the latest of a log, each with a key that stays the same, so it is printed once. The last one
            of a run that is over says how it ended.
        summary: what stays in the notebook when the run is over.
    """

    name: str
    subtitle: str
    over: bool
    seconds: float
    body: Markup
    files: Files
    lines: tuple[tuple[Hashable, str], ...]
    summary: Markup


def snapshot(run: Run, now: float, files: Files = ()) -> Snapshot:
    """What there is to show at `now` (Unix seconds). The run must not change meanwhile."""
    now = run.ended_at or now
    run.fill(now)
    html = Markup(_template().render(run=run, now=now, files=files))
    return Snapshot(
        name=short(run.name, _NAME_SHOWN),
        subtitle=run.subtitle,
        over=run.over,
        seconds=run.elapsed(now),
        body=cards.NOTHING if run.over else html,
        files=files,
        lines=tuple(_lines(run)),
        summary=html if run.over else cards.NOTHING,
    )


def _lines(run: Run) -> Iterator[tuple[Hashable, str]]:
    if run.brief and not run.over:
        return
    if not run.brief:
        yield "begin", run.subtitle
    for number, line in enumerate(run.prints, run.printed - len(run.prints)):
        yield ("print", number), line
    yield from run.news
    for note in run.notes:
        yield ("note", note), note
    for number, line in enumerate(run.hang):
        yield ("hang", run.heard_at, number), line
    for number, failure in enumerate(run.failures):
        yield ("failure", number), run.failed(failure)
    if run.over:
        for who, text in _errors(run):
            yield ("error", text), f"{who}\n{text}".lstrip()
        yield "end", run.last_line()


def _errors(run: Run) -> list[tuple[str, str]]:
    """(whose, traceback): that which ended the run or, if it went on, the different ones."""
    last = run.failures[-1] if run.failures else None
    if last is not None and run.status == "failed" and (run.unit == "rank" or last.rank is None):
        return [("", last.text[-_FAILURE_SHOWN:])]
    whose: dict[str, list[str]] = {}
    for failure in run.failures:
        whose.setdefault(failure.text[-_FAILURE_SHOWN:], []).append(f"{run.unit} {failure.rank}")
    return [(f"{', '.join(who)}:", text) for text, who in whose.items()][:_ERRORS_SHOWN]


def _printed(run: Run) -> str:
    """The last printed lines, as many as a notebook can carry."""
    lines = "\n".join(run.prints)
    cut = len(lines) > _TEXT_SHOWN or run.printed > len(run.prints)
    return f"… the lines before are in the logs\n{lines[-_TEXT_SHOWN:]}" if cut else lines


@cache
def _template() -> jinja2.Template:
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {
        "plot": plot,
        "timeline": timeline,
        "table": cards.table,
        "style": Markup(cards.STYLE),
    }
    environment.globals |= {"printed": _printed, "errors": _errors, "plural": plural}
    environment.filters |= {"short": short, "seconds": seconds, "clock": clock}
    return environment.get_template("panel.html.j2")
