"""A function that takes a data set along when it is sent away is refused."""

import functools
import threading

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.models.torch import train_epoch
from labkit.train.panel import check_closure_size

rows = np.zeros(10**6, np.uint8)
lock = threading.Lock()


def of_a_notebook(function):
    """As if a notebook had defined it: it is pickled by value."""
    function.__module__ = "__main__"
    return function


def closure():
    images = np.zeros(10**6, np.uint8)
    return of_a_notebook(lambda checkpoint: images.mean())


@pytest.mark.parametrize(
    "function", [of_a_notebook(lambda _: rows.sum()), closure(), functools.partial(train_epoch, images=rows)]
)
def test_a_function_with_a_data_set_is_refused(function):
    with pytest.raises(LabError, match=r"it has 1\.0 MB.* the limit is 1\.0 MB") as refused:
        check_closure_size(function)
    assert "load data inside the function" in refused.value.fix


def test_a_function_of_a_module_takes_nothing_along():
    check_closure_size(train_epoch)


def test_what_cannot_be_sent_is_told():
    with pytest.raises(LabError, match=r"cannot be pickled: .*lock") as refused:
        check_closure_size(of_a_notebook(lambda checkpoint: lock))
    assert refused.value.fix == "create that object inside the function"
