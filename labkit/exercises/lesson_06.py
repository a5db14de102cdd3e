"""Lesson 06: the last metric, not after every epoch, the best checkpoint, a small closure."""

import inspect
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from labkit.exercises.answers import Wrong, close_to, describe, number, result_of, returns
from labkit.exercises.registry import Lesson

LESSON = Lesson("06", "Validation alongside training")


@LESSON.exercise(
    "06-1",
    "When is the last metric there?",
    "Draw the bars of three epochs, once with v shorter than t and once with v longer.",
    "Outside of the loop, a validation starts when its checkpoint is there and the one before has ended.",
    "If `v <= t`, only the last comes after the training. Else they queue from `t` on.",
)
def _last_metric(inside: Any, alongside: Any) -> None:
    # n epochs of t seconds, v seconds for a validation; the answers
    for n, t, v, in_loop, outside in (
        (10, 5.0, 2.0, 70, 52),
        (4, 3.0, 3.0, 24, 15),
        (5, 2.0, 6.0, 40, 32),
        (1, 4.0, 9.0, 13, 13),
    ):
        near = {n * t: "that is the training alone", n * t + v: "only one validation is in it"}
        returns(inside, (n, t, v), in_loop, name="inside", mistakes=near)
        near = {
            n * t: "the last checkpoint is there only when the training ends",
            n * t + v: "validations that take longer than an epoch queue, one after the other",
            n * v: "the first of them cannot start before the first epoch is over",
            n * (t + v): "then nothing would overlap",
            t + n * v: "a validation that is shorter than an epoch waits for the next checkpoint",
        }
        returns(alongside, (n, t, v), outside, name="alongside", mistakes=near)


@LESSON.exercise(
    "06-2",
    "Not after every epoch",
    "Three answers are possible: two kinds of `ValidationTaskConfig`, and `False`.",
    "Look at the last epoch first: it may be a third one as well.",
    "`ValidationTaskConfig(fn_kwargs={'rows': 1000}, timeout_s=30)` where `epoch % 3 == 2`.",
)
def _validation_of(validation_of: Any) -> None:
    for epoch, epochs in ((epoch, total) for total in (7, 6, 1) for epoch in range(total)):
        what = f"validation_of({epoch}, {epochs})"
        found = result_of(validation_of, epoch, epochs, what="validation_of")
        last = epoch == epochs - 1
        if not last and epoch % 3 != 2:
            if found is not False and found is not None:
                raise Wrong(f"{what} is {describe(found)}, and that epoch needs no validation: False")
            continue
        if not hasattr(found, "fn_kwargs") or not hasattr(found, "timeout_s"):
            which = "the last epoch" if last else "a third one"
            raise Wrong(f"{what} is {describe(found)}, and for {which} a ValidationTaskConfig is expected")
        rows, seconds = (None, 300) if last else (1000, 30)
        if found.fn_kwargs != {"rows": rows}:
            raise Wrong(f"{what} has fn_kwargs={describe(found.fn_kwargs)}, and 'rows' should be {rows}")
        if found.timeout_s != seconds:
            raise Wrong(f"{what} has timeout_s={describe(found.timeout_s)}, and it should be {seconds}")


@LESSON.exercise(
    "06-3",
    "The best of them",
    "Which of them have a `val_accuracy` that you can trust? Their `status` says so.",
    "First keep those with `ReportedCheckpointStatus.VALIDATED`, then choose the largest.",
    "`max(…, key=lambda one: one.metrics['val_accuracy'], default=None)`; then its `checkpoint`.",
)
def _best_of(best_of: Any) -> None:
    for rows, expected in (
        ([("VALIDATED", 0.7), ("VALIDATED", 0.9), ("VALIDATED", 0.8)], 1),
        ([("VALIDATED", 0.6), ("VALIDATION_FAILED", None), ("VALIDATED", 0.5)], 0),
        ([("VALIDATION_TIMEOUT", None), ("VALIDATED", 0.2), ("PENDING_VALIDATION", None)], 1),
        # A loop may report a value under that name, too: it is not a validated one.
        ([("VALIDATED", 0.6), ("VALIDATION_FAILED", 0.99)], 0),
        ([("VALIDATION_FAILED", None), ("COMMITTED", None)], None),
    ):
        entries = [_reported(place, *row) for place, row in enumerate(rows)]
        listed = ", ".join(f"{status} {'–' if value is None else value}" for status, value in rows)
        answer = result_of(best_of, list(entries), what="best_of")
        places = {id(one.checkpoint): f"the one at place {k}" for k, one in enumerate(entries)}
        if any(answer is one for one in entries):
            raise Wrong("best_of returns the whole entry, and its `checkpoint` is expected")
        if expected is None and answer is not None:
            raise Wrong(f"of {listed}, none is validated, and best_of returns {describe(answer)}")
        if expected is not None and answer is not entries[expected].checkpoint:
            found = places.get(id(answer), describe(answer))
            raise Wrong(f"of {listed}, best_of returns {found}, and not the one at place {expected}")


def _reported(place: int, status: str, value: float | None) -> Any:
    """What Ray has for a reported checkpoint, with Ray's own status if the answer imported Ray."""
    ray_train = sys.modules.get("ray.train")
    own = (
        ray_train.ReportedCheckpointStatus[status]
        if ray_train
        else SimpleNamespace(name=status, value=status)
    )
    metrics = {"epoch": place, "loss": 0.1} | ({} if value is None else {"val_accuracy": value})
    return SimpleNamespace(
        checkpoint=SimpleNamespace(path=f"checkpoint_{place}"), metrics=metrics, status=own
    )


@LESSON.exercise(
    "06-4",
    "Travel light",
    "What a function names and does not create itself is pickled with it.",
    "Import numpy and load the reference inside the function, from `path`.",
    "`numpy.load(path).mean()` is the mean; the rest stays unchanged.",
)
def _travel_light(threshold: Any) -> None:
    images = np.arange(2 * 784, dtype=np.float64).reshape(2, 28, 28)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "reference.npy")
        for middle in (400.0, 1000.0):
            np.save(path, np.full((3, 28, 28), middle))
            answer = number(result_of(threshold, images, path, what="threshold"), "threshold(images, path)")
            close_to(answer, (images > middle).mean(), what="threshold(images, path)")
    found = inspect.getclosurevars(threshold)
    defaults = {name: one.default for name, one in inspect.signature(threshold).parameters.items()}
    for name, value in {**found.globals, **found.nonlocals, **defaults}.items():
        if getattr(value, "nbytes", 0) > 5_000:
            raise Wrong(f"{name!r} is still pickled with it, {value.nbytes:,} bytes")
