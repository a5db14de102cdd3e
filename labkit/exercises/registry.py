"""The exercises of all lessons. Those of lesson 03 are in ``lesson_03.py`` in this folder:

    LESSON = Lesson("03", "TorchTrainer")

    @LESSON.exercise(
        "03-2 · Same model, one process",
        "What does every worker hold after `backward()`?",
        "The average of the workers' gradients is the gradient of all their images together.",
        "Count the images of one step, all workers together.",
    )
    def one_process(batch_size):
        close_to(batch_size, 2 * 64, mistakes={64: "that is what ONE worker sees"})

A lesson is found by its file name; there is no list to maintain.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path

from labkit.errors import LabError
from labkit.exercises.running import LIMIT


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lesson: what `Lesson.exercise` was given.

    Attributes:
        id, title: the two parts of its heading.
        check: called with the answers; returns None or raises `labkit.exercises.answers.Wrong`.
    """

    id: str
    title: str
    hints: tuple[str, ...]
    check: Callable[..., None]
    seconds: float
    stuck: str


@dataclass(frozen=True)
class Lesson:
    """A lesson and its exercises, which the decorator `exercise` adds in their order."""

    number: str
    title: str
    exercises: list[Exercise] = field(default_factory=list)

    def exercise(
        self, heading: str, *hints: str, seconds: float = LIMIT, stuck: str = ""
    ) -> Callable[[Callable], Callable]:
        """Make the decorated function the check of an exercise.

        Args:
            heading: as in the notebook: "03-2 · Same model, one process".
            hints: three, from a nudge to nearly the answer, with `code` in backticks.
            seconds: after which the check is stopped. Name it for a check that runs an engine.
            stuck: what is likely wrong with an answer that is not done by then, as a clause.
        """

        def add(check: Callable[..., None]) -> Callable[..., None]:
            id, _, title = heading.partition(" · ")
            self.exercises.append(Exercise(id, title, hints, check, seconds, stuck))
            return check

        return add


@cache
def lessons() -> tuple[Lesson, ...]:
    """All lessons that have exercises, by number."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("lesson_*.py"))
    return tuple(import_module(f"{__package__}.{name}").LESSON for name in names)


def find(id: str) -> Exercise:
    """Return the exercise `id`.

    Raises:
        LabError: there is none.
    """
    known = {exercise.id: exercise for lesson in lessons() for exercise in lesson.exercises}
    text = id if isinstance(id, str) else type(id).__name__
    if text in known:
        return known[text]
    near = difflib.get_close_matches(text, known, n=3, cutoff=0.5) or sorted(known)[:3]
    fact = f"no lesson has it; there are {', '.join(map(repr, near))}"
    raise LabError(f"find the exercise {text[:40]!r}", fact, "use the id in the exercise's heading")
