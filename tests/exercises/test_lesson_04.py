"""The exercises of lesson 04: what is right, and what is said of a mistake."""

from types import SimpleNamespace

import numpy as np
import pytest

from labkit.exercises import check, lesson_04
from labkit.exercises.answers import Wrong


@pytest.mark.parametrize(
    "batch, rows, updates, said",
    [
        (192, 12, 96, "solved"),
        (48, 12, 96, "ONE worker"),
        (12, 12, 96, "multiply"),
        (192, 48, 96, "divides it"),
        (192, 12, 24, "not 48"),
        (192, 12, 384, "at the same time"),
        (192, 12, 97, "not it"),
        (..., 12, 96, "not attempted"),
    ],
)
def test_a_batch_for_all_of_them(batch, rows, updates, said):
    assert said in repr(check("04-1", batch, rows, updates))


def seen(rows, workers, by_ray, by_tensorflow):
    return rows * workers // workers ** (by_ray + by_tensorflow)


def by_cases(rows, workers, by_ray, by_tensorflow):
    if by_ray and by_tensorflow:
        return rows / workers
    return rows if by_ray or by_tensorflow else rows * workers


@pytest.mark.parametrize(
    "function, said",
    [
        (seen, "solved"),
        (by_cases, "solved"),
        (lambda rows, workers, by_ray, by_tensorflow: rows, "nothing is cut"),
        (lambda rows, workers, by_ray, by_tensorflow: rows * workers, "in EACH worker"),
        (lambda rows, workers, r, t: rows if r or t else rows * workers, "a part of that part"),
        (lambda rows, workers, r, t: rows // workers if r or t else rows * workers, "ONE worker"),
        (lambda rows, workers, r, t: 0 if r and t else seen(rows, workers, r, t), "every worker gets some"),
        (lambda rows, workers: rows, "raised TypeError"),
        (7, "a function is expected"),
    ],
)
def test_sharded_once(function, said):
    assert said in repr(check("04-4", function))


@pytest.fixture
def ran(monkeypatch):
    """Let a loop "run on two workers": what it returns is `found` itself."""

    def returns(found):
        result = SimpleNamespace(return_value=found)
        monkeypatch.setattr(lesson_04, "run_loop", lambda *args, **options: (result, []))

    return returns


@pytest.mark.parametrize(
    "found, said",
    [
        ({"replicas": 2, "updates": 13}, "solved"),
        ({"replicas": 2, "updates": 12}, "solved"),
        ({"replicas": 1, "updates": 13}, "a model of its own"),
        ({"replicas": 2, "updates": 24}, "it used 32"),
        ({"replicas": 2, "updates": 7}, "it used 128"),
        ({"replicas": 2, "updates": 40}, "not 64 rows"),
        (None, "leave its last line"),
    ],
)
def test_a_fixed_loop_is_judged_by_what_it_returns(ran, found, said):
    ran(found)
    assert said in repr(check("04-2", lambda config: found, SimpleNamespace(count=lambda: 1437)))


@pytest.mark.parametrize(
    "found, said",
    [
        ({"first": 1, "updates": 12}, "solved"),
        ({"first": 0, "updates": 12}, "started over"),
        ({"first": 2, "updates": 8}, "never saved"),
        ({"first": 1, "updates": 8}, "an optimizer that starts over"),
        ({"first": 1, "updates": 16}, "`initial_epoch` is not `first`"),
        ({"updates": 12}, "leave its last line"),
    ],
)
def test_a_loop_that_resumes_is_judged_by_what_it_returns(ran, found, said):
    ran(found)
    assert said in repr(check("04-3", lambda config: found))


def test_a_loop_that_begins_again_fails_again(monkeypatch):
    def run(*args, **options):
        raise Wrong("train_resumable raised OSError: the disk is full")

    monkeypatch.setattr(lesson_04, "run_loop", run)
    assert "epoch 0 came again" in repr(check("04-3", lambda config: 1))


@pytest.mark.parametrize(
    "function, said",
    [
        (lambda losses, global_batch: losses.sum() / global_batch, "solved"),
        (lambda losses, global_batch: sum(losses) / global_batch, "solved"),
        (lambda losses, global_batch: losses.mean(), "adds the workers up"),
        (lambda losses, global_batch: losses.sum(), "nothing is divided"),
        (lambda losses, global_batch: losses.mean() / 2, "same number of rows"),
        (lambda losses, global_batch: losses.sum() / global_batch / 2, "once too often"),
        (lambda losses, global_batch: losses / global_batch, "a number is expected"),
        (lambda losses: np.mean(losses), "raised TypeError"),
        (lambda losses, global_batch: ..., "not attempted"),
    ],
)
def test_what_to_divide_by(function, said):
    assert said in repr(check("04-5", function))
