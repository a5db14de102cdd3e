"""The exercises of lesson 06: what is right, and what is said of a mistake."""

from types import SimpleNamespace

import numpy as np
import pytest
from ray.train import ReportedCheckpointStatus

from labkit.exercises import check, lesson_06


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


def reported(*pairs):
    """The entries of a run: (status, rows) of each epoch."""
    entries = []
    for epoch, (status, rows) in enumerate(pairs):
        metrics = {"epoch": epoch} | ({} if rows is None else {"rows": rows})
        entries.append(SimpleNamespace(status=SimpleNamespace(name=status), metrics=metrics))
    return entries


NO, ALL, SOME = ("COMMITTED", None), ("VALIDATED", "all"), ("VALIDATED", 1000)
FIVE, THREE = (NO, NO, SOME, NO, ALL), (NO, NO, ALL)


@pytest.mark.parametrize(
    "five, three, said",
    [
        (FIVE, THREE, "solved"),
        (
            FIVE,
            (NO, NO, SOME),
            "epoch index 2 (0 to 2) was validated on 1000 rows; it should be all",
        ),
        ((NO, NO, SOME, NO, NO), THREE, "epoch index 4 (0 to 4) was not validated"),
        ((SOME, NO, NO, SOME, ALL), THREE, "epoch index 0 (0 to 4) was validated, and needs no"),
        ((NO, NO, ("VALIDATED", "default"), NO, ALL), THREE, "without fn_kwargs"),
        ((NO, NO, ("VALIDATION_TIMEOUT", None), NO, ALL), THREE, "the status VALIDATION_TIMEOUT"),
        ((NO, NO, ("VALIDATION_FAILED", None), NO, ALL), THREE, "False, True or a ValidationTaskConfig"),
        (THREE, THREE, "3 checkpoints were reported in 5 epochs"),
    ],
)
def test_not_after_every_epoch(five, three, said, monkeypatch):
    runs = iter((five, three))
    result = SimpleNamespace(path="", filesystem=None)
    monkeypatch.setattr(lesson_06, "run_loop", lambda *args, **options: (result, []))
    monkeypatch.setattr("labkit.train.reported_checkpoints", lambda *args: reported(*next(runs)))
    assert said in repr(check("06-2", lambda config: 1))


@pytest.mark.parametrize(
    "found, said",
    [
        ([{"val_accuracy": 0.9}] * 2, "solved"),
        ([{"val_accuracy": 0.9}, {"val_accuracy": 0.8}], "dropout is still active"),
        ([{"val_accuracy": 90.0}] * 2, "from 0 to 1"),
        ([{"val_accuracy": np.float32(0.9)}] * 2, "a plain float is expected"),
        ([{"accuracy": 0.9}] * 2, '{"val_accuracy": …} is expected'),
        ([0.9] * 2, '{"val_accuracy": …} is expected'),
    ],
)
def test_a_validator_is_judged_by_two_runs(found, said, monkeypatch):
    runs = iter(found)
    monkeypatch.setattr(lesson_06, "in_a_task", lambda *args, **options: next(runs))
    result = SimpleNamespace(checkpoint=None, metrics={"val_accuracy": 0.9})
    assert said in repr(check("06-3", lambda checkpoint: 1, result))


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
    assert said in repr(check("06-4", function))


def test_none_where_there_is_none():
    def always_one(found):
        return best_of(found) or found[0].checkpoint

    assert "none is validated" in repr(check("06-4", always_one))
