"""The exercises of lesson 06: what is said of a mistake."""

from types import SimpleNamespace

import numpy as np
import pytest
import ray.train
from ray.train import ReportedCheckpointStatus

from labkit.exercises import check, registry
from verdicts import Runs, replaced, verdicts

lesson_06 = registry.load("06")


def inside(n, t, v):
    return n * (t + v)


def alongside(n, t, v):
    return max(n * t + v, t + n * v)


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
        (FIVE, (NO, NO, SOME), "epoch index 2 (0 to 2) was validated on 1000 rows; it should be all"),
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
    result = SimpleNamespace(path="", filesystem=None, return_value=[])
    monkeypatch.setattr(lesson_06, "run_loop", lambda *args, **options: (result, []))
    monkeypatch.setattr("labkit.train.reported_checkpoints", lambda *args: reported(*next(runs)))
    assert said in repr(check("06-2", lambda config: 1))


def test_a_validation_without_a_timeout_is_refused(monkeypatch):
    runs = iter((FIVE, THREE))

    def run_loop(loop, config, **options):
        monkeypatch.setattr(ray.train, "report", lambda metrics, **options: None)
        return SimpleNamespace(path="", filesystem=None, return_value=loop(config)), []

    def train_sparsely(config):
        for epoch in range(config["epochs"]):
            last = epoch == config["epochs"] - 1
            task = ray.train.ValidationTaskConfig(fn_kwargs={"rows": None}, timeout_s=None if last else 9)
            ray.train.report({"epoch": epoch}, validation=task)

    monkeypatch.setattr(lesson_06, "run_loop", run_loop)
    monkeypatch.setattr("labkit.train.reported_checkpoints", lambda *args: reported(*next(runs)))
    said = repr(check("06-2", train_sparsely))
    assert "epoch index 4 (0 to 4): its ValidationTaskConfig has no timeout_s" in said


RESULT = SimpleNamespace(checkpoint=None, metrics={"val_accuracy": 0.9})


def twice(found):
    return Runs(found, found)


def best_of(found):
    validated = [one for one in found if one.status == ReportedCheckpointStatus.VALIDATED]
    best = max(validated, key=lambda one: one.metrics["val_accuracy"], default=None)
    return best.checkpoint if best else None


def with_any_status(found):
    scored = [one for one in found if "val_accuracy" in one.metrics]
    best = max(scored, key=lambda one: one.metrics["val_accuracy"], default=None)
    return best.checkpoint if best else None


SAID = {
    "06-1": [
        (inside, alongside, "solved"),
        (inside, lambda n, t, v: n * t + v if v <= t else t + n * v, "solved"),
        (lambda n, t, v: n * t, alongside, "training alone"),
        (lambda n, t, v: n * t + v, alongside, "only one validation"),
        (inside, lambda n, t, v: n * t, "when the training ends"),
        (inside, lambda n, t, v: n * t + v, "queue"),
        (inside, lambda n, t, v: t + n * v, "waits for the next checkpoint"),
        (inside, inside, "nothing would overlap"),
        (inside, lambda n, t, v: max(n * t, n * v), "when the training ends"),
    ],
    "06-3": [
        (twice({"val_accuracy": 0.9}), RESULT, "solved"),
        (Runs({"val_accuracy": 0.9}, {"val_accuracy": 0.8}), RESULT, "dropout is still active"),
        (twice({"val_accuracy": 90.0}), RESULT, "from 0 to 1"),
        (twice({"val_accuracy": np.float32(0.9)}), RESULT, "a plain float is expected"),
        (twice({"accuracy": 0.9}), RESULT, '{"val_accuracy": …} is expected'),
    ],
    "06-4": [
        (best_of, "solved"),
        (with_any_status, "returns the one at place 1, and not the one at place 0"),
        (lambda found: found[0], "its `checkpoint` is expected"),
        (lambda found: best_of(found) or found[0].checkpoint, "none is validated"),
        (lambda found: found[-1].checkpoint, "place 2, and not the one at place 1"),
    ],
}


@verdicts(SAID)
def test_what_a_check_says(id, answers, said, monkeypatch):
    monkeypatch.setattr(lesson_06, "in_a_task", replaced)
    assert said in repr(check(id, *answers))
