"""The state of a sweep: what Tune's trials do goes in, counts, order, best and ETA come out."""

import math

import pytest

from labkit.tune.state import SweepState


@pytest.fixture
def state():
    state = SweepState("sweep", metric="accuracy", mode="max")
    state.total = 6
    state.start(now=100.0)
    for number in range(4):
        state.add(f"t{number}", {"lr": 0.1 * (number + 1)})
    return state


def report(state, id, iteration, value, now=110.0):
    state.result(id, iteration=iteration, value=value, seconds=0.5 * iteration, node="head", now=now)


def test_counts_by_status_and_those_not_drawn_yet(state):
    state.set_status("t0", "running", now=103.0)
    state.set_status("t1", "running", now=104.0)
    state.set_status("t1", "stopped early", why="stopped at rung 1")
    assert state.counts() == {"running": 1, "waiting": 4, "stopped early": 1}
    assert (state.done, state.at_once) == (1, 2)
    assert state.phase_seconds(now=110.0) == {"start": 3.0, "training": 7.0}


@pytest.mark.parametrize("mode, best, order", [("max", 2, [2, 0, 1, 3]), ("min", 1, [1, 0, 2, 3])])
def test_the_best_and_the_order(mode, best, order):
    state = SweepState("sweep", metric="accuracy", mode=mode)
    state.start(now=0.0)
    for number in range(4):
        state.add(f"t{number}", {})
    for number, value in ((0, 0.5), (1, 0.2), (2, 0.9)):
        report(state, f"t{number}", 1, value)
    assert state.best.number == best
    assert [trial.number for trial in state.ranked()] == order


def test_the_best_is_of_any_time_and_not_only_of_the_end(state):
    report(state, "t0", 1, 0.9, now=105.0)
    report(state, "t0", 2, 0.4, now=106.0)
    report(state, "t1", 1, 0.6, now=107.0)
    assert (state.best.number, state.best.best, state.best.value) == (0, 0.9, 0.4)
    assert state.improvements == [(5.0, 0.9)]


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "good", True])
def test_what_is_no_number_is_never_the_best(state, value):
    report(state, "t0", 1, value)
    assert state.best is None and state.trials["t0"].iteration == 1
    report(state, "t1", 1, -3.0)
    assert state.best.number == 1


def test_failures_are_kept_with_their_trial(state):
    state.trial_failed("t2", "step, cell 4, line 9\n    raise ValueError('bad')\nValueError: bad")
    trial = state.trials["t2"]
    assert (trial.status, trial.why, state.failures[0].rank) == ("failed", "ValueError: bad", 2)
    assert [t.number for t in state.ranked()][0] == 2  # nobody has a value: failures first


def test_eta_comes_from_the_trials_that_are_over(state):
    state.set_status("t0", "running", now=104.0)
    assert state.eta(now=110.0) is None
    for id in ("t0", "t1"):
        state.set_status(id, "finished")
    assert state.eta(now=110.0) == pytest.approx(6.0 / 2 * 4)
    state.end("finished", now=120.0)
    assert state.eta(now=121.0) is None


def test_trials_from_before_a_restart_do_not_count_for_the_pace(state):
    for id in ("t0", "t1", "t2"):
        report(state, id, 9, 0.8)
        state.restored(id, "finished")
    state.set_status("t3", "running", now=101.0)
    assert state.done == 3 and state.best.best == 0.8
    assert state.eta(now=110.0) is None  # none of this process is over yet
    assert state.trials["t0"].why == "before the restart"


def test_a_long_curve_is_thinned_and_keeps_its_ends(state):
    for iteration in range(1, 1001):
        report(state, "t0", iteration, iteration / 1000)
    curve = state.trials["t0"].curve
    assert len(curve) <= 200 and curve[0] == (1, 0.001) and curve[-1] == (1000, 1.0)


def test_the_record_has_the_best_trial_and_all_others(state):
    report(state, "t1", 1, 0.5)
    report(state, "t1", 2, 0.7)
    state.trial_failed("t2", "ValueError: bad")
    record = state.to_record()
    assert record["metrics"] == {"accuracy": 0.7} and [row["accuracy"] for row in record["history"]] == [
        0.5,
        0.7,
    ]
    assert record["extra"]["counts"] == {"waiting": 5, "failed": 1}
    assert record["extra"]["config"] == {"lr": 0.2} and len(record["extra"]["trials"]) == 4
    assert record["extra"]["trials"][2]["why"] == "ValueError: bad"
