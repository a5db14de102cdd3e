"""The registry of exercises, and what every exercise that ships must have."""

import ast
import re
from inspect import signature
from pathlib import Path

import pytest

from labkit.errors import LabError
from labkit.exercises import check, hint, lessons, registry
from labkit.settings import CHECKOUT

SHIPPED = [exercise for lesson in lessons() for exercise in lesson.exercises]


@pytest.mark.parametrize("use", [check, hint])
@pytest.mark.parametrize("id", ["90-3", "9-02", "", "nonsense", 90, None, ["90-1"], "x" * 5000])
def test_an_unknown_id_is_an_error_that_names_others(use, id):
    with pytest.raises(LabError) as caught:
        use(id)
    assert re.search(r"'\d\d-\d'", caught.value.fact)
    assert len(str(caught.value)) < 500


def test_each_file_is_a_lesson():
    assert [lesson.number for lesson in lessons()] == [path.stem.removeprefix("lesson_") for path in _files()]
    for lesson in lessons():
        ids = [exercise.id for exercise in lesson.exercises]
        assert ids == [f"{lesson.number}-{place + 1}" for place in range(len(ids))] and ids


@pytest.mark.parametrize("exercise", SHIPPED, ids=lambda exercise: exercise.id)
def test_each_exercise_is_in_its_lesson_has_hints_and_may_be_left_alone(exercise):
    (source,) = (CHECKOUT / "lessons").glob(f"{exercise.id[:2]}_*.py")
    text = source.read_text(encoding="utf-8")
    assert f"# ### Exercise {exercise.id} · {exercise.title}\n" in text
    assert f'check("{exercise.id}", ' in text
    assert len([one for one in exercise.hints if one.strip()]) == len(exercise.hints) == 3
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
    return sorted(Path(registry.__file__).parent.glob("lesson_*.py"))
