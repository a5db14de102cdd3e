"""Looking at answers: the right one passes in silence, any other gets an error that says what was found."""

import numpy as np
import pytest
import torch

from labkit.exercises.answers import (
    NotAttempted,
    Wrong,
    array_of,
    change_is,
    close_to,
    describe,
    is_blank,
    number,
    result_of,
)


class Broken:
    def __repr__(self):
        raise RuntimeError("no repr")


def wrong(function, *args, **options):
    with pytest.raises(Wrong) as caught:
        function(*args, **options)
    return str(caught.value)


def stub(x): ...


def stub_with_a_docstring(x):
    """Scale x."""


def returns_ellipsis(x):
    return ...


def identity(x):
    return x


@pytest.mark.parametrize(
    "answer", [..., [1, ...], (...,), {"lr": ...}, stub, stub_with_a_docstring, returns_ellipsis, lambda: ...]
)
def test_blank(answer):
    assert is_blank(answer)


@pytest.mark.parametrize(
    "answer", [None, 0, "", "...", [], {}, identity, lambda: 3, print, np.zeros(3), torch.zeros(2), Broken()]
)
def test_not_blank(answer):
    assert not is_blank(answer)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (64, "64"),
        ("64", "'64' (a str)"),
        (None, "None"),
        ([1, 2], "[1, 2] (a list)"),
        (np.zeros((3, 28), np.uint8), "an array of shape (3, 28), uint8"),
        (torch.zeros(2), "a Tensor of shape (2,), float32"),
        (identity, "the function identity"),
        (Broken, "the class Broken"),
        (Broken(), "a Broken"),
    ],
)
def test_any_value_can_be_describe(value, text):
    assert describe(value) == text


def test_long_values_are_cut():
    assert describe(10**5000) == "an int"  # Python refuses to write it out
    assert len(describe("x\n" * 5000)) < 80 and "\n" not in describe("x\n" * 5000)


class Eager:
    """What a tensor of TensorFlow has; TensorFlow itself never meets PyTorch in one process."""

    ndim = 0

    def numpy(self):
        return np.float32(3)


@pytest.mark.parametrize(
    "answer", [3, 3.0, np.int64(3), np.float32(3), torch.tensor(3), np.array(3), Eager()]
)
def test_numbers_of_all_kinds(answer):
    assert number(answer) == 3


@pytest.mark.parametrize(
    "answer", ["3", None, True, np.bool_(True), [3], np.array([3]), float("nan"), 3j, identity]
)
def test_what_is_no_number(answer):
    assert "the batch is " in wrong(number, answer, "the batch")


def test_close_to():
    close_to(128, 128)
    close_to(0.1 + 0.2, 0.3)
    close_to(torch.tensor(0.5), 0.51, rel=0.05)
    close_to(1e-12, 0)
    mistakes = {64: "that is what ONE worker sees"}
    assert wrong(close_to, 64, 128, mistakes=mistakes) == "your answer is 64: that is what ONE worker sees"
    text = wrong(close_to, 100, 128, mistakes=mistakes)
    assert "100" in text
    assert "128" not in text  # what was found, not the solution
    assert "str" in wrong(close_to, "128", 128)


def test_change_is():
    right = {"speed": ("more", "there are two"), "memory": ("same", "it is shared")}
    change_is({"speed": "more", "memory": "same"}, right)
    assert "it is shared" in wrong(change_is, {"speed": "more", "memory": "less"}, right)
    for answer in ({"speed": "faster"}, {}):
        assert 'write "less", "same" or "more"' in wrong(change_is, answer, right)
    assert "the dict" in wrong(change_is, ["more"], right)


def test_array_of():
    assert array_of([[1, 2]], shape=(1, 2)).tolist() == [[1, 2]]
    assert array_of(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
    array_of(np.zeros((5, 28, 28), np.uint8), shape=(5, 28, 28), dtype="uint8")
    assert "(5, 27)" in wrong(array_of, np.zeros((5, 27)), shape=(5, 28))
    assert "float64" in wrong(array_of, np.zeros(3), dtype="uint8")
    for bad in ("text", ["a"], [[1], [1, 2]], identity, None):
        assert "array" in wrong(array_of, bad)


def test_result_of():
    assert result_of(identity, 3) == 3
    assert "'3' (a str), and a function is expected" in wrong(result_of, "3", 1)

    def divides(x):
        return 1 / x

    assert wrong(result_of, divides, 0) == (
        "your function, called with 0, raised ZeroDivisionError: division by zero"
    )
    assert "SystemExit" in wrong(result_of, lambda: exit(1))
    assert "TypeError" in wrong(result_of, divides)

    for unwritten in (returns_ellipsis, lambda x: [x, ...]):
        with pytest.raises(NotAttempted):
            result_of(unwritten, 1)


def test_an_interrupt_is_the_readers_and_goes_on():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        result_of(interrupted)
