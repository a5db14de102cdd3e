"""What a sweep's panel says of names and numbers that trials report."""

import inspect
import math

import pytest
from ray import tune

from labkit.panel.reporters import NullReporter
from labkit.tune import SweepPanel
from labkit.tune.reported import Iterations, names_of_tune
from labkit.tune.sweep_view import shown

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/tune/")]

LAB = {"nodes": 1, "cpus_per_node": 4}


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


# -- on the real Tune ----------------------------------------------------------------------------------------


def odd(config):
    for epoch in range(3):
        more = {
            "plain": {},
            "counts": {"training_iteration": 99 + epoch * 2},
            "ends": {"done": epoch == 1},
            "overwritten": {"pid": -1, "date": "never"},
            "nan": {"loss": (0.1, math.nan, 0.99)[epoch]},
        }
        tune.report({"loss": 1.0 - epoch / 10, **more[config["what"]]})


@pytest.fixture(scope="module")
def sweep(lab, home):
    tuner = tune.Tuner(
        odd,
        param_space={"what": tune.grid_search(["plain", "counts", "ends", "overwritten", "nan"])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=3),
        run_config=tune.RunConfig(storage_path=str(home / "sweeps")),
    )
    panel = SweepPanel("odd", reporter=NullReporter())
    with panel.watch(tuner):
        return tuner.fit(), panel.state


def test_what_tune_makes_of_such_reports(sweep):
    results, _ = sweep
    metrics = {result.config["what"]: result.metrics for result in results}
    assert metrics["plain"]["training_iteration"] == 3
    assert metrics["counts"]["training_iteration"] == 103
    assert metrics["ends"]["training_iteration"] == 2
    assert metrics["overwritten"]["pid"] > 0 and metrics["overwritten"]["date"] != "never"
    assert results.get_best_result(scope="all").config["what"] != "nan"  # although its 0.1 is the least


def test_the_panel_says_so(sweep):
    _, state = sweep
    replaced, not_finite = shown(
        state, state.ended_at
    ).notes  # the names are in no dict that is written out in report()
    assert "the 'training_iteration' that trials report replaces" in replaced
    assert "trial 4 reported loss=nan" in not_finite
