"""Checks, hints and the progress table, as a learner meets them."""

import importlib
import re

import numpy as np
import pytest

from labkit.errors import CheckError, LabError, LessonError
from labkit.exercises import Exercise, Lesson, solved
from labkit.exercises import registry as exercises
from labkit.exercises.answers import array_of, close_to, result_of, same_array
from labkit.exercises.checking import check, hint, progress_table

HINTS = ("Look at `backward()`", "<b>more</b>", "64 + 64")
MODULE = importlib.import_module("labkit.exercises.checking")


def scales(function):
    images = np.array([[0, 255]], np.uint8)
    same_array(result_of(function, images), images / 255, what="what your function returns")


def needs_array(answer):
    array_of(answer, shape=(None, 28, 28))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.delenv("LABKIT_CHECK", raising=False)
    monkeypatch.setattr(exercises, "_registered", {})
    monkeypatch.setattr(exercises, "_shipped", dict)
    monkeypatch.setattr(MODULE, "_hints_given", {})

    def exercise(id, title, check, **options):
        return Exercise(id=id, title=title, hints=HINTS, check=check, **options)

    exercises.register(
        Lesson(
            "90",
            "Numbers & <things>",
            (
                exercise(
                    "90-1", "The global batch", lambda n: close_to(n, 128, mistakes={64: "ONE worker's"})
                ),
                exercise("90-2", "Scale images", scales),
                exercise("90-3", "Two answers", lambda a, b: close_to(a + b, 3)),
            ),
        )
    )
    exercises.register(
        Lesson(
            "91",
            "Odd ones",
            (
                exercise("91-1", "None is right", lambda a: None, none_is_an_answer=True),
                exercise("91-2", "A check that forgets to raise", lambda a: a == 3),
            ),
        )
    )
    return tmp_path


def test_solved(home):
    verdict = check("90-1", 128)
    assert verdict
    assert repr(verdict) == "90-1 solved · The global batch"
    assert "90-1" in solved.read(home)
    assert check("90-2", lambda images: images / 255)
    assert check("90-3", 1, 2)


def test_not_yet_says_what_was_found_and_keeps_nothing(home):
    verdict = check("90-1", 64)
    assert not verdict
    assert repr(verdict) == """90-1 not yet · your answer is 64: ONE worker's. `hint("90-1")` helps"""
    assert solved.read(home) == {}


def test_once_solved_stays_solved(home):
    check("90-1", 128)
    check("90-1", 64)
    assert "90-1" in solved.read(home)


@pytest.mark.parametrize("answers", [(), (...,), (None,), ([...],), (1, ...)])
def test_not_attempted_is_no_error(answers, home):
    for id in ("90-1", "90-3"):
        verdict = check(id, *answers)
        assert not verdict
        assert verdict.state == "not attempted"
    assert solved.read(home) == {}


def test_a_function_that_is_not_written_yet_is_not_attempted():
    def scale(images): ...

    def later(images):
        raise NotImplementedError

    assert check("90-2", scale).state == "not attempted"
    assert check("90-2", later).state == "not attempted"


def test_none_can_be_an_answer():
    assert check("91-1", None)
    assert check("91-1", ...).state == "not attempted"


class Nasty:
    def __repr__(self):
        raise RuntimeError("no repr")

    def __getattr__(self, name):
        raise ValueError("no attribute either")


def no_arguments():
    return 3


def exits(images):
    raise SystemExit("bye\nbye")


NASTY = [
    "128",
    True,
    [128],
    {1: 2},
    b"x",
    3j,
    float("nan"),
    np.zeros((3, 3)),
    object,
    Nasty(),
    no_arguments,
    exits,
]


@pytest.mark.parametrize("answer", NASTY, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("id", ["90-1", "90-2", "90-3"])
def test_no_answer_makes_a_traceback(id, answer):
    for answers in ((answer,), (answer, answer), (answer,) * 3):
        verdict = check(id, *answers)
        assert verdict.state == "not yet"
        assert "\n" not in repr(verdict)
        assert "\n" not in verdict._repr_html_()
        assert len(repr(verdict)) < 700


def test_helpful_words():
    assert "'128' (a str)" in repr(check("90-1", "128"))
    assert "shape (2,)" in repr(check("90-2", lambda images: images[0]))
    assert "2 of its 2 values differ" in repr(check("90-2", lambda images: images / 255 + 1))
    assert "ZeroDivisionError" in repr(check("90-2", lambda images: 1 / 0))
    assert "the check takes a, b, and 1 came" in repr(check("90-3", 1))
    assert "TypeError" in repr(check("90-3", "a", 1))


def test_strict_raises_for_all_but_solved(monkeypatch):
    monkeypatch.setenv("LABKIT_CHECK", "strict")
    assert check("90-1", 128)
    for answers in ((64,), (...,), (), ("x",)):
        with pytest.raises(CheckError, match="90-1"):
            check("90-1", *answers)


def test_an_unknown_exercise_is_an_error_in_any_mode():
    for use in (check, hint):
        with pytest.raises(CheckError, match="90-1"):
            use("90-9")


@pytest.mark.parametrize("answer", [3, 4])
def test_a_check_that_forgets_to_raise_is_the_authors_error(answer):
    with pytest.raises(LessonError, match="91-2"):
        check("91-2", answer)


def test_a_home_that_cannot_be_written_to_costs_no_verdict(home, monkeypatch):
    (home / "file").touch()
    monkeypatch.setenv("LABKIT_HOME", str(home / "file"))
    verdict = check("90-1", 128)
    assert verdict
    assert "not kept" in repr(verdict)


def test_html_says_it_in_words_and_escapes_what_it_quotes():
    assert ">✓ 90-1 solved<" in check("90-1", 128)._repr_html_()
    shown = check("90-1", "<script>alert(1)</script>")._repr_html_()
    assert "90-1 not yet" in shown
    assert "<script" not in shown
    assert "<code>hint(&quot;90-1&quot;)</code>" in shown
    assert "not attempted" in check("90-1", ...)._repr_html_()


def test_hints_come_one_after_the_other_and_the_last_stays():
    assert [hint("90-1").tier for _ in range(4)] == [1, 2, 3, 3]
    assert hint("90-2").tier == 1  # each exercise has its own
    assert [hint("90-1", tier).text for tier in (1, 2, 3, 1)] == [*HINTS, HINTS[0]]
    assert hint("90-2").tier == 2  # asking for one by number moves nothing
    assert "Look at `backward()`" in repr(hint("90-1", 1))
    assert "<code>backward()</code>" in hint("90-1", 1)._repr_html_()
    assert "&lt;b&gt;more" in hint("90-1", 2)._repr_html_()
    for tier in (0, 4, "1"):
        with pytest.raises(LabError, match="three hints"):
            hint("90-1", tier)


def test_the_progress_table():
    check("90-1", 128)
    check("90-3", 1, 2)
    check("90-2", ...)
    lines = repr(progress_table()).splitlines()
    assert re.split(r"\s{2,}", lines[0]) == ["lesson", "1", "2", "3", "solved"]
    assert re.split(r"\s{2,}", lines[1]) == ["90 Numbers & <things>", "solved", "open", "solved", "2 of 3"]
    assert re.split(r"\s{2,}", lines[2]) == ["91 Odd ones", "open", "open", "–", "0 of 2"]
    html = progress_table()._repr_html_()
    assert html.count("✓ solved") == 2
    assert html.count("<tr>") == 3
    assert "Numbers &amp; &lt;things&gt;" in html


def test_the_progress_table_of_no_lessons(monkeypatch):
    monkeypatch.setattr(exercises, "_registered", {})
    assert "no lesson" in repr(progress_table())
    assert "no lesson" in progress_table()._repr_html_()
