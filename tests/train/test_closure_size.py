"""What a function takes along when it is sent away, and which variable it is."""

import functools
import threading

import numpy as np
import pytest

from labkit.errors import RunError
from labkit.models.torch.training import evaluate
from labkit.train import check_closure_size

rows = np.zeros(300_000, np.uint8)
lock = threading.Lock()


def of_a_notebook(function):
    """As if a notebook had defined it: it is pickled by value."""
    function.__module__ = "__main__"
    return function


@of_a_notebook
def reads_a_global(checkpoint):
    return rows.sum()


def closure():
    images = np.zeros((400, 28, 28), np.uint8)
    small = 3
    return of_a_notebook(lambda checkpoint: images.mean() + small + checkpoint.rows)


@of_a_notebook
class Judge:
    def __init__(self):
        self.table = rows

    def __call__(self, checkpoint):
        return {}


@pytest.mark.parametrize(
    "function, name, size",
    [
        (reads_a_global, "rows", 300_000),
        (of_a_notebook(lambda checkpoint: [len(rows) for _ in range(3)]), "rows", 300_000),
        (closure(), "images", 313_600),  # and not `rows`: that is an attribute's name there
        (of_a_notebook(lambda checkpoint: reads_a_global(checkpoint)), "reads_a_global", 300_000),
        (functools.partial(evaluate, images=rows), "images", 300_000),
        (Judge(), "table", 300_000),
        (Judge().__call__, "table", 300_000),
    ],
)
def test_the_largest_variable_is_named(function, name, size):
    with pytest.raises(RunError, match=rf"'{name}' \(3.. kB( of 3.. kB)?\).* the limit is 100 kB") as refused:
        check_closure_size(function, limit=100_000)
    assert "load it inside the function" in refused.value.fix
    assert check_closure_size(function) > size


def test_a_function_of_a_module_takes_nothing_along():
    assert check_closure_size(evaluate, limit=200) < 200


def test_what_cannot_be_sent_is_told():
    with pytest.raises(RunError, match=r"cannot be pickled: .*lock") as refused:
        check_closure_size(of_a_notebook(lambda checkpoint: lock))
    assert refused.value.fix == "create that object inside the function"
