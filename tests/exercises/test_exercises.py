"""The registry of exercises, and what every exercise that ships must have."""

import ast
import re
from inspect import signature

import pytest

from course.exercises import check, hint, lessons
from labkit.errors import LabError
from labkit.settings import CHECKOUT

SHIPPED = [(lesson.number, exercise) for lesson in lessons() for exercise in lesson.exercises]


@pytest.mark.parametrize("id", ["90-3", "", "nonsense", 90, None, ["90-1"], "x" * 5000])
def test_an_unknown_id_is_an_error_that_names_others(id):
    for use in (check, hint):
        with pytest.raises(LabError) as caught:
            use(id)
        assert re.search(r"'\d\d-\d'", caught.value.fact) and len(str(caught.value)) < 500


def test_each_file_is_a_lesson():
    assert [lesson.number for lesson in lessons()] == [path.stem.removeprefix("lesson_") for path in _files()]
    ids = [exercise.id for _, exercise in SHIPPED]
    assert len(set(ids)) == len(ids)
    for number, exercise in SHIPPED:  # an exercise that moves from 03 to 03b keeps its id
        assert re.fullmatch(rf"{number[:2]}[bc]?-[1-9]", exercise.id)


@pytest.mark.parametrize("number, exercise", SHIPPED, ids=[exercise.id for _, exercise in SHIPPED])
def test_each_exercise_is_in_its_lesson_has_hints_and_may_be_left_alone(number, exercise):
    (source,) = (CHECKOUT / "lessons").glob(f"{number}_*.py")
    text = source.read_text(encoding="utf-8")
    heading = rf"(?m)^# ### Exercise {exercise.id}(?: ★+)? · {re.escape(exercise.title)}$"
    assert re.search(heading, text)
    assert f'check("{exercise.id}", ' in text
    assert len([hint for hint in exercise.hints if hint.strip()]) == len(exercise.hints) == 3
    assert check(exercise.id, *(... for _ in signature(exercise.check).parameters)).state == "not attempted"


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
    return sorted((CHECKOUT / "lessons" / "checks").glob("*.py"))
