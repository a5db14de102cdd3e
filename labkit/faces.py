"""How a room hands out its names: a module is imported when one of its names is first asked for.

    __getattr__, __dir__, __all__ = face(__name__, lifecycle=("connect", "start"), handle=("Cluster",))

A worker that unpickles one small class of a room then loads that class's module and not the whole room
(PEP 562).
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from labkit import interrupts


def face(
    room: str, **names: tuple[str, ...]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for the package `room`.

    Args:
        room: the package's ``__name__``.
        names: for each module of the package, the names that other rooms may use.
    """
    module_of = {name: module for module, public in names.items() for name in public}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        with interrupts.stoppable(f"the import of {room}", left="Run this again"):
            value = getattr(import_module(f"{room}.{module_of[name]}"), name)
        setattr(sys.modules[room], name, value)
        return value

    return get, lambda: sorted(module_of), sorted(module_of)
