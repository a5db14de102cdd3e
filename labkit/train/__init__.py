"""Ray Train: the panel of a training run, its callbacks, and what it refuses before the run starts."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    checkpoints=("reported_checkpoints",),
    panel=("TrainPanel",),
)
