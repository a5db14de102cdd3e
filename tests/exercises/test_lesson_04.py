"""The exercises of lesson 04: what is said of a mistake."""

import pytest

from course.exercises import check, registry
from course.exercises.answers import Wrong
from verdicts import Runs, cases, replaced

lesson_04 = registry.load("04")


def seen(rows, workers, by_ray, by_tensorflow):
    return rows * workers // workers ** (by_ray + by_tensorflow)


def by_cases(rows, workers, by_ray, by_tensorflow):
    if by_ray and by_tensorflow:
        return rows / workers
    return rows if by_ray or by_tensorflow else rows * workers


ROWS = 1437


ANSWERS = {
    "04-1": [
        ([192, 12, 96], "solved"),
        ([48, 12, 96], "ONE worker"),
        ([192, 48, 96], "divides it"),
        ([192, 12, 24], "not 48"),
    ],
    "04-2": [
        ([Runs({"replicas": 2, "updates": 13}), ROWS], "solved"),
        ([Runs({"replicas": 1, "updates": 13}), ROWS], "a model of its own"),
        ([Runs({"replicas": 2, "updates": 24}), ROWS], "it used 32"),
        ([Runs({"replicas": 2, "updates": 7}), ROWS], "it used 128"),
        ([Runs({"replicas": 2, "updates": 40}), ROWS], "not 64 rows"),
        ([Runs(None), ROWS], "leave its last line"),
    ],
    "04-3": [
        ([Runs({"first": 1, "updates": 12, "replicas": 2})], "solved"),
        ([Runs({"first": 1, "updates": 12, "replicas": 1})], "inside `strategy.scope()`"),
        ([Runs({"first": 0, "updates": 12, "replicas": 2})], "started over"),
        ([Runs({"first": 2, "updates": 8, "replicas": 2})], "never saved"),
        ([Runs({"first": 1, "updates": 8, "replicas": 2})], "an optimizer that starts over"),
        ([Runs({"first": 1, "updates": 16, "replicas": 2})], "`initial_epoch` is not `first`"),
        ([Runs(Wrong("train_resumable raised OSError: the disk is full"))], "epoch 0 came again"),
    ],
    "04-4": [
        ([by_cases], "solved"),
        ([lambda rows, workers, by_ray, by_tensorflow: rows], "nothing is cut"),
        ([lambda rows, workers, by_ray, by_tensorflow: rows * workers], "in EACH worker"),
        ([lambda rows, workers, r, t: rows if r or t else rows * workers], "a part of that part"),
        ([lambda rows, workers, r, t: rows // workers if r or t else rows * workers], "ONE worker"),
        ([lambda rows, workers, r, t: 0 if r and t else seen(rows, workers, r, t)], "every worker gets some"),
    ],
}


@pytest.mark.parametrize(("exercise", "answers", "verdict"), cases(ANSWERS))
def test_what_a_check_says(exercise, answers, verdict, monkeypatch):
    monkeypatch.setattr(lesson_04, "returned", replaced)
    assert verdict in repr(check(exercise, *answers))
