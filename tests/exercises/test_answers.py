"""What is a blank and what is a number, of all that a learner may pass. Verdicts: test_check and lessons."""

import numpy as np
import pytest
import torch

from course.exercises.answers import NotAttempted, Wrong, is_blank, number, require_no_dots


class Broken:
    def __repr__(self):
        raise RuntimeError("no repr")


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
        with pytest.raises(Wrong, match="the batch is "):
            number(answer, "the batch")
