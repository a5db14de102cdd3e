"""The registry of exercises, and what every exercise that ships must have."""

import ast
import re
from pathlib import Path

import pytest

from labkit.errors import LabError
from labkit.exercises import check, lessons, registry
from labkit.exercises.registry import Lesson
from labkit.settings import CHECKOUT

SHIPPED = [exercise for lesson in lessons() for exercise in lesson.exercises]


@pytest.mark.parametrize("id", ["90-3", "9-02", "", "nonsense", 90, None, ["90-1"], "x" * 5000])
def test_an_unknown_id_is_an_error_that_names_others(id):
    with pytest.raises(LabError) as caught:
        check(id, 1)
    assert re.search(r"'\d\d-\d'", caught.value.fact)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("id", "hints"),
    [
        ("3-1", "abc"),
        ("03-2", "abc"),
        ("03-0", "abc"),
        ("03-1", ["only one"]),
        ("03-1", ["one", " ", "three"]),
    ],
)
def test_an_exercise_that_is_not_complete_is_refused(id, hints):
    with pytest.raises(LabError, match=id):
        Lesson("03", "Title").exercise(id, "A title", *hints)(lambda answer: None)


def test_each_file_is_a_lesson():
    assert [lesson.number for lesson in lessons()] == [path.stem.removeprefix("lesson_") for path in _files()]
    assert all(lesson.exercises for lesson in lessons())


@pytest.mark.parametrize("exercise", SHIPPED, ids=lambda exercise: exercise.id)
def test_each_exercise_is_in_its_lesson(exercise):
    (source,) = (CHECKOUT / "lessons").glob(f"{exercise.id[:2]}_*.py")
    text = source.read_text(encoding="utf-8")
    assert f"# ### Exercise {exercise.id} · {exercise.title}\n" in text
    assert f'check("{exercise.id}", ' in text


def test_a_check_that_runs_no_engine_waits_for_none():
    """A check that runs one imports it itself; the module, which all checks of a lesson share, doesn't."""
    for path in _files():
        imported = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
        roots = {name.split(".")[0] for name in imported}
        assert not roots & {"ray", "torch", "tensorflow", "pyspark", "keras"}, path.name


def _files():
    return sorted(Path(registry.__file__).parent.glob("lesson_*.py"))
