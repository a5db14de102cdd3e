"""The exercises of lesson 04: what is said of a mistake."""

import pytest

from course.exercises import registry
from course.exercises.answers import Wrong
from verdicts import Runs, checks, replaced

ROWS = 1437


ANSWERS = {
    "04-1": [
        ([48, 12, 96], "ONE worker"),
        ([192, 48, 96], "divides it"),
        ([192, 12, 24], "not 48"),
    ],
    "04-2": [
        ([Runs({"replicas": 1, "updates": 13}), ROWS], "a model of its own"),
        ([Runs({"replicas": 2, "updates": 24}), ROWS], "it used 32"),
        ([Runs({"replicas": 2, "updates": 7}), ROWS], "it used 128"),
        ([Runs({"replicas": 2, "updates": 40}), ROWS], "not 64 rows"),
        ([Runs(None), ROWS], "leave its last line"),
    ],
    "04-3": [
        ([Runs({"first": 1, "updates": 12, "replicas": 1})], "inside `strategy.scope()`"),
        ([Runs({"first": 0, "updates": 12, "replicas": 2})], "started over"),
        ([Runs({"first": 2, "updates": 8, "replicas": 2})], "never saved"),
        ([Runs({"first": 1, "updates": 8, "replicas": 2})], "an optimizer that starts over"),
        ([Runs({"first": 1, "updates": 16, "replicas": 2})], "`initial_epoch` is not `first`"),
        ([Runs(Wrong("train_resumable raised OSError: the disk is full"))], "epoch 0 came again"),
    ],
    "04-4": [
        ({" // ": " / "}, "solved"),
        ({"in_each_worker * workers": "rows"}, "nothing is cut"),
        ({" // workers": ""}, "in EACH worker"),
        ({"    if by_tensorflow": "    elif by_tensorflow"}, "a part of that part"),
        (
            {"in_each_worker * workers": "in_each_worker if by_ray or by_tensorflow else rows * workers"},
            "ONE worker",
        ),
        ({"return ": "return 0 if by_ray and by_tensorflow else "}, "every worker gets some"),
    ],
}


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    monkeypatch.setattr(registry.load("04"), "returned", replaced)


test_what_a_check_says = checks(ANSWERS)
