"""Lesson 00: steps of an epoch, accuracy by class, waiting for data, a better network."""

import math
from typing import Any

import numpy

from labkit.exercises.answers import Wrong, array_of, close_to, expect_type, same_array
from labkit.exercises.registry import Lesson

LESSON = Lesson("00", "Welcome")
_BATCH = 64
_GOAL, _GOALS = 0.95, {"fashion_mnist": 0.85}


@LESSON.exercise(
    "00-1 · The steps of an epoch",
    "How many training images are there? `len(train)` tells you.",
    "Divide them into groups of 64. Usually some images are left over, and they are a batch too.",
    "Round up: `math.ceil(len(train) / 64)`. All batches have 64 images, except the last.",
)
def _steps(steps: Any, last: Any, rows: int) -> None:
    expected = math.ceil(rows / _BATCH)
    near = {rows / _BATCH: "there is no part of a step", rows // _BATCH: "some images would be left out"}
    close_to(steps, expected, mistakes=near, what="the number of steps")
    rest = rows - _BATCH * (expected - 1)
    near = {_BATCH: "that would need a number of images that 64 divides"}
    close_to(last, rest, mistakes=near, what="the last batch")


@LESSON.exercise(
    "00-2 · Which class is the hardest?",
    "You have a function for the accuracy on any images and labels. Give it fewer of them.",
    "`y_test == 3` is True where an image is of class 3, and `x_test[y_test == 3]` are those images.",
    "`accuracy(model, x_test[y_test == k], y_test[y_test == k])`, for every `k` in `range(10)`.",
)
def _shares(shares: Any, answers: Any, labels: Any) -> None:
    """`shares` of ten, against the model's `answers` to the test images and their `labels`."""
    given = array_of([float(share) for share in shares], shape=(10,), what="the list of shares")
    if given.max() > 1:
        raise Wrong(f"the largest share is {given.max():g}, and no share is above 1")
    called, are = array_of(answers), array_of(labels)
    hits = numpy.bincount(are[called == are], minlength=10)
    right = hits / numpy.bincount(are, minlength=10).clip(min=1)
    of_those_called = hits / numpy.bincount(called, minlength=10).clip(min=1)
    if numpy.allclose(given, right, atol=1e-4):
        return
    if numpy.allclose(given, of_those_called, atol=1e-4):
        raise Wrong("these are shares of the images that were CALLED each class, not of those that ARE")
    if numpy.allclose(given, 1 - right, atol=1e-4):
        raise Wrong("these are the shares that the model gets WRONG")
    same_array(given, right, rel=1e-4, abs=1e-4, what="the list of shares")


@LESSON.exercise(
    "00-3 · What would fast data bring?",
    "In which share of its time did the run work? It did all its rows in that share.",
    "Had it waited for 0.75 of the time, it would have worked for a quarter of it.",
    "Divide the rate by the share of the time in which it worked, `1 - record.waiting_share`.",
)
def _without_waiting(rate: Any, record: Any) -> None:
    expect_type(record, "RunRecord", what="the record")
    measured, waiting = record.rows_per_second, record.waiting_share
    near = {
        measured: "that is what it reached WITH the waiting",
        measured * (1 - waiting): "that is less than it had, and without waiting it gets more done",
        measured * waiting: "that is less than it had, and without waiting it gets more done",
        measured * (1 + waiting): "that would be the rate with a little less waiting, not with none",
        measured / waiting: "you divided by the share in which it waited, not by that in which it worked",
    }
    # The digits that a reader copied from the output are enough.
    close_to(rate, measured / (1 - waiting), rel=0.01, mistakes=near, what="your rate")


@LESSON.exercise(
    "00-4 · Do better",
    "Look at the baseline's curves. Were they still falling and rising when it ended?",
    "Build a new model, and a new optimizer on ITS parameters. Then train longer, or with momentum.",
    "A momentum of 0.9 with `lr=0.1`, and 20 epochs, are enough for the digits.",
)
def _better(model: Any, images: Any, test: Any) -> None:
    """A torch model's accuracy on the float32 `images` of the data set `test`."""
    expect_type(model, "Module", what="your model")
    answers = array_of(model(images).argmax(dim=1), shape=(len(test),), what="what your model answers")
    reached, goal = float((answers == test.labels).mean()), _GOALS.get(test.name, _GOAL)
    if reached < goal:
        raise Wrong(f"your model gets {reached:.3f} of the test images right, and the goal is {goal}")
