"""Ray Train: the panel of a training run, its callbacks, and what it refuses before the run starts."""

from importlib import import_module
from typing import Any

__all__ = ["TrainPanel", "reported_checkpoints"]

_MODULES = {"TrainPanel": "panel", "reported_checkpoints": "checkpoints"}


def __getattr__(name: str) -> Any:
    """Import what is asked for: a run's controller unpickles a small callback, and needs no panel."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
