"""The lessons' exercises: checks, hints, and which ones are solved."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    checking=("check", "hint", "progress_table"),
    registry=("Lesson", "lessons"),
)
