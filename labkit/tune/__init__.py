"""Ray Tune: the panel of a sweep, and the checks before it starts."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    callback=("SweepCallback",),
    panel=("SweepPanel",),
)
