"""This machine: what it has, which processes the lab recorded on it, and the doctor who checks it."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    diagnosis=("doctor",),
    overview=(
        "ports",
        "processes",
    ),
)
