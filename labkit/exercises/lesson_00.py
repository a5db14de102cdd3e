"""Lesson 00: steps of an epoch, accuracy by class, waiting for data, a better network."""

import math
from typing import Any

from labkit import datasets, runs
from labkit.answers import Wrong, array_of, close_to, of_type, same_array
from labkit.errors import RunError
from labkit.exercises import Exercise, Lesson

__all__ = ["LESSON"]

_BATCH = 64
_GOALS = {"fashion_mnist": 0.85}
_GOAL = 0.95


def _steps(steps: Any, last: Any) -> None:
    rows = len(datasets.load(split="train"))
    wanted = math.ceil(rows / _BATCH)
    near = {rows / _BATCH: "there is no part of a step", rows // _BATCH: "some images would be left out"}
    close_to(steps, wanted, mistakes=near, what="the number of steps")
    rest = rows - _BATCH * (wanted - 1)
    close_to(last, rest, mistakes={_BATCH: "so many only if they came out even"}, what="the last batch")


def _shares(shares: Any, model: Any) -> None:
    import torch

    of_type(model, "Module", what="the model")
    test = datasets.load(split="test")
    labels = torch.tensor(test.labels)
    with torch.no_grad():
        answers = model(torch.tensor(test.images, dtype=torch.float32) / 255).argmax(dim=1)
    hits = torch.bincount(labels[answers == labels], minlength=10)
    given = array_of([float(s) for s in shares], shape=(10,), what="the list of shares")
    of_those_called = hits / torch.bincount(answers, minlength=10).clamp(min=1)
    right = hits / torch.bincount(labels, minlength=10).clamp(min=1)
    if not _alike(right, of_those_called) and _alike(given, of_those_called):
        raise Wrong("these are shares of the images that were CALLED each class; asked is: of those that ARE")
    if given.max() > 1:
        raise Wrong(f"the largest share is {given.max():g}, and no share is above 1")
    same_array(given, right, rel=1e-4, abs=1e-4, what="the list of shares")


def _alike(a: Any, b: Any) -> bool:
    return all(math.isclose(x, y, abs_tol=1e-4) for x, y in zip(a, b, strict=True))


def _without_waiting(rate: Any) -> None:
    try:
        record = runs.latest("00-slow-data")
    except RunError as error:
        raise Wrong("there is no run 00-slow-data yet: run the cells above") from error
    measured, waiting = record.rows_per_second, record.waiting_share
    near = {
        measured: "that is what it reached WITH the waiting",
        measured * (1 - waiting): "that is less than it had; without waiting it gets more done",
        measured * waiting: "that is less than it had; without waiting it gets more done",
        measured * (1 + waiting): "it waited for more of its time than this would win back",
        measured / waiting: "you divided by the time that it waited, not by the time that it worked",
    }
    # The digits that a learner copied from the output will do.
    close_to(rate, measured / (1 - waiting), rel=0.01, mistakes=near, what="your rate")


def _better(model: Any) -> None:
    import torch

    of_type(model, "Module", what="your model")
    test = datasets.load(split="test")
    with torch.no_grad():
        answers = model(torch.tensor(test.images, dtype=torch.float32) / 255).argmax(dim=1)
    reached = (answers == torch.tensor(test.labels)).float().mean().item()
    goal = _GOALS.get(test.name, _GOAL)
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
