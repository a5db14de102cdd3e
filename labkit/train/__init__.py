"""Ray Train: the panel of a training run, its callbacks, and what it refuses before the run starts."""

from typing import Any

__all__ = ["TrainPanel", "reported_checkpoints"]


def __getattr__(name: str) -> Any:
    """Import what is asked for: a run's controller unpickles a small callback, and needs no panel."""
    if name == "TrainPanel":
        from labkit.train.panel import TrainPanel as found
    elif name == "reported_checkpoints":
        from labkit.train.callbacks import reported_checkpoints as found
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
