"""How large a function is when it is pickled for another process, and which of its variables makes it so.

A function of a notebook is pickled with all that it uses: the variables around it and the globals that its
code names. That is convenient, and a trap where one of them is a data set.
"""

import contextlib
import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

from ray import cloudpickle

from labkit.display.formatting import size
from labkit.errors import LabError
from labkit.runs.origin import names_in

LIMIT = 1_000_000  # bytes; a small model fits, a data set does not


def check_closure_size(function: Callable) -> None:
    """Refuse a function that is larger than `LIMIT` when it is pickled.

    Raises:
        LabError: it is larger, with the name of its largest variable; or it cannot be pickled.
    """
    name = getattr(function, "__name__", type(function).__name__)
    attempt = f"send the validation function {name} to the cluster"
    try:
        total = _size(function)
    except Exception as error:  # whatever an object raises when it is pickled
        fact = f"something that it uses cannot be pickled: {error}"
        raise LabError(attempt, fact, "create that object inside the function") from error
    if total <= LIMIT:
        return
    # A name that is also an attribute's may be no part of the function: then it may be larger than that.
    sizes = {name: count for name, count in _variable_sizes(function).items() if count <= total}
    variable = max(sizes, key=sizes.__getitem__, default=name)
    parts = dict.fromkeys((size(sizes.get(variable, total)), size(total)))  # one if both are the same
    captured = f"{variable!r} ({' of '.join(parts)})"
    fact = f"it captures {captured}, and is sent again for every checkpoint; the limit is {size(LIMIT)}"
    fix = "load it inside the function (from the store, or datasets.load), or pass its path in fn_kwargs"
    raise LabError(attempt, fact, fix)


class _Counter:
    """A file that counts the bytes written to it, so that a large data set is not copied."""

    bytes = 0

    def write(self, data: Any) -> None:
        self.bytes += memoryview(data).nbytes


def _size(value: Any) -> int:
    counter = _Counter()
    cloudpickle.dump(value, counter)
    return counter.bytes


def _variable_sizes(function: Callable) -> dict[str, int]:
    """The pickled bytes of each variable that a function captures; of an object, of each attribute."""
    if isinstance(function, functools.partial):
        variables = function.keywords
    elif isinstance(function, FunctionType):
        names = set(names_in(function.__code__)) & function.__globals__.keys()
        variables = {name: function.__globals__[name] for name in names}
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            with contextlib.suppress(ValueError):  # it has no value yet
                variables[name] = cell.cell_contents
    else:  # a method is pickled with its object
        variables = getattr(getattr(function, "__self__", function), "__dict__", {})
    sizes = {}
    for name, value in variables.items():
        with contextlib.suppress(Exception):  # one that cannot be pickled is no part of the function
            sizes[name] = _size(value)
    return sizes
