"""What a function takes along when it is sent away, and which variable it is."""

import functools
import threading

import numpy as np
import pytest

from labkit.errors import RunError
from labkit.models.torch.training import evaluate
from labkit.train.closure_size import check_closure_size

rows = np.zeros(300_000, np.uint8)
lock = threading.Lock()


def of_a_notebook(function):
    """As if it stood in a notebook: it travels by value."""
    function.__module__ = "__main__"
    return function


@of_a_notebook
def reads_a_global(checkpoint):
    return rows.sum()


@of_a_notebook
def calls_another(checkpoint):
    return reads_a_global(checkpoint)


@of_a_notebook
def reads_within(checkpoint):
    return [len(rows) for _ in range(3)]


@of_a_notebook
def keeps_a_lock(checkpoint):
    return lock


def closure():
    images = np.zeros((400, 28, 28), np.uint8)
    small = 3
    return of_a_notebook(lambda checkpoint: images.mean() + small)


@pytest.mark.parametrize(
    "function, name, size",
    [
        (reads_a_global, "rows", 300_000),
        (calls_another, "rows", 300_000),
        (reads_within, "rows", 300_000),
        (closure(), "images", 313_600),
        (functools.partial(evaluate, images=rows), "images", 300_000),
        (of_a_notebook(lambda checkpoint, kept=rows: kept), "kept", 300_000),
    ],
)
def test_the_largest_variable_is_named(function, name, size):
    with pytest.raises(RunError, match=f"'{name}', 3.. kB of 3.. kB.* the limit is 100 kB") as refused:
        check_closure_size(function, limit=100_000)
    assert "load it inside the function" in refused.value.fix
    assert check_closure_size(function) > size


def test_a_function_of_a_module_takes_nothing_along():
    assert check_closure_size(evaluate, limit=200) < 200


def test_an_attribute_with_the_name_of_a_larger_variable_is_not_blamed():
    images = np.zeros(200_000, np.uint8)
    function = of_a_notebook(lambda checkpoint: (checkpoint.rows, images))
    with pytest.raises(RunError, match="'images', 200 kB"):
        check_closure_size(function, limit=100_000)


def test_an_object_that_is_called():
    class Judge:
        def __init__(self):
            self.table = rows

        def __call__(self, checkpoint):
            return {}

    Judge.__module__ = "__main__"
    judge = Judge()
    with pytest.raises(RunError, match="'table', 300 kB"):
        check_closure_size(judge, limit=100_000)
    with pytest.raises(RunError, match="'judge', 30. kB"):  # as a model would be: it is one variable
        check_closure_size(of_a_notebook(lambda checkpoint: judge(checkpoint)), limit=100_000)


def test_what_cannot_be_sent_is_named():
    with pytest.raises(RunError, match="cannot be pickled: lock") as refused:
        check_closure_size(keeps_a_lock)
    assert refused.value.fix == "make it inside the function"
