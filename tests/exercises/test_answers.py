"""Looking at answers: the right one passes in silence, any other gets an error that says what was found."""

import numpy as np
import pytest
import torch

from course.exercises.answers import (
    NotAttempted,
    Wrong,
    array_of,
    close_to,
    is_blank,
    number,
    require_no_dots,
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


def has_dots(x):
    return x + ...


def identity(x):
    return x


def test_what_is_still_blank():
    for answer in (..., [1, ...], {"lr": ...}, stub, stub_with_a_docstring, returns_ellipsis, lambda: ...):
        assert is_blank(answer)
    for answer in (None, 0, "...", [], identity, has_dots, lambda: 3, np.zeros(3), torch.zeros(2), Broken()):
        assert not is_blank(answer)
    for function in (stub, has_dots):
        with pytest.raises(NotAttempted):
            require_no_dots(function)
    require_no_dots(identity)


def test_numbers_of_all_kinds():
    for answer in (3, 3.0, np.int64(3), np.float32(3), torch.tensor(3.0, requires_grad=True), np.array(3)):
        assert number(answer) == 3
    for answer in ("3", None, True, np.bool_(True), [3], np.array([3]), float("nan"), 3j, identity, Broken()):
        assert "the batch is " in wrong(number, answer, "the batch")


def test_arrays():
    assert array_of([[1, 2]], shape=(1, 2)).tolist() == [[1, 2]]
    assert array_of(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
    assert "(5, 27)" in wrong(array_of, np.zeros((5, 27)), shape=(5, 28))
    assert "float64" in wrong(array_of, np.zeros(3), dtype="uint8")
    for bad in ("text", ["a"], [[1], [1, 2]], identity, None):
        assert "array" in wrong(array_of, bad)


def test_result_of():
    assert result_of(identity, 3) == 3
    assert "'3' (a str), and a function is expected" in wrong(result_of, "3", 1)
    message = wrong(result_of, lambda x: 1 / x, 0)
    assert message == "your function, called with 0, raised ZeroDivisionError: division by zero"
    assert "SystemExit" in wrong(result_of, lambda: exit(1))
    with pytest.raises(NotAttempted):
        result_of(lambda x: [x, ...], 1)


def test_close_to():
    close_to(torch.tensor(0.5), 0.51, rel=0.05)
    close_to(1e-12, 0)
    mistakes = {64: "that is what ONE worker sees"}
    assert wrong(close_to, 64, 128, mistakes=mistakes) == "your answer is 64: that is what ONE worker sees"
    text = wrong(close_to, 100, 128, mistakes=mistakes)
    assert "100" in text and "128" not in text  # what was found, not the solution
