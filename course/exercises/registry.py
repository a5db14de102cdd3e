"""The exercises of all lessons. Those of lesson 03 are in ``lessons/checks/lesson_03.py``:

    LESSON = Lesson("03", "TorchTrainer")

    @LESSON.exercise(
        "03-2 · Same model, one process",
        "What does every worker hold after `backward()`?",
        "The average of the workers' gradients is the gradient of all their images together.",
        "Count the images of one step, all workers together.",
    )
    def one_process(batch_size):
        close_to(batch_size, 2 * 64, mistakes={64: "that is what ONE worker sees"})

A lesson is found by its file name, ``lesson_03.py`` or ``lesson_03b.py``; there is no list to maintain.
"""

import contextlib
import difflib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType

from course.exercises import kept
from labkit.errors import BadInput, LabError
from labkit.settings import CHECKOUT, Settings

_LIMIT = 10.0  # seconds of a check that names no others


@dataclass(frozen=True)
class Exercise:
    """One exercise, with the arguments of `Lesson.exercise`."""

    id: str
    title: str
    hints: tuple[str, ...]
    check: Callable[..., None]  # returns None or raises `course.exercises.answers.Wrong`
    seconds: float
    stuck: str


@dataclass(frozen=True)
class Lesson:
    """A lesson, with a number such as "03" or "03b", and its exercises in their order."""

    number: str
    title: str
    exercises: list[Exercise] = field(default_factory=list)

    def exercise(
        self, heading: str, *hints: str, seconds: float = _LIMIT, stuck: str = ""
    ) -> Callable[[Callable], Callable]:
        """Make the decorated function the check of an exercise, with a heading as in the notebook.

        Args:
            hints: three, from a nudge to nearly the answer, with `code` in backticks.
            seconds: after which the check is stopped. Name it for a check that runs an engine.
            stuck: what is likely wrong with an answer that is not done by then, as a clause.
        """

        def add(check: Callable[..., None]) -> Callable[..., None]:
            id, _, title = heading.partition(" · ")
            self.exercises.append(Exercise(id, title, hints, check, seconds, stuck))
            return check

        return add


@cache  # the checks stay the same in a notebook that changes its working folder
def root() -> Path:
    """Return the folder with ``lessons/checks``: the checkout, or the one around this kernel's notebooks."""
    here = Path.cwd()
    around = [folder.parent for folder in (here, *here.parents) if folder.name == "notebooks"]
    for folder in (CHECKOUT, here, *around):
        if (folder / "lessons" / "checks").is_dir():
            return folder
    raise LabError(
        "find the checks of the exercises",
        f"labkit is installed without the lessons, and no folder lessons/checks belongs to {here}",
        "open the notebook in a checkout of the lab, or in the unpacked lab-learners.zip of your teacher",
    )


def lessons() -> tuple[Lesson, ...]:
    """Return all lessons that have exercises, by number."""
    paths = sorted((root() / "lessons" / "checks").glob("lesson_[0-9]*.py"))
    return tuple(_load(path).LESSON for path in paths)


def load(number: str) -> ModuleType:
    """Import the module with the checks of a lesson, such as "03"."""
    return _load(root() / "lessons" / "checks" / f"lesson_{number}.py")


@cache
def _load(path: Path) -> ModuleType:
    # The module is not in sys.modules. So the cloudpickle of Ray and that of Spark send a function of a
    # check to the workers together with its code; by its name no worker could import it.
    spec = importlib.util.spec_from_file_location(f"checks-{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find(id: str) -> Exercise:
    """Return the exercise `id`. If there is none, `BadInput` names similar ones."""
    exercises = {exercise.id: exercise for lesson in lessons() for exercise in lesson.exercises}
    text = str(id)[:40]
    if text in exercises:
        return exercises[text]
    similar = difflib.get_close_matches(text, exercises, n=3, cutoff=0.5) or sorted(exercises)[:3]
    raise BadInput(
        f"find the exercise {text!r}",
        f"no lesson has it; there are {', '.join(map(repr, similar))}",
        "use the id in the exercise's heading",
    )


def attend() -> None:
    """Let the package `classroom` note each cell from now on, if this reader has joined a class."""
    if (Settings.from_env().home / "class.json").exists():
        with contextlib.suppress(Exception):  # nothing of this may show up in a lesson
            from course.classroom import attendance

            attendance.attend(kept.update, root() / "notebooks")
