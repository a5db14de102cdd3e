"""Answers to exercises: the lessons' own solutions, some with the text of a likely mistake."""

import ast
import functools
import itertools
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle

import build
import lesson
from course.exercises import check

_numbers = itertools.count()


def checks(by_exercise: dict[str, list[tuple]], **names: Any) -> Callable[..., None]:
    """Return a test of what `check` says, for pytest to collect under the name that a module gives it.

    Args:
        by_exercise: (answer, verdict) of each case. The answer is a list of what is passed to `check`, or a
            change of the lesson's own solution. That the solution itself is right, test_notebooks shows.
        names: as `solution` takes them.
    """
    cases = [(exercise, *case) for exercise, listed in by_exercise.items() for case in listed]

    @pytest.mark.parametrize(("exercise", "answer", "verdict"), cases)
    def test(exercise: str, answer: list | dict, verdict: str) -> None:
        answers = answer if isinstance(answer, list) else solution(exercise, answer, **names)
        said = repr(check(exercise, *answers))
        assert verdict in said, said

    return test


class Runs:
    """An answer whose runs, where the engine is `replaced`, return or raise these values in turn."""

    def __init__(self, *values: Any) -> None:
        self.left = iter(values)


def replaced(answer: Runs, *args: Any, **options: Any) -> Any:
    """What a test puts in the place of a function that runs an answer on an engine."""
    value = next(answer.left)
    if isinstance(value, Exception):
        raise value
    return value


def solution(id: str, change: dict[str, str] | None = None, **names: Any) -> list[Any]:
    """What the solved lesson passes to ``check(id, …)``, with a change of the solution's text.

    Its functions belong to no module, so they travel to workers by value. `given` is what the answers use of
    the lesson, or what the lesson passes besides them; None is not passed.
    """
    cells = _cells(id.partition("-")[0]) if id not in _MOVED else _cells(_MOVED[id])
    place = next(n for n, cell in enumerate(cells) if cell.source.startswith(f'check("{id}"'))
    text = next(cell.source for cell in reversed(cells[:place]) if cell.is_solution)
    for old, new in (change or {}).items():
        assert old in text, f"the solution of {id} has no {old!r}"
        text = text.replace(old, new)
    name = f"<answer {next(_numbers)} to {id}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name  # for inspect.getsource
    space = {"__name__": "answer"} | _imported(cells) | names
    exec(compile(text, name, "exec"), space)
    call = lesson.parse(cells[place].source).body[-1].value
    answers = (eval(ast.unparse(argument), space) for argument in call.args[1:])
    return [answer for answer in answers if answer is not None]


_MOVED = {"03-2": "03b", "03-3": "03b", "05-2": "05b", "05-5": "05b"}


@functools.cache
def _cells(number: str) -> list[lesson.Cell]:
    (source,) = (path for path in build.sources() if lesson.number(path) == number)
    return lesson.read(source)


def _imported(cells: list[lesson.Cell]) -> dict[str, Any]:
    """What the lesson's cells import; `my_loop` by value, as in the lessons."""
    space: dict[str, Any] = {}
    if (folder := str(Path(build.FOLDER))) not in sys.path:
        sys.path.append(folder)
    for cell in (cell for cell in cells if cell.kind == "code" and not cell.is_claim):
        for node in getattr(lesson.parse(cell.source), "body", []):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and "killed_sweep" not in ast.unparse(node):
                exec(ast.unparse(node), space)
    if "my_loop" in space:
        cloudpickle.register_pickle_by_value(space["my_loop"])
    return space
