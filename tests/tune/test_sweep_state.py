"""The state of a sweep: what Tune's trials do goes in, counts, order, best and ETA come out."""

import math

import pytest

from labkit.tune.sweep import SweepRun


@pytest.fixture
def state():
    state = SweepRun("sweep", metric="accuracy", mode="max", path="/runs/sweep")
    state.total = 6
    state.start(now=100.0)
    for number in range(4):
        state.add(f"t{number}", {"lr": 0.1 * (number + 1)})
    return state


def report(state, id, iteration, value):
    state.reported(id, iteration=iteration, value=value, seconds=0.5 * iteration)


def test_counts_by_status_and_those_not_drawn_yet(state):
    state.set_status("t0", "running", now=103.0)
    state.set_status("t1", "running", now=104.0)
    state.set_status("t1", "stopped early", why="stopped at rung 1")
    assert state.counts() == {"running": 1, "waiting": 4, "stopped early": 1}
    assert (state.done, state.at_once) == (1, 2)
    assert state.phase_seconds(now=110.0) == {"start": 3.0, "training": 7.0}


@pytest.mark.parametrize("mode, order", [("max", [2, 0, 1, 3]), ("min", [1, 0, 2, 3])])
def test_the_best_has_the_best_last_value_as_for_get_best_result(state, mode, order):
    state.mode = mode
    for number, values in ((0, (0.99, 0.5)), (1, (0.2,)), (2, (0.9,)), (3, (0.99, math.nan))):
        for iteration, value in enumerate(values, 1):
            report(state, f"t{number}", iteration, value)
    assert [trial.number for trial in state.ranked()] == order
    assert state.best.number == order[0]


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "good", True])
def test_what_is_no_number_is_never_the_best(state, value):
    report(state, "t0", 1, value)
    assert state.best is None and state.trials["t0"].iteration == 1
    report(state, "t1", 1, -3.0)
    assert state.best.number == 1


def test_eta_comes_from_the_trials_that_are_over(state):
    state.set_status("t0", "running", now=104.0)
    assert state.eta(now=110.0) is None
    for id in ("t0", "t1"):
        state.set_status(id, "finished")
    assert state.eta(now=110.0) == pytest.approx(6.0 / 2 * 4)
    state.end("finished", now=120.0)
    assert state.eta(now=121.0) is None


def test_a_long_curve_is_thinned_and_keeps_its_ends(state):
    for iteration in range(1, 1001):
        report(state, "t0", iteration, iteration / 1000)
    curve = state.trials["t0"].curve
    points = state.trials["t0"].points()
    assert len(curve) <= 200 and curve[0] == (1, 1, 0.001) and points[-1] == (1000, 1.0)


def test_the_record_has_the_best_trial_and_all_others(state):
    report(state, "t1", 1, 0.5)
    report(state, "t1", 2, 0.7)
    state.trial_failed("t2", "step, cell 4, line 9\n    raise ValueError('bad')\nValueError: bad")
    assert (state.failures[0].rank, state.failures[0].message) == (2, "ValueError: bad")
    record = state.to_record()
    assert record["config"] == {"lr": 0.2} and record["metrics"] == {"accuracy": 0.7}
    assert [row["accuracy"] for row in record["history"]] == [0.5, 0.7]
    assert record["storage_path"] == "/runs/sweep"
    assert record["extra"]["counts"] == {"waiting": 5, "failed": 1}
    assert len(record["extra"]["trials"]) == 4 and record["extra"]["trials"][2]["why"] == "ValueError: bad"
