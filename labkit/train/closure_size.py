"""How large is what a function takes along when it is sent to another process, and which variable is it?

A function of a notebook is pickled with all that it uses: the variables around it and the globals that its
code names. That is comfortable, and a trap where one of them is a data set.
"""

import dis
import functools
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from ray import cloudpickle

from labkit.display.formatting import size
from labkit.errors import RunError

LIMIT = 1_000_000  # bytes; a small model fits, a data set does not


class _Counter:
    """A file that counts what is written, and keeps nothing."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self.bytes += count
        return count


def captured(function: Callable) -> list[tuple[str, int]]:
    """What `function` takes along, as (name, pickled bytes), largest first.

    Of functions that it calls and that travel with it, what they take along counts as theirs. A name that
    cannot be pickled is given -1.
    """
    return sorted(_sizes(function, set()), key=lambda pair: pair[1], reverse=True)


def require_small(function: Callable, *, limit: int = LIMIT) -> int:
    """Refuse a function that takes more than `limit` bytes along; returns how many it takes.

    Raises:
        RunError: it is larger, or cannot be pickled: with the name of the variable, and what to do.
    """
    name = getattr(function, "__name__", type(function).__name__)
    attempt = f"send the validation function {name} to the cluster"
    cure = "load it inside the function (from the store, or datasets.load), or pass its path in fn_kwargs"
    total = _size(function)
    if 0 <= total <= limit:
        return total
    found = captured(function)
    broken = [variable for variable, count in found if count < 0]
    if total < 0:
        fact = f"what it captures cannot be pickled: {', '.join(broken) or 'the function itself'}"
        raise RunError(attempt, fact, "make it inside the function")
    variable, count = found[0] if found else (name, total)
    raise RunError(
        attempt,
        f"it captures {variable!r}, {size(count)} of {size(total)}, and is sent anew for every checkpoint; "
        f"the limit is {size(limit)}",
        cure,
    )


def _size(value: Any) -> int:
    counter = _Counter()
    try:
        cloudpickle.dump(value, counter)
    except Exception:  # whatever an object raises when it is pickled
        return -1
    return counter.bytes


def _sizes(value: Any, seen: set[int]) -> Iterator[tuple[str, int]]:
    for name, part in _parts(value):
        if id(part) in seen:
            continue
        seen.add(id(part))
        inner = list(_sizes(part, seen)) if _has_parts(part) else []
        if inner:
            yield from inner
        else:
            yield name, _size(part)


def _has_parts(value: Any) -> bool:
    return isinstance(value, (FunctionType, functools.partial)) or hasattr(value, "__func__")


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a callable is made of, by name."""
    if isinstance(value, functools.partial):
        yield "the function", value.func
        yield from value.keywords.items()
        yield from ((f"argument {n}", v) for n, v in enumerate(value.args, 1))
    elif hasattr(value, "__func__"):  # a method takes its object along
        yield "self", value.__self__
        yield "the function", value.__func__
    elif isinstance(value, FunctionType):
        if not _travels_by_value(value):
            return
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        for name, cell in cells:
            try:
                yield name, cell.cell_contents
            except ValueError:  # not filled yet
                continue
        yield from ((n, value.__globals__[n]) for n in _globals_of(value.__code__) if n in value.__globals__)
        names = value.__code__.co_varnames[: value.__code__.co_argcount]
        yield from zip(reversed(names), reversed(value.__defaults__ or ()), strict=False)
        yield from (value.__kwdefaults__ or {}).items()
    elif hasattr(value, "__dict__"):
        yield from vars(value).items()


def _travels_by_value(function: FunctionType) -> bool:
    """Whether cloudpickle takes its code along: of an importable module it takes the name alone."""
    reference = _size(function)
    return reference < 0 or reference > len(function.__qualname__) + len(function.__module__ or "") + 40


def _globals_of(code: CodeType) -> set[str]:
    """The globals that some code names, that of functions within it too."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _globals_of(constant)
    return names
