"""Replace a function that a loop calls, by whatever name its module, the notebook or a file has it."""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any


def reports_to(loop: Any, report: Callable) -> contextlib.AbstractContextManager:
    """Let the loop call `report` in this block where it calls `ray.train.report`; see `calls_to`."""
    import ray.train  # noqa: F401 - not yet imported where a check runs a loop

    return calls_to(loop, "ray.train", "report", report)


@contextlib.contextmanager
def calls_to(loop: Any, module: str, name: str, replacement: Callable) -> Iterator[None]:
    """Replace a function of a module in this block, under any name in the loop's module or the notebook."""
    functions = vars(sys.modules[module])
    original = functions[name]
    namespaces = [
        functions,
        _globals_of(loop),
        vars(sys.modules["__main__"]),
        *_of_readers_modules(name, original),
    ]
    places = [
        (namespace, alias)
        for namespace in namespaces
        for alias, value in list(namespace.items())
        if value is original
    ]
    for namespace, alias in places:
        namespace[alias] = replacement
    try:
        yield
    finally:
        for namespace, alias in places:
            if namespace.get(alias) is replacement:
                namespace[alias] = original


def _globals_of(loop: Any) -> dict[str, Any]:
    """Return the names of the module that defines a function, a method or the class of a callable object."""
    while isinstance(loop, functools.partial):
        loop = loop.func
    loop = inspect.unwrap(loop)
    if not hasattr(loop, "__globals__"):
        loop = type(loop).__call__
    return getattr(loop, "__globals__", {})


def _of_readers_modules(name: str, original: Callable) -> list[dict[str, Any]]:
    """Return the names of modules that have imported a function of Ray, such as a file that makes loaders."""
    namespaces = []
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == "ray":
            continue
        namespace = getattr(module, "__dict__", {})
        if namespace.get(name) is original:
            namespaces.append(namespace)
    return namespaces
