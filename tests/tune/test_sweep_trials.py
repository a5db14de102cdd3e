"""What is read of Tune's trials: configurations, ends, failures."""

import contextlib
from types import SimpleNamespace

import numpy
import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from labkit.tune import trials
from labkit.tune.callback import SweepCallback
from labkit.tune.state import SweepState
from labkit.tune.trials import TunerPlan
from labkit.tune.view import SweepView


def test_a_configuration_is_shown_flat_and_without_what_nobody_can_read():
    model = {"width": 3, "kind": "cnn", "deep": None}
    config = {"lr": numpy.float64(0.5), "model": model, "data": object(), "fn": print, "on": True}
    shown = trials.shown_config(config | {"weights": numpy.ones(3)})
    assert shown == {"lr": 0.5, "model/width": 3, "model/kind": "cnn", "model/deep": None, "on": True}
    assert type(shown["lr"]) is float


def test_a_restored_sweep_keeps_the_numbers_of_its_trials(monkeypatch):
    state = SweepState("killed", metric="count")
    state.total = 4
    state.start()
    panel = SimpleNamespace(update=lambda: contextlib.nullcontext(state), state=state)
    monkeypatch.setattr(SweepCallback, "panel", panel)

    def restored(x, status):
        data = SimpleNamespace(last_result={"count": x, "training_iteration": 1})
        tag = {"trial_id": f"a_{x:05}", "experiment_tag": f"{x}_x={x}"}
        return SimpleNamespace(**tag, status=status, config={"x": x}, run_metadata=data)

    newest_first = [restored(2, "PENDING"), restored(11, "PENDING"), restored(0, "TERMINATED")]
    SweepCallback().on_step_end(newest_first)
    numbers = {trial.config["x"]: trial.number for trial in state.trials.values()}
    assert numbers == {0: 0, 2: 1, 11: 2}
    assert "1 of 4 trials are over" in str(SweepView().body(state, 0.0))


@pytest.mark.parametrize(
    "iteration, accuracy, done, early",
    [
        (3, 0.5, True, True),
        (1, 0.5, True, True),
        (3, 0.5, False, False),
        (3, 0.95, True, False),  # a stop criterion
        (5, 0.5, True, False),  # the trainable said so itself
        (9, 0.5, True, False),  # the scheduler's longest
    ],
)
def test_which_trials_the_scheduler_has_stopped_early(iteration, accuracy, done, early):
    options = tune.TuneConfig(scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3))
    plan = TunerPlan(print, {}, options, None)
    assert plan.rungs == (1, 3, 9)
    trial = SimpleNamespace(stopping_criterion={"accuracy": 0.9, "training_iteration": 20})
    result = {"training_iteration": iteration, "accuracy": accuracy, "done": done}
    assert plan.ended_early(trial, result) is early


def test_names_that_are_the_trainables_own():
    said = "Trial returned a result which did not include the specified metric(s) `a`. "
    message = said + "Result: {'score': 1, 'done': False, 'pid': 3, 'config/lr': 1, 'loss': 2}"
    assert trials.names_without_metric(message) == ["loss", "score"]
    assert trials.names_without_metric("CUDA error. Result: {'loss': 2}") is None


@pytest.mark.parametrize(
    "written, why",
    [
        ("ValueError: first\nFailure # 2 (occurred later)\nValueError: second", "ValueError: second"),
        ('  File "/home/me/x.py", line 3, in step\nValueError: bad', "ValueError: bad"),
        ("The actor died unexpectedly before finishing this task.\n\tclass_name: X", "its process is gone"),
        ("Task was killed due to the node running low on memory.\nMore.", "its process is gone"),
        (None, "no error was kept"),
    ],
)
def test_why_a_trial_failed(tmp_path, written, why):
    if written is not None:
        (tmp_path / "error.txt").write_text(f"Failure # 1 (occurred at today)\n{written}\n")
    said = trials.why_failed(SimpleNamespace(error_file=str(tmp_path / "error.txt")))
    assert why in said and "first" not in said
