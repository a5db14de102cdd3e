"""How large a function is when it is pickled for another process.

A function of a notebook is pickled with all that it uses: the variables around it and the globals that its
code names. That is convenient, and a trap where one of them is a data set.
"""

from collections.abc import Callable
from typing import Any

from ray import cloudpickle

from labkit.display.formatting import size
from labkit.errors import LabError

LIMIT = 1_000_000  # bytes; a small model fits, a data set does not


def check_closure_size(function: Callable) -> None:
    """Refuse a function that is larger than `LIMIT` when it is pickled.

    Raises:
        LabError: it is larger, or it cannot be pickled.
    """
    attempt = f"send the validation function {getattr(function, '__name__', type(function).__name__)}"
    counter = _Counter()
    try:
        cloudpickle.dump(function, counter)
    except Exception as error:  # whatever an object raises when it is pickled
        fact = f"something that it uses cannot be pickled: {error}"
        raise LabError(attempt, fact, "create that object inside the function") from error
    if counter.bytes > LIMIT:
        fact = (
            f"with the variables that it uses it has {size(counter.bytes)}, and it is sent again for every "
            f"checkpoint; the limit is {size(LIMIT)}"
        )
        fix = (
            "load data inside the function (from the store, or datasets.load), or pass its path in fn_kwargs"
        )
        raise LabError(attempt, fact, fix)


class _Counter:
    """A file that counts the bytes written to it, so that a large data set is not copied."""

    bytes = 0

    def write(self, data: Any) -> None:
        self.bytes += memoryview(data).nbytes
