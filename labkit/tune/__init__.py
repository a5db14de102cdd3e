"""Ray Tune: the panel of a sweep, the checks before it starts, and a figure of its results."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    callback=("SweepCallback",),
    figures=("plot_parallel",),
    panel=("SweepPanel",),
)
