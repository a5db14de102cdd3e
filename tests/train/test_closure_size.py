"""What a function takes along when it is sent away, and which variable it is."""

import functools
import threading

import numpy as np
import pytest

from labkit.errors import RunError
from labkit.models.torch import evaluate
from labkit.train import closure_size
from labkit.train.closure_size import check_closure_size

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


@pytest.fixture
def limit(monkeypatch):
    monkeypatch.setattr(closure_size, "LIMIT", 100_000)


@pytest.mark.parametrize(
    "function, name",
    [
        (reads_a_global, "rows"),
        (of_a_notebook(lambda checkpoint: [len(rows) for _ in range(3)]), "rows"),
        (closure(), "images"),  # and not `rows`: that is an attribute's name there
        (of_a_notebook(lambda checkpoint: reads_a_global(checkpoint)), "reads_a_global"),
        (functools.partial(evaluate, images=rows), "images"),
        (Judge(), "table"),
        (Judge().__call__, "table"),
    ],
)
@pytest.mark.usefixtures("limit")
def test_the_largest_variable_is_named(function, name):
    with pytest.raises(RunError, match=rf"'{name}' \(3.. kB( of 3.. kB)?\).* the limit is 100 kB") as refused:
        check_closure_size(function)
    assert "load it inside the function" in refused.value.fix


def test_a_variable_without_a_value_yet_hides_nothing(limit):
    images = np.zeros((400, 28, 28), np.uint8)
    function = of_a_notebook(lambda checkpoint: (images, later))
    with pytest.raises(RunError, match="'images'"):
        check_closure_size(function)
    later = None


def test_a_function_of_a_module_takes_nothing_along():
    check_closure_size(evaluate)


def test_what_cannot_be_sent_is_told():
    with pytest.raises(RunError, match=r"cannot be pickled: .*lock") as refused:
        check_closure_size(of_a_notebook(lambda checkpoint: lock))
    assert refused.value.fix == "create that object inside the function"
