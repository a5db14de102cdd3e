"""Ray Train: its panel, its callbacks, its checks."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    checkpoints=("reported_checkpoints",),
    closure_size=("check_closure_size",),
    panel=("TrainPanel",),
)
