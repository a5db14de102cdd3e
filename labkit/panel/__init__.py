"""The live panel of a run: tracking in the worker, state and view in the kernel."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    run=("Panel",),
)
