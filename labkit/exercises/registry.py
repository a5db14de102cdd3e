"""The exercises of all lessons. Those of lesson 03 stand in ``lesson_03.py`` in this folder:

    from labkit.exercises.answers import close_to
    from labkit.exercises import Exercise, Lesson

    LESSON = Lesson(
        "03",
        "TorchTrainer",
        (
            Exercise(
                id="03-2",
                title="Same model, one process",
                hints=("What does every worker hold after `backward()`?", "…", "Two workers, 64 each."),
                check=lambda batch: close_to(batch, 2 * 64, mistakes={64: "that is what ONE worker sees"}),
            ),
        ),
    )

A file there is found by its name; there is no list to keep.
"""

import difflib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from labkit.errors import CheckError, LessonError


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise of a lesson.

    Attributes:
        id: the lesson and a number: "03-2".
        title: as in the notebook's heading.
        hints: three, from a nudge to nearly the answer. `Code` in backticks.
        check: called with the answers; returns None, or raises `labkit.exercises.answers.Wrong`.
        none_is_an_answer: None counts as an answer; else it counts as not attempted.
    """

    id: str
    title: str
    hints: tuple[str, str, str]
    check: Callable[..., None]
    none_is_an_answer: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d\d-[1-9]\d*", self.id):
            raise _refuse(self.id, "an id is the lesson and a number from 1 on", 'e.g. id="03-2"')
        if isinstance(self.hints, str) or len(self.hints) != 3 or not all(h.strip() for h in self.hints):
            raise _refuse(
                self.id, f"its hints are {self.hints!r}", "give three, from a nudge to nearly the answer"
            )

    @property
    def lesson(self) -> str:
        return self.id.split("-")[0]

    @property
    def number(self) -> int:
        return int(self.id.split("-")[1])


@dataclass(frozen=True)
class Lesson:
    """The exercises of one lesson: ``Lesson("03", "TorchTrainer", (Exercise(…), Exercise(…)))``."""

    number: str
    title: str
    exercises: tuple[Exercise, ...]

    def __post_init__(self) -> None:
        ids = [exercise.id for exercise in self.exercises]
        for exercise in self.exercises:
            if exercise.lesson != self.number or ids.count(exercise.id) > 1:
                fact = f"lesson {self.number} has the ids {', '.join(ids)}"
                raise _refuse(exercise.id, fact, f'use each id once, and "{self.number}-" before its number')


_registered: dict[str, Lesson] = {}


def lessons() -> list[Lesson]:
    """All lessons that have exercises, by number."""
    return [lesson for _, lesson in sorted({**_shipped(), **_registered}.items())]


def find(id: str) -> Exercise:
    """The exercise `id`.

    Raises:
        CheckError: there is none.
    """
    known = {exercise.id: exercise for lesson in lessons() for exercise in lesson.exercises}
    if isinstance(id, str) and id in known:
        return known[id]
    near = difflib.get_close_matches(str(id), known, n=3, cutoff=0.5) or sorted(known)[:3]
    fact = f"no lesson has it; there are {', '.join(map(repr, near))}" if near else "no lesson has any yet"
    fix = 'give the id that stands in the heading of the exercise, as in check("03-2", answer)'
    raise CheckError(f"find the exercise {id!r}", fact, fix)


def register(lesson: Lesson) -> None:
    """Add a lesson of your own, or put it in the place of the one with that number."""
    _registered[lesson.number] = lesson


@cache
def _shipped() -> dict[str, Lesson]:
    names = sorted(
        m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name.startswith("lesson_")
    )
    found = [import_module(f"{__package__}.{name}").LESSON for name in names]
    return {lesson.number: lesson for lesson in found}


def _refuse(id: str, fact: str, fix: str) -> LessonError:
    return LessonError(f"register the exercise {id!r}", fact, fix)
