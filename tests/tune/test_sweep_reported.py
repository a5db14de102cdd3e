"""What a sweep's panel says of names and numbers that trials report."""

import inspect

import pytest
from ray import tune

from labkit.tune.reported import Iterations, names_of_tune


def counts_itself(config):
    for epoch in range(3):
        tune.report({"loss": 1.0, "training_iteration": epoch})


def overwritten(config):
    metrics = {"hostname": "not seen"}  # it may be anything's
    print(metrics)
    tune.report(metrics={"loss": 1.0, "config": "small", "pid": 3})


def ends_itself(config):
    from ray.tune import report

    report({"loss": 1.0, "done": 1})


class Ends(tune.Trainable):
    def step(self):
        return {"loss": 1.0, "done": True, "date": "today"}


def usual(config):
    tune.report({"loss": 1.0, "epoch": 1, "timesteps_total": 5}, checkpoint=None)


@pytest.mark.parametrize(
    ("trainable", "line", "words"),
    [
        (counts_itself, 2, ["'training_iteration' that {} reports replaces"]),
        (overwritten, 3, ["overwrites the 'config' that {} reports", "overwrites the 'pid' that {} reports"]),
        (ends_itself, 3, ["as soon as the 'done' that {} reports"]),
        (Ends, 2, ["overwrites the 'date' that {} reports"]),  # a class may end its trial so
        (usual, 0, []),
        ("PPO", 0, []),
        (len, 0, []),
    ],
)
def test_names_of_tunes_own_are_said_with_the_line(trainable, line, words):
    sentences = names_of_tune(trainable)
    assert len(sentences) == len(words)
    for sentence, part in zip(sentences, words, strict=True):
        number = inspect.getsourcelines(trainable)[1] + line
        assert part.format(f"line {number} of test_sweep_reported.py") in sentence
        assert "by another name" in sentence


@pytest.mark.parametrize(
    ("results", "is_said"),
    [
        ([(1, 1), (2, 2), (3, 3)], False),
        ([(1, 4), (2, 5), (1, 3), (2, 4)], False),  # it goes on from checkpoints
        ([(1, 0), (2, 1)], True),
        ([(1, 99), (2, 99)], True),
        ([(1, 10), (2, 20)], True),
    ],
)
def test_a_trial_that_counts_itself_is_noticed(results, is_said):
    iterations = Iterations()
    said = []
    for count, reported in results:
        result = {"iterations_since_restore": count, "training_iteration": reported}
        said.append(iterations.note_on("t0", result))
    assert any(said) == is_said
    assert iterations.note_on("t1", {}) == ""
