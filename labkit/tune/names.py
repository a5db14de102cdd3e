"""The parameters that a trainable reads, found in its source: none of it is run."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from ray.tune import Trainable

_DEPTH = 4  # functions that call functions


def of(trainable: Any) -> tuple[set[str], set[str], set[str]] | None:
    """Return (texts, variables, keys of ``config["key"]``) in a trainable and the functions that it calls.

    A parameter that is neither a text nor a variable (as in ``model(**config)``) is never read; the keys must
    all be given. None if some of the source is not available, so that nothing can be said.
    """
    texts: set[str] = set()
    variables: set[str] = set()
    read: set[str] = set()
    try:
        nodes = [node for tree in _trees(trainable) for node in ast.walk(tree)]
    except (OSError, TypeError, SyntaxError):  # typed at a prompt, or made by `exec`
        return None
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)):
                texts.add(text)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                variables.add(name)
            case ast.Subscript(
                value=ast.Name(id="config") | ast.Attribute(attr="config"),
                slice=ast.Constant(value=str(key)),
                ctx=ast.Load(),
            ):
                read.add(key)
    return texts, variables, read


def _trees(trainable: Any) -> Iterator[ast.AST]:
    """Yield the syntax trees of a class's methods or a function, and of what they call by name."""
    if isinstance(trainable, type):
        bases = [base for base in trainable.__mro__ if base not in Trainable.__mro__]
        found = [one for base in bases for one in vars(base).values()]
    else:
        found = [trainable]
    seen: set[FunctionType] = set()
    for one in found:
        yield from _trees_of(getattr(one, "__func__", one), seen, _DEPTH)


def _trees_of(function: Any, seen: set[FunctionType], depth: int) -> Iterator[ast.AST]:
    if not isinstance(function, FunctionType) or function in seen or depth == 0:
        return
    seen.add(function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    yield tree
    for name in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}:
        called = function.__globals__.get(name)
        if getattr(called, "__module__", None) == function.__module__:
            yield from _trees_of(called, seen, depth - 1)
    for cell in function.__closure__ or ():
        try:
            inner = cell.cell_contents
        except ValueError:  # it has no value yet
            continue
        yield from _trees_of(inner, seen, depth - 1)
