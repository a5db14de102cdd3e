"""Checks, hints and the progress table, as a learner meets them."""

import json
import re
import time

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.exercises import Lesson, check, checking, hint, predict, progress_table, registry, reveal
from labkit.exercises.answers import close_to, result_of, same_array

HINTS = ("Look at `backward()`, *first*", "<b>more</b>", "64 + 64")


@pytest.fixture(autouse=True)
def lessons(monkeypatch):
    numbers, odd = Lesson("90", "Numbers & <things>"), Lesson("91", "Odd ones")

    @numbers.exercise("90-1 · The global batch", *HINTS)
    def _(n):
        close_to(n, 128, mistakes={64: "ONE worker's"})

    @numbers.exercise("90-2 · Scale images", *HINTS)
    def _(function):
        images = np.array([[0, 255]], np.uint8)
        same_array(result_of(function, images), images / 255, what="what your function returns")

    @numbers.exercise("90-3 · Two answers", *HINTS)
    def _(a, b):
        close_to(a + b, 3)

    @odd.exercise("91-1 · One answer", *HINTS)
    def _(a):
        time.sleep(2.2 if a == "slow" else 0)
        close_to(a, 3)

    monkeypatch.setattr(registry, "lessons", lambda: (numbers, odd))
    monkeypatch.setattr(checking, "_hints_given", {})


def solved(home) -> dict:
    path = home / "exercises.json"
    return json.loads(path.read_text())["solved"] if path.exists() else {}


def test_not_yet_says_what_was_found_and_keeps_what_was_solved(home):
    verdict = check("90-1", 64)
    assert not verdict and solved(home) == {}
    assert repr(verdict) == """90-1 not yet · your answer is 64: ONE worker's. `hint("90-1")` helps"""
    assert repr(check("90-1", 128)) == "90-1 solved · The global batch" and not check("90-1", 64)
    assert "90-1" in solved(home)


def test_a_check_that_takes_longer_counts_the_seconds(capsys):
    check("91-1", 3)
    assert capsys.readouterr().out == ""
    check("91-1", "slow")
    assert "91-1 · running your answer: 2 s of at most 10" in capsys.readouterr().out


@pytest.mark.parametrize("answers", [(), (...,), (None,), ([...],), (1, ...)])
def test_not_attempted_is_no_error(answers, home):
    for id in ("90-1", "90-3"):
        verdict = check(id, *answers)
        assert not verdict
        assert verdict.state == "not attempted"
    assert solved(home) == {}


class Nasty:
    def __repr__(self):
        raise RuntimeError("no repr")

    def __getattr__(self, name):
        raise ValueError("no attribute either")


def exits(images):
    raise SystemExit("bye\nbye")


@pytest.mark.parametrize("id", ["90-1", "90-2", "90-3"])
def test_no_answer_makes_a_traceback(id):
    for answer in ("128", [128], 3j, float("nan"), np.zeros((3, 3)), object, Nasty(), lambda: 3, exits):
        for answers in ((answer,), (answer, answer)):
            verdict = check(id, *answers)
            assert verdict.state == "not yet" and "\n" not in repr(verdict) and len(repr(verdict)) < 700


def test_strict_raises_for_all_but_solved(monkeypatch):
    monkeypatch.setenv("LABKIT_CHECK", "strict")
    assert check("90-1", 128)
    for answers in ((64,), (...,)):
        with pytest.raises(LabError, match="90-1"):
            check("90-1", *answers)


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


def test_hints_come_one_after_the_other():
    first, second, third, again = (hint("90-1") for _ in range(4))
    assert [one.tier for one in (first, second, third, again)] == [1, 2, 3, 1]
    assert hint("90-2").tier == 1  # each exercise has its own
    assert "Look at `backward()`, *first*" in repr(first) and "notebooks/solutions" in repr(third)
    assert "<code>backward()</code>, <em>first</em>" in first._repr_html_()
    assert "&lt;b&gt;more" in second._repr_html_()


def test_the_progress_table():
    check("90-1", 128)
    check("90-3", 1, 2)
    check("90-2", ...)
    for id, guess in (("90-a", 1), ("90-b", 2)):
        predict(id, guess)
        reveal(id, 1)
    predict("91-a", 3)  # it was not revealed yet
    lines = repr(progress_table()).splitlines()
    assert [re.split(r"\s{2,}", line) for line in lines] == [
        ["lesson", "1", "2", "3", "solved", "predicted"],
        ["90 Numbers & <things>", "✓ solved", "open", "✓ solved", "2 of 3", "1 of 2"],
        ["91 Odd ones", "open", "–", "–", "0 of 1", "–"],
    ]
    assert "Numbers &amp; &lt;things&gt;" in progress_table()._repr_html_()
