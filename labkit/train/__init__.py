"""Ray Train: the panel of a training run, its callbacks, and what it refuses before the run starts."""

from typing import Any

__all__ = ["TrainPanel", "reported_checkpoints"]


def __getattr__(name: str) -> Any:
    """Import what is asked for: a run's controller unpickles a small callback, and needs no panel."""
    if name == "TrainPanel":
        from labkit.train.panel import TrainPanel

        return TrainPanel
    if name == "reported_checkpoints":
        from labkit.train.callbacks import reported_checkpoints

        return reported_checkpoints
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
