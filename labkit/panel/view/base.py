"""From a state to one frozen `Snapshot`, drawn as HTML and as lines: what all panels share."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from labkit.display import cards
from labkit.display.formatting import duration, plural, short
from labkit.panel.state.base import Failure, State

_TEXT_SHOWN = 16_000  # characters of printed lines; all of them are in the logs
_FAILURE_SHOWN = 4_000
_PRINTS_SHOWN, _LINE_SHOWN = 6, 160  # lines of a live panel, characters of each
_NAME_SHOWN = 80
_KINDS = {"finished": "ok", "failed": "bad", "stopped": "wait"}

Files = Sequence[tuple[str, str]]  # (what, path)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A panel at one moment, drawn. Reporters need no lock for it, and only put it where it shows.

    Attributes:
        subtitle: what it runs on, behind the name.
        over, seconds: whether the run has ended, and how long it took so far.
        body: below the head of the live panel.
        prints: the latest printed lines, below the body.
        lines: the latest of a log, each with a key that stays the same, so it is printed once. The last one
            of a run that is over says how it ended.
        summary: what stays in the notebook when the run is over.
    """

    name: str
    subtitle: str
    over: bool
    seconds: float
    body: Markup
    prints: Markup
    files: Files
    lines: tuple[tuple[Hashable, str], ...]
    summary: Markup


class View:
    """Draws a state; a subclass says how the body, the result and the news of its engine look."""

    def snapshot(self, state: Any, now: float, files: Files = ()) -> Snapshot:
        """What there is to show at `now` (Unix seconds). The state must not change meanwhile."""
        now = state.ended_at or now
        return Snapshot(
            name=short(state.name, _NAME_SHOWN),
            subtitle=self.subtitle(state),
            over=state.over,
            seconds=state.elapsed(now),
            body=cards.NOTHING if state.over else cards.part(self.body(state, now)),
            prints=cards.NOTHING if state.over or not state.prints else cards.part(_latest(state)),
            files=files,
            lines=tuple(self.lines(state)),
            summary=self.summary(state, files) if state.over else cards.NOTHING,
        )

    # -- what a subclass says ------------------------------------------------------------------------

    def subtitle(self, state: Any) -> str:
        """What it runs on."""
        return state.engine

    def body(self, state: Any, now: float) -> Markup:
        """The live panel below its head."""
        return cards.NOTHING

    def figures(self, state: Any) -> Markup:
        """What stays of the body when the run is over."""
        return self.body(state, state.ended_at)

    def result(self, state: Any) -> str:
        """What came out, in one line."""
        return ""

    def outcome(self, state: Any) -> str:
        """How it ended, in a few words."""
        return "stopped by you" if state.status == "stopped" else state.status

    def note(self, state: Any) -> str:
        """How long it took, and for what: ``10 epochs in 01:41: start 8.1 s · training 84 s``."""
        return f"after {duration(state.elapsed())}"

    def news(self, state: Any) -> Iterator[tuple[Hashable, str]]:
        """The lines of a log between the first and the last, each with its key."""
        return iter(())

    def failed(self, failure: Failure) -> str:
        """A failure in one line."""
        who = "" if failure.rank is None else f"rank {failure.rank} "
        told = who and failure.message.startswith(who)  # "rank 1 is gone: …"
        return failure.message if told else f"{who}failed: {failure.message}"

    def last_line(self, state: Any) -> str:
        """How it ended, for a log."""
        return f"{state.status} after {duration(state.elapsed())}"

    def details(self, state: Any) -> Markup:
        """What the summary unfolds: the printed lines."""
        return cards.pre(_printed(state) or "nothing was printed so far")

    # -- the same for all ----------------------------------------------------------------------------

    def summary(self, state: Any, files: Files) -> Markup:
        """What stays in the notebook: no script, no widget, legible without the style sheet."""
        failed = state.status == "failed" and state.failures
        return cards.card(
            short(state.name, _NAME_SHOWN),
            (_KINDS.get(state.status, "dim"), self.outcome(state)),
            cards.pre(state.failures[-1].text[-_FAILURE_SHOWN:])
            if failed
            else cards.text(self.result(state) or "nothing was reported"),
            self.figures(state),
            cards.fold(plural(state.printed, "printed line"), self.details(state)) if state.prints else "",
            cards.fold("files", cards.files(files)) if files else "",
            dim=self.note(state),
        )

    def lines(self, state: Any) -> Iterator[tuple[Hashable, str]]:
        """`news`, and what all panels say: what was printed, who failed, and how it ended."""
        yield "begin", self.subtitle(state)
        for number, line in enumerate(state.prints, state.printed - len(state.prints)):
            yield ("print", number), line
        yield from self.news(state)
        for number, failure in enumerate(state.failures):
            yield ("failure", number), self.failed(failure)
        if state.over:
            if state.status == "failed" and state.failures:
                yield "traceback", state.failures[-1].text
            yield "end", self.last_line(state)


def _latest(state: State) -> Markup:
    """The last few printed lines; the summary has more, and the logs have all."""
    return cards.pre("\n".join(short(line, _LINE_SHOWN) for line in list(state.prints)[-_PRINTS_SHOWN:]))


def _printed(state: State) -> str:
    """The last printed lines, as many as a notebook can carry."""
    lines = "\n".join(state.prints)
    cut = len(lines) > _TEXT_SHOWN or state.printed > len(state.prints)
    return f"… the lines before are in the logs\n{lines[-_TEXT_SHOWN:]}" if cut else lines
