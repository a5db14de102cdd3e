"""The lessons' exercises: checks, hints, predictions, and what a reader has solved and predicted.

The checks themselves are in ``lessons/checks``, next to the lessons. What a reader has done is kept in
``HOME/exercises.json`` (see `course.exercises.kept`).
"""

from course.exercises.checking import check, hint, predict, predictions, progress_table, reveal, solved
from course.exercises.registry import Lesson, lessons

__all__ = [
    "Lesson", "check", "hint", "lessons", "predict", "predictions", "progress_table", "reveal", "solved",
]  # fmt: skip
