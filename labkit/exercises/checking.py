"""Exercises: check an answer, ask for a hint, see what is solved.

    >>> check("03-2", global_batch)
    03-2 solved · Same model, one process
    >>> hint("03-2")
    Hint 1 of 3 for 03-2: What does every worker hold after `backward()`? (More: hint("03-2") again)

With ``LABKIT_CHECK=strict`` anything but *solved* raises: so CI runs the solutions.
"""

import html
import inspect
import re
from dataclasses import dataclass
from typing import Any

from labkit.errors import CheckError, LessonError
from labkit.exercises import registry as exercises
from labkit.exercises import solved
from labkit.exercises.answers import NotAttempted, Wrong, is_blank, shown
from labkit.exercises.registry import Exercise, Lesson
from labkit.settings import Settings

_MARKS = {"solved": "✓", "not yet": "✕", "not attempted": "○"}
_COLOURS = {
    "solved": "var(--jp-success-color1,#2e7d4f)",
    "not yet": "var(--jp-error-color1,#c62828)",
    "not attempted": "var(--jp-content-font-color2,#666)",
}

_hints_given: dict[str, int] = {}  # in this kernel: a notebook that is run again starts with hint 1


@dataclass(frozen=True)
class Verdict:
    """What a check found. True where the exercise is solved.

    Attributes:
        id: of the exercise.
        state: "solved", "not yet" or "not attempted".
        message: what was found, in one line.
    """

    id: str
    state: str
    message: str

    def __bool__(self) -> bool:
        return self.state == "solved"

    def __repr__(self) -> str:
        return f"{self.id} {self.state} · {self.message}"

    def _repr_html_(self) -> str:
        head = f"{_MARKS[self.state]} {self.id} {self.state}"
        return f"<div><b style='color:{_COLOURS[self.state]}'>{head}</b> · {_html(self.message)}</div>"


@dataclass(frozen=True)
class Hint:
    """One of the three hints of an exercise; shows itself."""

    id: str
    tier: int
    text: str

    def __repr__(self) -> str:
        return f"Hint {self.tier} of 3 for {self.id}: {self.text} ({self._next()})"

    def _repr_html_(self) -> str:
        muted = f"<span style='color:{_COLOURS['not attempted']}'>({_html(self._next())})</span>"
        return f"<div><b>Hint {self.tier} of 3 for {self.id}:</b> {_html(self.text)} {muted}</div>"

    def _next(self) -> str:
        again = f'More: `hint("{self.id}")` again'
        return again if self.tier < 3 else "The last one; the solution is in `notebooks/solutions/`"


class ProgressTable:
    """Lessons × exercises and which are solved; shows itself as a table."""

    def __init__(self, lessons: list[Lesson], done: dict[str, str]) -> None:
        columns = max((e.number for lesson in lessons for e in lesson.exercises), default=0)
        self._head = ["lesson", *map(str, range(1, columns + 1)), "solved"]
        self._rows = [self._row(lesson, done, columns) for lesson in lessons]

    @staticmethod
    def _row(lesson: Lesson, done: dict[str, str], columns: int) -> list[str]:
        words = {e.number: "solved" if e.id in done else "open" for e in lesson.exercises}
        count = f"{list(words.values()).count('solved')} of {len(words)}"
        cells = [words.get(n, "–") for n in range(1, columns + 1)]
        return [f"{lesson.number} {lesson.title}", *cells, count]

    def __repr__(self) -> str:
        if not self._rows:
            return "no lesson has exercises yet"
        rows = [self._head, *self._rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )

    def _repr_html_(self) -> str:
        if not self._rows:
            return f"<div>{self!r}</div>"
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self._rows)
        head = "".join(f"<th style='text-align:left'>{html.escape(name)}</th>" for name in self._head)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def check(id: str, *answers: Any) -> Verdict:
    """Look at the `answers` to the exercise `id`, and keep it if it is solved.

    An answer of ``...`` is *not attempted*. Whatever else it is, and whatever it raises, there is a
    verdict and no traceback.

    Raises:
        CheckError: there is no such exercise; or it is not solved and ``LABKIT_CHECK=strict``.
    """
    exercise, settings = exercises.find(id), Settings.from_env()
    verdict = _judge(exercise, answers)
    if settings.check_strict and not verdict:
        raise CheckError(
            f"count exercise {id} ({exercise.title}) as solved",
            f"{verdict.state}: {verdict.message}",
            f'hint("{id}"), or unset LABKIT_CHECK: then a check never raises',
        )
    if not verdict:
        return verdict
    try:
        solved.mark(settings.home, id)
    except OSError as error:
        return Verdict(id, verdict.state, f"{verdict.message} (not kept in the progress table: {error})")
    return verdict


def hint(id: str, tier: int | None = None) -> Hint:
    """The next hint of the exercise `id`, from 1 to 3; or the hint `tier`, as often as you like.

    Raises:
        CheckError: there is no such exercise or tier.
    """
    exercise = exercises.find(id)
    if tier is None:
        tier = _hints_given[id] = min(_hints_given.get(id, 0) + 1, 3)
    if tier not in (1, 2, 3):
        raise CheckError(
            f"give hint {tier!r} of {id}", "an exercise has three hints", f'hint("{id}", 1), 2 or 3'
        )
    return Hint(id, tier, exercise.hints[tier - 1])


def progress_table() -> ProgressTable:
    """All lessons, their exercises, and which of them are solved."""
    return ProgressTable(exercises.lessons(), solved.read(Settings.from_env().home))


def _judge(exercise: Exercise, answers: tuple) -> Verdict:
    try:
        returned = _ask(exercise, answers)
    except NotAttempted:
        state, message = "not attempted", "put your answer where the `...` is"
    except Wrong as error:
        state, message = "not yet", _line(error)
    except (Exception, SystemExit) as error:
        state = "not yet"
        message = (
            f"your answer is {', '.join(map(shown, answers))}, "
            f"and looking at it raised {type(error).__name__}: {_line(error)}"
        )
    else:
        if returned is None:
            return Verdict(exercise.id, "solved", exercise.title)
        # Else a check that forgot to raise would call every answer right.
        fact, fix = f"it returned {shown(returned)}", "a check returns None or raises Wrong"
        raise LessonError(f"use the check of exercise {exercise.id}", fact, fix)
    return Verdict(exercise.id, state, f'{message}. `hint("{exercise.id}")` helps')


def _ask(exercise: Exercise, answers: tuple) -> Any:
    if not answers or any(is_blank(a) or (a is None and not exercise.none_is_an_answer) for a in answers):
        raise NotAttempted
    _refuse_wrong_number(exercise, answers)
    return exercise.check(*answers)


def _refuse_wrong_number(exercise: Exercise, answers: tuple) -> None:
    signature = inspect.signature(exercise.check)
    try:
        signature.bind(*answers)
    except TypeError as error:
        wanted = ", ".join(signature.parameters)
        raise Wrong(f"the check takes {wanted}, and {len(answers)} came") from error


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= 300 else text[:299] + "…"


def _html(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _cell(word: str) -> str:
    mark, colour = ("✓ ", _COLOURS["solved"]) if word == "solved" else ("", "inherit")
    return f"<td style='text-align:left;color:{colour}'>{mark}{html.escape(word)}</td>"
