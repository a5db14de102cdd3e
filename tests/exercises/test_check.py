"""Checks, hints, predictions and their tables, as a learner meets them."""

import json
import re
from contextlib import nullcontext

import numpy as np
import pytest

from course.exercises import (
    Lesson,
    check,
    checking,
    hint,
    predict,
    predictions,
    progress_table,
    registry,
    reveal,
)
from course.exercises.answers import close_to, result_of
from labkit.errors import BadInput, LabError

HINTS = ("Look at `backward()`, *first*", "<b>more</b>", "64 + 64")


@pytest.fixture(autouse=True)
def lessons(monkeypatch):
    numbers, odd = Lesson("90", "Numbers & <things>"), Lesson("91", "Odd ones")

    @numbers.exercise("90-1 · The global batch", *HINTS)
    def _(n):
        close_to(n, 128, mistakes={64: "ONE worker's"})

    @numbers.exercise("90-2 · Scale images", *HINTS)
    def _(function):
        close_to(result_of(function, np.array([255]))[0], 1, what="the first")

    @numbers.exercise("90-3 · Two answers", *HINTS)
    def _(a, b):
        close_to(a + b, 3)

    @odd.exercise("91-1 · One answer", *HINTS)
    def _(a):
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


@pytest.mark.parametrize("answers", [(), (...,), (None,), ([...],), (1, ...)])
def test_not_attempted_is_no_error(answers, home):
    for id in ("90-1", "90-3"):
        assert check(id, *answers).state == "not attempted"
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


@pytest.mark.parametrize("how, limit", [("strict", 10), ("patient", 100)])
def test_strict_raises_for_all_but_solved(monkeypatch, how, limit):
    monkeypatch.setenv("LABKIT_CHECK", how)
    limits = []
    monkeypatch.setattr(checking, "limited", lambda seconds, stuck: limits.append(seconds) or nullcontext())
    assert check("90-1", 128) and limits == [limit]
    for answers in ((64,), (...,)):
        with pytest.raises(LabError, match="90-1"):
            check("90-1", *answers)


def test_a_home_that_cannot_be_written_to_costs_no_verdict(home, monkeypatch):
    (home / "file").touch()
    monkeypatch.setenv("LABKIT_HOME", str(home / "file"))
    assert check("90-1", 128) and "not kept" in repr(check("90-1", 128))


def test_html_says_it_in_words_and_escapes_what_it_quotes():
    assert ">✓ 90-1 solved<" in check("90-1", 128)._repr_html_()
    shown = check("90-1", "<script>alert(1)</script>")._repr_html_()
    assert "90-1 not yet" in shown and "<script" not in shown
    assert "<code>hint(&quot;90-1&quot;)</code>" in shown


def test_hints_come_one_after_the_other():
    hints = [hint("90-1") for _ in range(4)]
    assert [hint.state for hint in hints] == [f"hint {tier} of 3" for tier in (1, 2, 3, 1)]
    assert hint("90-2").state == "hint 1 of 3"  # each exercise has its own
    assert HINTS[0] in repr(hints[0]) and "notebooks/solutions" in repr(hints[2])
    assert "<code>backward()</code>, <em>first</em>" in hints[0]._repr_html_()
    assert "&lt;b&gt;more" in hints[1]._repr_html_()


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


# -- predictions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [(), (...,), (None,)])
def test_a_prediction_that_is_left_alone_costs_nothing(nothing, home, capsys):
    predict("03-a", *nothing)
    predict("03-b", *nothing, choices=["one", "both"])
    reveal("03-a", 0.7)
    assert capsys.readouterr().out.splitlines() == [
        "03-a · a number, in place of `...`; or go on without",
        "03-b · 'one' or 'both', in place of `...`; or go on without",
        "03-a · it was 0.700",
    ]
    assert list(home.iterdir()) == [] and "nothing was predicted" in repr(predictions("03"))


GUESSES = [
    (2, 0.7, "you said 2, it was 0.700: more than a factor of two off"),
    (0.72, np.float32(0.7), "right"),
    (1, 0.7, "close"),
    (-1, 1.0, "more than a factor of two off"),
    (6, 12, "no"),
    (128, 100, "close"),
    ("both", "one", "you said both, it was one: no"),
]


@pytest.mark.parametrize("guess, answer, remark", GUESSES)
def test_a_prediction_is_compared_with_what_came_out(guess, answer, remark, capsys):
    predict("03-a", guess, choices=["one", "both"] if isinstance(guess, str) else ())
    reveal("03-a", answer)
    assert capsys.readouterr().out.splitlines()[1].endswith(remark)


def test_what_is_no_prediction_is_refused(home):
    for guess in ("2", float("nan"), [1]):
        with pytest.raises(BadInput, match="03-a"):
            predict("03-a", guess)
        with pytest.raises(BadInput, match="'one' or 'both'"):
            predict("03-a", guess, choices=["one", "both"])
    for id in ("03-1", 3):
        for use in (lambda id=id: predict(id), lambda id=id: reveal(id, 1)):
            with pytest.raises(BadInput, match="such as .03-a"):
                use()
    assert list(home.iterdir()) == []


def test_the_table_counts_what_was_answered():
    for id, guess in (("03-a", 10), ("03-b", 15), ("03b-a", 10), ("03-c", 99)):
        predict(id, guess)
        if id != "03-c":
            reveal(id, 10.0)
    assert predictions("03").line == "1 of 2 right, 1 close"
    assert predictions().line == "2 of 3 right, 1 close"
    predict("03-b", 10)  # a new guess has no answer yet
    assert predictions("03").line == "1 of 1 right, 0 close"
