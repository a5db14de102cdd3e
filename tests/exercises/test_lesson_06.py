"""The exercises of lesson 06: what is right, and what a likely mistake is told."""

import numpy as np
import pytest
from ray.train import ReportedCheckpointStatus, ValidationTaskConfig

from labkit.exercises import check


def inside(n, t, v):
    return n * (t + v)


def alongside(n, t, v):
    return max(n * t + v, t + n * v)


def stub(n, t, v): ...


@pytest.mark.parametrize(
    "one, other, said",
    [
        (inside, alongside, "solved"),
        (inside, lambda n, t, v: n * t + v if v <= t else t + n * v, "solved"),
        (lambda n, t, v: n * t, alongside, "training alone"),
        (lambda n, t, v: n * t + v, alongside, "only one validation"),
        (inside, lambda n, t, v: n * t, "when the training ends"),
        (inside, lambda n, t, v: n * t + v, "queue"),
        (inside, lambda n, t, v: t + n * v, "waits for the next checkpoint"),
        (inside, inside, "nothing would overlap"),
        (inside, lambda n, t, v: max(n * t, n * v), "when the training ends"),
        (inside, lambda n, t, v: "late", "a number is expected"),
        (stub, alongside, "not attempted"),
        (inside, stub, "not attempted"),
    ],
)
def test_when_the_last_metric_is_there(one, other, said):
    assert said in repr(check("06-1", one, other))


def every_third(epoch, epochs):
    if epoch == epochs - 1:
        return ValidationTaskConfig(fn_kwargs={"rows": None}, timeout_s=300)
    return ValidationTaskConfig(fn_kwargs={"rows": 1000}, timeout_s=30) if epoch % 3 == 2 else False


def third_first(epoch, epochs):
    if epoch % 3 == 2:
        return ValidationTaskConfig(fn_kwargs={"rows": 1000}, timeout_s=30)
    return ValidationTaskConfig(fn_kwargs={"rows": None}, timeout_s=300) if epoch == epochs - 1 else False


def from_the_first(epoch, epochs):
    if epoch == epochs - 1:
        return ValidationTaskConfig(fn_kwargs={"rows": None}, timeout_s=300)
    return ValidationTaskConfig(fn_kwargs={"rows": 1000}, timeout_s=30) if epoch % 3 == 0 else False


def no_limit(epoch, epochs):
    found = every_third(epoch, epochs)
    return ValidationTaskConfig(fn_kwargs=found.fn_kwargs) if found else False


@pytest.mark.parametrize(
    "function, said",
    [
        (every_third, "solved"),
        (third_first, r"validation_of(5, 6) has fn_kwargs"),
        (from_the_first, "needs no validation"),
        (no_limit, "it should be 30"),
        (lambda epoch, epochs: every_third(epoch, epochs) and True, "a ValidationTaskConfig is expected"),
        (lambda epoch, epochs: epoch % 3 == 2, "a ValidationTaskConfig is expected"),
        (lambda epoch, epochs: ..., "not attempted"),
    ],
)
def test_not_after_every_epoch(function, said):
    assert said in repr(check("06-2", function))


def best_of(found):
    validated = [one for one in found if one.status == ReportedCheckpointStatus.VALIDATED]
    best = max(validated, key=lambda one: one.metrics["val_accuracy"], default=None)
    return best.checkpoint if best else None


def with_any_status(found):
    scored = [one for one in found if "val_accuracy" in one.metrics]
    best = max(scored, key=lambda one: one.metrics["val_accuracy"], default=None)
    return best.checkpoint if best else None


def whole_entry(found):
    validated = [one for one in found if one.status == ReportedCheckpointStatus.VALIDATED]
    return max(validated, key=lambda one: one.metrics["val_accuracy"], default=None)


@pytest.mark.parametrize(
    "function, said",
    [
        (best_of, "solved"),
        (with_any_status, "returns the one at place 1, and not the one at place 0"),
        (whole_entry, "its `checkpoint` is expected"),
        (lambda found: found[-1].checkpoint, "place 2, and not the one at place 1"),
        (lambda found: max(found, key=lambda one: one.metrics["val_accuracy"]).checkpoint, "raised KeyError"),
        (lambda found: 7, "returns 7, and not the one at place 1"),
    ],
)
def test_the_best_of_them(function, said):
    assert said in repr(check("06-3", function))


def test_none_where_there_is_none():
    def always_one(found):
        return best_of(found) or found[0].checkpoint

    assert "none is validated" in repr(check("06-3", always_one))


reference = np.zeros((50, 28, 28))


def light(images, path):
    return float((images > np.load(path).mean()).mean())


def heavy(images, path):
    return float((images > np.load(path).mean()).mean()) + reference.sum()


def with_its_own(images, path):
    return float((images > reference.mean()).mean())


@pytest.mark.parametrize(
    "function, said",
    [
        (light, "solved"),
        (heavy, "'reference' is still pickled with it, 313,600 bytes"),
        (with_its_own, "that is not it"),
        (lambda images: 0.5, "raised TypeError"),
        (lambda images, path: "half", "a number is expected"),
    ],
)
def test_travel_light(function, said):
    assert said in repr(check("06-4", function))
