"""Predictions: kept, compared with what came out, and listed."""

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.exercises import predict, predictions, reveal


@pytest.mark.parametrize("nothing", [(), (...,), (None,)])
def test_left_alone_it_costs_nothing(nothing, home, capsys):
    predict("03-a", *nothing)
    predict("03-b", *nothing, choices=["one", "both"])
    reveal("03-a", 0.7)
    assert capsys.readouterr().out.splitlines() == [
        "03-a · a number, in place of `...`; or go on without",
        "03-b · 'one' or 'both', in place of `...`; or go on without",
        "03-a · it was 0.700",
    ]
    assert list(home.iterdir()) == []
    assert "nothing was predicted" in repr(predictions("03"))


@pytest.mark.parametrize(
    ("guess", "answer", "remark"),
    [
        (2, 0.7, "you said 2, it was 0.700: more than a factor of two off"),
        (0.72, np.float32(0.7), "right"),
        (1, 0.7, "close"),
        (-1, 1.0, "more than a factor of two off"),
        (6, 12, "no"),  # a count
        (128, 100, "close"),
    ],
)
def test_a_number(guess, answer, remark, capsys):
    predict("03-a", guess)
    reveal("03-a", answer)
    assert capsys.readouterr().out.splitlines()[1].endswith(remark)


def test_a_choice(capsys):
    predict("03-b", "both", choices=["one", "both"])
    reveal("03-b", "one")
    assert capsys.readouterr().out.splitlines()[1] == "03-b · you said both, it was one: no"


@pytest.mark.parametrize("guess", ["2", float("nan"), [1]])
def test_what_is_no_number_is_refused(guess, home):
    with pytest.raises(LabError, match="03-a"):
        predict("03-a", guess)
    with pytest.raises(LabError, match="'one' or 'both'"):
        predict("03-a", guess, choices=["one", "both"])
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("id", ["03-1", 3])
def test_an_id_has_a_lesson_and_a_letter(id):
    for use in (lambda: predict(id), lambda: reveal(id, 1)):
        with pytest.raises(LabError, match="03-a"):
            use()


def test_the_table_counts_what_was_answered():
    for id, guess in (("03-a", 10), ("03-b", 15), ("03b-a", 10), ("03-c", 99)):
        predict(id, guess)
        if id != "03-c":
            reveal(id, 10.0)
    assert predictions("03").line == "1 of 2 right, 1 close"
    assert predictions().line == "2 of 3 right, 1 close"
    predict("03-b", 10)  # a new guess has no answer yet
    assert predictions("03").line == "1 of 1 right, 0 close"
