"""Lesson 06: the last metric, not after every epoch, the best of them, travel light."""

import inspect
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from labkit.exercises.answers import Wrong, close_to, number, result_of, shown
from labkit.exercises.registry import Exercise, Lesson


def _last_metric(inside: Any, beside: Any) -> None:
    # n epochs of t seconds, v seconds for a validation; the answers
    for n, t, v, in_loop, by_side in (
        (10, 5.0, 2.0, 70, 52),
        (4, 3.0, 3.0, 24, 15),
        (5, 2.0, 6.0, 40, 32),
        (1, 4.0, 9.0, 13, 13),
    ):
        call = f"({n}, {t:g}, {v:g})"
        answer = number(result_of(inside, n, t, v, what="inside"), f"inside{call}")
        remarks = {n * t: "that is the training alone", n * t + v: "only one validation is in it"}
        close_to(answer, in_loop, what=f"inside{call}", mistakes=remarks)
        answer = number(result_of(beside, n, t, v, what="beside"), f"beside{call}")
        remarks = {
            n * t: "the last checkpoint is there only when the training ends",
            n * t + v: "validations that take longer than an epoch queue, one after the other",
            n * v: "the first of them cannot begin before the first epoch is over",
            n * (t + v): "then nothing would overlap",
            t + n * v: "a validation that is shorter than an epoch waits for the next checkpoint",
        }
        close_to(answer, by_side, what=f"beside{call}", mistakes=remarks)


def _validation_of(validation_of: Any) -> None:
    for epochs in (7, 6, 1):
        for epoch in range(epochs):
            what = f"validation_of({epoch}, {epochs})"
            found = result_of(validation_of, epoch, epochs, what="validation_of")
            last = epoch == epochs - 1
            wanted = (None, 300) if last else (1000, 30) if epoch % 3 == 2 else None
            _compare_task(found, wanted, what, last=last)


def _compare_task(found: Any, wanted: tuple[int | None, int] | None, what: str, *, last: bool) -> None:
    if wanted is None:
        if found is not False and found is not None:
            raise Wrong(f"{what} is {shown(found)}, and that epoch is not to be validated: False")
        return
    if not hasattr(found, "fn_kwargs") or not hasattr(found, "timeout_s"):
        which = "the last epoch" if last else "a third one"
        raise Wrong(f"{what} is {shown(found)}, and for {which} a ValidationTaskConfig is wanted")
    if found.fn_kwargs != {"rows": wanted[0]}:
        raise Wrong(f"{what} has fn_kwargs={shown(found.fn_kwargs)}, and 'rows' is to be {wanted[0]}")
    if found.timeout_s != wanted[1]:
        raise Wrong(f"{what} has timeout_s={shown(found.timeout_s)}, and {wanted[1]} seconds are wanted")


def _best_of(best_of: Any) -> None:
    cases = (
        ([("VALIDATED", 0.7), ("VALIDATED", 0.9), ("VALIDATED", 0.8)], 1),
        ([("VALIDATED", 0.6), ("VALIDATION_FAILED", None), ("VALIDATED", 0.5)], 0),
        ([("VALIDATION_TIMEOUT", None), ("VALIDATED", 0.2), ("PENDING_VALIDATION", None)], 1),
        # A loop may report a value under that name, too: it is no validated one.
        ([("VALIDATED", 0.6), ("VALIDATION_FAILED", 0.99)], 0),
        ([("VALIDATION_FAILED", None), ("COMMITTED", None)], None),
    )
    for rows, expected in cases:
        found = [_reported(place, status, value) for place, (status, value) in enumerate(rows)]
        told = ", ".join(f"{status} {'–' if value is None else value}" for status, value in rows)
        answer = result_of(best_of, list(found), what="best_of")
        if expected is None:
            if answer is not None:
                raise Wrong(f"of {told}, none is validated, and best_of returns {shown(answer)}")
            continue
        if answer is found[expected]:
            raise Wrong("best_of returns the whole entry, and its `checkpoint` is wanted")
        if answer is not found[expected].checkpoint:
            said = next(
                (f"the one of place {k}" for k, one in enumerate(found) if answer is one.checkpoint), None
            )
            raise Wrong(f"of {told}, best_of takes {said or shown(answer)}, and not that of place {expected}")


def _reported(place: int, status: str, value: float | None) -> Any:
    metrics = {"epoch": place, "loss": 0.1} | ({} if value is None else {"val_accuracy": value})
    return SimpleNamespace(
        checkpoint=SimpleNamespace(path=f"checkpoint_{place}"),
        metrics=metrics,
        status=_status(status),
    )


def _status(name: str) -> Any:
    """Ray's own, where the answer knows Ray; a check loads none."""
    ray_train = sys.modules.get("ray.train")
    return ray_train.ReportedCheckpointStatus[name] if ray_train else SimpleNamespace(name=name, value=name)


def _travel_light(threshold: Any) -> None:
    images = np.arange(2 * 784, dtype=np.float64).reshape(2, 28, 28)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "reference.npy")
        for middle in (400.0, 1000.0):
            np.save(path, np.full((3, 28, 28), middle))
            answer = number(result_of(threshold, images, path, what="threshold"), "threshold(images, path)")
            close_to(answer, (images > middle).mean(), what="threshold(images, path)")
    for name, value in _used(threshold):
        if getattr(value, "nbytes", 0) > 5_000:
            raise Wrong(f"it still takes {name!r} along, {value.nbytes:,} bytes")


def _used(function: Any) -> Iterator[tuple[str, Any]]:
    """The variables outside of a function that its code names, and its defaults."""
    found = inspect.getclosurevars(function)
    yield from {**found.globals, **found.nonlocals}.items()
    for name, parameter in inspect.signature(function).parameters.items():
        yield name, parameter.default


LESSON = Lesson(
    "06",
    "Validation beside the training",
    (
        Exercise(
            id="06-1",
            title="When is the last metric there?",
            hints=(
                "Draw the bars of three epochs, once with v shorter than t and once with v longer.",
                "Beside it, a validation begins when its checkpoint is there and the one before is over.",
                "If `v <= t`, only the last comes after the training. Else they queue from `t` on.",
            ),
            check=_last_metric,
        ),
        Exercise(
            id="06-2",
            title="Not after every epoch",
            hints=(
                "Three answers are possible: two kinds of `ValidationTaskConfig`, and `False`.",
                "Look at the last epoch first: it may be a third one as well.",
                "`ValidationTaskConfig(fn_kwargs={'rows': 1000}, timeout_s=30)` where `epoch % 3 == 2`.",
            ),
            check=_validation_of,
        ),
        Exercise(
            id="06-3",
            title="The best of them",
            hints=(
                "Which of them have a `val_accuracy` that can be trusted? Their `status` says so.",
                "First keep those with `ReportedCheckpointStatus.VALIDATED`, then take the largest.",
                "`max(…, key=lambda one: one.metrics['val_accuracy'], default=None)`; then its `checkpoint`.",
            ),
            check=_best_of,
        ),
        Exercise(
            id="06-4",
            title="Travel light",
            hints=(
                "What a function names and does not make itself, it takes along.",
                "Load the reference inside the function, from `path`.",
                "`numpy.load(path).mean()` is the mean; the rest stays as it is.",
            ),
            check=_travel_light,
        ),
    ),
)
