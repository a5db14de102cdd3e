"""The parameters that a trainable reads, by its code: nothing of it is run."""

import dis
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from ray.tune import Trainable

__all__ = ["of"]

_DEPTH = 4  # functions that call functions


def of(trainable: Any) -> tuple[set[str], set[str], set[str]]:
    """(texts, variables, keys of ``config["key"]``) in a class or function and in what it calls by name.

    A parameter that is neither a text nor a variable (as with ``model(**config)``) is read by nobody; one
    of the third must be there.
    """
    texts: set[str] = set()
    variables: set[str] = set()
    read: set[str] = set()
    for code in _codes(trainable):
        texts |= set(_texts(code.co_consts))
        variables |= set(code.co_varnames)
        read |= set(_read_from_config(code))
    return texts, variables, read


def _codes(trainable: Any) -> Iterator[CodeType]:
    """The code of a trainable and of the functions that it calls by name, nested ones too."""
    if isinstance(trainable, type):
        bases = [base for base in trainable.__mro__ if base not in Trainable.__mro__]
        found = [one for base in bases for one in vars(base).values()]
    else:
        found = [trainable]
    seen: set[CodeType] = set()
    for one in found:
        yield from _codes_of(getattr(one, "__func__", one), seen, _DEPTH)


def _codes_of(function: Any, seen: set[CodeType], depth: int) -> Iterator[CodeType]:
    if not isinstance(function, FunctionType) or function.__code__ in seen or depth == 0:
        return
    stack = [function.__code__]
    while stack:
        code = stack.pop()
        if code not in seen:
            seen.add(code)
            yield code
            stack += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
            for name in code.co_names:
                called = function.__globals__.get(name)
                if getattr(called, "__module__", None) == function.__module__:
                    yield from _codes_of(called, seen, depth - 1)
    for cell in function.__closure__ or ():
        try:
            inner = cell.cell_contents
        except ValueError:  # it has no value yet
            continue
        yield from _codes_of(inner, seen, depth - 1)


def _texts(constants: Any) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from _texts(constant)


def _read_from_config(code: CodeType) -> Iterator[str]:
    """Keys of ``config["key"]`` in `code`."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
    for owner, key, action in zip(steps, steps[1:], steps[2:], strict=False):
        if action.opname == "BINARY_SUBSCR" and owner.argval == "config" and isinstance(key.argval, str):
            yield key.argval
