"""Lesson 00: steps of an epoch, accuracy by class, waiting for data, a better network."""

import math
from typing import Any

import numpy

from labkit.exercises.answers import Wrong, array_of, close_to, of_type, same_array
from labkit.exercises.registry import Exercise, Lesson

_BATCH = 64
_GOAL, _GOALS = 0.95, {"fashion_mnist": 0.85}


def _steps(steps: Any, last: Any, rows: int) -> None:
    wanted = math.ceil(rows / _BATCH)
    near = {rows / _BATCH: "there is no part of a step", rows // _BATCH: "some images would be left out"}
    near.pop(wanted, None)
    close_to(steps, wanted, mistakes=near, what="the number of steps")
    rest = rows - _BATCH * (wanted - 1)
    close_to(last, rest, mistakes={_BATCH: "so many only if they came out even"}, what="the last batch")


def _shares(shares: Any, answers: Any, labels: Any) -> None:
    """`shares` of ten, against the model's `answers` to the test images and their `labels`."""
    given = array_of([float(share) for share in shares], shape=(10,), what="the list of shares")
    if given.max() > 1:
        raise Wrong(f"the largest share is {given.max():g}, and no share is above 1")
    called, are = array_of(answers), array_of(labels)
    hits = numpy.bincount(are[called == are], minlength=10)
    right = hits / numpy.bincount(are, minlength=10).clip(min=1)
    of_those_called = hits / numpy.bincount(called, minlength=10).clip(min=1)
    if numpy.allclose(given, of_those_called, atol=1e-4) and not numpy.allclose(right, of_those_called):
        raise Wrong("these are shares of the images that were CALLED each class; asked is: of those that ARE")
    if numpy.allclose(given, 1 - right, atol=1e-4):
        raise Wrong("these are the shares that it gets WRONG")
    same_array(given, right, rel=1e-4, abs=1e-4, what="the list of shares")


def _without_waiting(rate: Any, record: Any) -> None:
    of_type(record, "RunRecord", what="the record")
    measured, waiting = record.rows_per_second, record.waiting_share
    near = {
        measured: "that is what it reached WITH the waiting",
        measured * (1 - waiting): "that is less than it had, and without waiting it gets more done",
        measured * waiting: "that is less than it had, and without waiting it gets more done",
        measured * (1 + waiting): "so much would come of a little less waiting, not of none",
        measured / waiting: "you divided by the share in which it waited, not by that in which it worked",
    }
    # The digits that a reader copied from the output will do.
    close_to(rate, measured / (1 - waiting), rel=0.01, mistakes=near, what="your rate")


def _better(model: Any, images: Any, test: Any) -> None:
    """A torch model's accuracy on the float32 `images` of the data set `test`."""
    of_type(model, "Module", what="your model")
    answers = array_of(model(images).argmax(dim=1), shape=(len(test),), what="what your model answers")
    reached, goal = float((answers == test.labels).mean()), _GOALS.get(test.name, _GOAL)
    if reached < goal:
        raise Wrong(f"your model gets {reached:.3f} of the test images right, and the goal is {goal}")


LESSON = Lesson(
    "00",
    "Welcome",
    (
        Exercise(
            id="00-1",
            title="The steps of an epoch",
            hints=(
                "How many training images are there? `len(train)` tells.",
                "Divide them into groups of 64. Most of the time something is left over, and is a batch too.",
                "Round up: `math.ceil(len(train) / 64)`. All batches have 64 images, but for the last.",
            ),
            check=_steps,
        ),
        Exercise(
            id="00-2",
            title="Which class is the hardest?",
            hints=(
                "You have a function for the accuracy on any images and labels. Give it fewer of them.",
                "`y_test == 3` is True where an image is of class 3, and `x_test[y_test == 3]` are these.",
                "`accuracy(model, x_test[y_test == k], y_test[y_test == k])`, for every `k` in `range(10)`.",
            ),
            check=_shares,
        ),
        Exercise(
            id="00-3",
            title="What would fast data bring?",
            hints=(
                "In which share of its time did the run work? It did all its rows in that share.",
                "Had it waited for 0.75 of the time, it would have worked for a quarter of it.",
                "Divide the rate by the share of the time in which it worked, `1 - record.waiting_share`.",
            ),
            check=_without_waiting,
        ),
        Exercise(
            id="00-4",
            title="Do better",
            hints=(
                "Look at the baseline's curves. Had they stopped to fall and to rise when it ended?",
                "Build a new model, and a new optimizer on ITS parameters. Then more epochs, or a momentum.",
                "A momentum of 0.9 with `lr=0.1`, and 20 epochs, are enough for the digits.",
            ),
            check=_better,
        ),
    ),
)
