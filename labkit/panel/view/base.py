"""From a state to one immutable snapshot, and from that to HTML and lines: what all panels share."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from labkit.display import cards
from labkit.display.formatting import duration, plural, short
from labkit.panel.state.base import Failure, State

_TEXT_SHOWN = 16_000  # characters of printed lines; all of them are in the logs
_FAILURE_SHOWN = 4_000
_NAME_SHOWN = 80


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a panel shows at one moment. Each kind of panel adds its own fields.

    Attributes:
        subtitle: what it runs on, behind the name.
        seconds: since the start.
    """

    name: str
    subtitle: str
    status: str
    seconds: float
    failures: tuple[Failure, ...]
    prints: tuple[str, ...]
    printed: int

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.status not in ("ready", "running")

    @property
    def title(self) -> str:
        """The name, as long as a head has room for it."""
        return short(self.name, _NAME_SHOWN)


class View:
    """Draws snapshots: pure functions, so a live panel, a saved notebook and a test get the same.

    A subclass says what its panel shows in `snapshot`, `body`, `result`, `note` and `news`.

    Attributes:
        output: label of the toggle that opens `details`.
    """

    output = "output"

    def snapshot(self, state: Any, now: float) -> Snapshot:
        """What there is to show at `now` (Unix seconds)."""
        return Snapshot(**self.common(state, now, state.engine))

    @staticmethod
    def common(state: State, now: float, subtitle: str) -> dict[str, Any]:
        """The fields that all snapshots have."""
        return {
            "name": state.name,
            "subtitle": subtitle,
            "status": state.status,
            "seconds": state.elapsed(now),
            "failures": tuple(state.failures),
            "prints": tuple(state.prints),
            "printed": state.printed,
        }

    def body(self, snapshot: Any) -> Markup:
        """The live panel below its head."""
        return cards.NOTHING

    def figures(self, snapshot: Any) -> Markup:
        """What stays of the body when the run is over."""
        return self.body(snapshot)

    def result(self, snapshot: Any) -> str:
        """What came out, in one line."""
        return ""

    def note(self, snapshot: Any) -> str:
        """How long it took, and for what: ``10 epochs in 01:41: start 8.1 s · training 84 s``."""
        return f"after {duration(snapshot.seconds)}"

    def outcome(self, snapshot: Any) -> str:
        """How it ended, in a few words."""
        return "stopped by you" if snapshot.status == "stopped" else snapshot.status

    def news(self, snapshot: Any) -> Iterator[tuple[Hashable, str]]:
        """The lines of a log so far, each with a key that stays the same, so it is printed once."""
        return iter(())

    def details(self, snapshot: Any) -> Markup:
        """What the first toggle opens: the printed lines."""
        return cards.pre(_printed(snapshot) or "nothing was printed so far")

    # -- for the reporters ---------------------------------------------------------------------------

    def html(self, snapshot: Any) -> Markup:
        """The live panel below its head."""
        return cards.part(self.body(snapshot))

    def summary(self, snapshot: Any, files: list[tuple[str, str]]) -> Markup:
        """What stays in the notebook: no script, no widget, legible without the style sheet."""
        failed = snapshot.status == "failed" and snapshot.failures
        kind = {"finished": "ok", "failed": "bad", "stopped": "wait"}.get(snapshot.status, "dim")
        lines = plural(snapshot.printed, "printed line")
        return cards.card(
            snapshot.title,
            (kind, self.outcome(snapshot)),
            cards.pre(snapshot.failures[-1].text[-_FAILURE_SHOWN:])
            if failed
            else cards.text(self.result(snapshot) or "nothing was reported"),
            self.figures(snapshot),
            cards.fold(lines, self.details(snapshot)) if snapshot.prints else cards.NOTHING,
            cards.fold("files", cards.files(files)) if files else cards.NOTHING,
            dim=self.note(snapshot),
        )

    def lines(self, snapshot: Any) -> Iterator[tuple[Hashable, str]]:
        """`news`, and what all panels say: who failed, and how it ended."""
        yield "begin", snapshot.subtitle
        yield from self.news(snapshot)
        for number, failure in enumerate(snapshot.failures):
            yield ("failure", number), self.failed(failure)
        if snapshot.over:
            if snapshot.status == "failed" and snapshot.failures:
                yield "traceback", snapshot.failures[-1].text
            yield "end", self.last_line(snapshot)

    def failed(self, failure: Failure) -> str:
        """A failure in one line."""
        who = "" if failure.rank is None else f"rank {failure.rank} "
        told = who and failure.message.startswith(who)  # "rank 1 is gone: …"
        return failure.message if told else f"{who}failed: {failure.message}"

    def last_line(self, snapshot: Any) -> str:
        """The last line of a log, and what an output says that shows no HTML."""
        return f"{snapshot.status} after {duration(snapshot.seconds)}"


def _printed(snapshot: Snapshot) -> str:
    """The last printed lines, as many as a notebook can carry."""
    lines = list(snapshot.prints)
    while lines and sum(map(len, lines)) > _TEXT_SHOWN:
        del lines[: len(lines) // 4 + 1]
    if snapshot.printed > len(lines):
        lines.insert(0, f"… {snapshot.printed - len(lines)} lines before these are in the logs")
    return "\n".join(lines)
