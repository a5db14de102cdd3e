"""How large a function is when it is pickled for another process, and which of its variables makes it so.

A function of a notebook is pickled with all that it uses: the variables around it and the globals that its
code names. That is convenient, and a trap where one of them is a data set.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from ray import cloudpickle

from labkit.display.formatting import size
from labkit.errors import RunError

LIMIT = 1_000_000  # bytes; a small model fits, a data set does not


def check_closure_size(function: Callable, *, limit: int = LIMIT) -> int:
    """Refuse a function that is larger than `limit` when it is pickled; return its size in bytes.

    Raises:
        RunError: it is larger, or cannot be pickled: with the name of the variable, and what to do.
    """
    name = getattr(function, "__name__", type(function).__name__)
    attempt = f"send the validation function {name} to the cluster"
    total = _size(function)
    if total is not None and total <= limit:
        return total
    found = list(_variables(function, set()))
    if total is None:
        broken = [variable for variable, count in found if count is None]
        fact = f"what it captures cannot be pickled: {', '.join(broken) or 'the function itself'}"
        raise RunError(attempt, fact, "make it inside the function")
    # A name that is also an attribute's may be no part of the function: then it may be larger than that.
    variable, count = max(
        ((name, count) for name, count in found if count is not None and count <= total),
        key=lambda pair: pair[1],
        default=(name, total),
    )
    raise RunError(
        attempt,
        f"it captures {variable!r}, {size(count)} of {size(total)}, and is sent again for every checkpoint; "
        f"the limit is {size(limit)}",
        "load it inside the function (from the store, or datasets.load), or pass its path in fn_kwargs",
    )


class _Counter:
    """A file that counts the bytes written to it, so that a large data set is not copied."""

    bytes = 0

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self.bytes += count
        return count


def _size(value: Any) -> int | None:
    """Pickled bytes; None if it cannot be pickled."""
    counter = _Counter()
    try:
        cloudpickle.dump(value, counter)
    except Exception:  # whatever an object raises when it is pickled
        return None
    return counter.bytes


def _variables(value: Any, seen: set[int]) -> Iterator[tuple[str, int | None]]:
    """What is pickled with `value`, by name and size: also what the functions that it calls capture."""
    for name, part in _parts(value):
        if id(part) not in seen:
            seen.add(id(part))
            has_parts = isinstance(part, FunctionType | functools.partial) or hasattr(part, "__func__")
            inner = list(_variables(part, seen)) if has_parts else []
            yield from inner or [(name, _size(part))]


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        yield "the function", value.func
        yield from value.keywords.items()
        yield from ((f"argument {n}", v) for n, v in enumerate(value.args, 1))
    elif hasattr(value, "__func__"):  # a method is pickled with its object
        yield "self", value.__self__
        yield "the function", value.__func__
    elif isinstance(value, FunctionType) and _is_pickled_by_value(value):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # a cell that is not filled yet
                yield name, cell.cell_contents
        names = _names(value.__code__) & value.__globals__.keys()
        yield from ((name, value.__globals__[name]) for name in names)
        arguments = value.__code__.co_varnames[: value.__code__.co_argcount]
        yield from zip(reversed(arguments), reversed(value.__defaults__ or ()), strict=False)
        yield from (value.__kwdefaults__ or {}).items()
    elif hasattr(value, "__dict__") and not isinstance(value, type | FunctionType):
        yield from vars(value).items()


def _is_pickled_by_value(function: FunctionType) -> bool:
    """Whether cloudpickle pickles its code; of an importable module's function it pickles only the name."""
    by_name = len(function.__qualname__) + len(function.__module__ or "") + 40
    count = _size(function)
    return count is None or count > by_name


def _names(code: CodeType) -> set[str]:
    """The globals and attributes that some code names, and the functions within it."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)
