"""The registry of exercises, and what every exercise that ships must have."""

import ast
import re
from pathlib import Path

import pytest

from labkit.errors import CheckError, LessonError
from labkit.exercises import Exercise, Lesson
from labkit.exercises import registry as exercises

HINTS = ("a nudge", "more", "nearly")


def exercise(id="90-1", **changes):
    return Exercise(**{"id": id, "title": "A title", "hints": HINTS, "check": lambda answer: None, **changes})


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(exercises, "_registered", {})
    exercises.register(Lesson("91", "Later", (exercise("91-1"),)))
    exercises.register(Lesson("90", "Sooner", (exercise("90-1"), exercise("90-2"))))


def test_lessons_come_by_number(registered):
    numbers = [lesson.number for lesson in exercises.lessons()]
    assert numbers == sorted(numbers)
    assert numbers[-2:] == ["90", "91"]


def test_an_exercise_is_found_by_its_id(registered):
    found = exercises.find("90-2")
    assert (found.id, found.lesson, found.number) == ("90-2", "90", 2)


@pytest.mark.parametrize("id", ["90-3", "9-02", "", "nonsense", 90, None, ["90-1"]])
def test_an_unknown_id_is_an_error_that_names_others(registered, id):
    with pytest.raises(CheckError) as caught:
        exercises.find(id)
    assert re.search(r"'\d\d-\d'", caught.value.fact)


def test_a_lesson_can_be_replaced(registered):
    exercises.register(Lesson("90", "Other", (exercise("90-7"),)))
    assert exercises.find("90-7").number == 7
    with pytest.raises(CheckError):
        exercises.find("90-1")


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "3-2"},
        {"id": "03_2"},
        {"id": "03-0"},
        {"hints": ("only one",)},
        {"hints": ("one", "", "three")},
        {"hints": "abc"},
    ],
)
def test_an_exercise_that_is_not_whole_is_refused(changes):
    with pytest.raises(LessonError):
        exercise(**changes)


def test_a_lesson_refuses_what_is_not_its_own_and_what_it_has_twice():
    with pytest.raises(LessonError, match="91-1"):
        Lesson("90", "x", (exercise("91-1"),))
    with pytest.raises(LessonError, match="90-1, 90-1"):
        Lesson("90", "x", (exercise("90-1"), exercise("90-1")))


def test_what_ships_is_found_and_numbered_from_one():
    files = {path.stem.removeprefix("lesson_") for path in _files() if path.stem != "__init__"}
    shipped = exercises._shipped()
    assert set(shipped) == files
    for lesson in shipped.values():
        assert [e.number for e in lesson.exercises] == list(range(1, len(lesson.exercises) + 1))


def test_the_files_import_only_what_stands_below_them():
    """An exercise looks at what it is given; whoever checks one has no engine to wait for."""
    for path in _files():
        imported = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
        roots = {name.split(".")[0] for name in imported}
        assert not roots & {"ray", "torch", "tensorflow", "pyspark", "keras"}, path.name
        allowed = {"labkit.exercises.answers", "labkit.errors", "labkit.exercises.registry"}
        assert {name for name in imported if name.startswith("labkit")} <= allowed, path.name


def _files():
    return sorted(Path(exercises.__file__).parent.glob("lesson_*.py"))
