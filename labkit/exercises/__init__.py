"""The lessons' exercises: checks, hints, predictions, and what a reader has solved and predicted."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    checking=("check", "hint"),
    predicting=("predict", "predictions", "progress_table", "reveal"),
    registry=("Lesson", "lessons"),
)
