"""What a function takes along when it is sent away, and which variable it is."""

import functools
import threading

import numpy as np
import pytest

from labkit.errors import RunError
from labkit.models.torch.training import evaluate
from labkit.train import closure_size as captured

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
    found = captured.captured(function)
    assert found[0][0] == name
    assert size <= found[0][1] < size + 1000
    with pytest.raises(RunError, match=f"'{name}', 3.. kB of 3.. kB.* the limit is 100 kB") as refused:
        captured.require_small(function, limit=100_000)
    assert "load it inside the function" in refused.value.fix
    assert captured.require_small(function) > size


def test_a_function_of_a_module_takes_nothing_along():
    assert captured.captured(evaluate) == []
    assert captured.require_small(evaluate, limit=200) < 200


def test_an_object_that_is_called():
    class Judge:
        def __init__(self):
            self.table = rows

        def __call__(self, checkpoint):
            return {}

    Judge.__module__ = "__main__"
    with pytest.raises(RunError, match="'table', 300 kB"):
        captured.require_small(Judge(), limit=100_000)


def test_what_cannot_be_sent_is_named():
    with pytest.raises(RunError, match="cannot be pickled: lock") as refused:
        captured.require_small(keeps_a_lock)
    assert refused.value.fix == "make it inside the function"
