"""What is read of Tune's trials: configurations, ends, failures."""

import contextlib
import functools
import json
from types import SimpleNamespace

import numpy
import pytest
import torch
from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    ResourceChangingScheduler,
)
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch
from torch import nn

from labkit.panel.drawing import snapshot
from labkit.tune import sweep, trials
from labkit.tune.callback import SweepCallback
from labkit.tune.sweep import SweepRun
from labkit.tune.trials import TunerPlan


class Net:
    """As most objects, it has no `repr` of its own."""

    def __init__(self, width):
        self.width = width


def clipped(x):
    return min(x, 1)


# fmt: off
LAMBDAS = [lambda x: x, lambda x: -x]
# fmt: on


def test_a_configuration_is_shown_flat_and_with_plain_numbers():
    model = {"width": 3, "kind": "cnn", "deep": None}
    shown = trials.shown_config({"lr": numpy.float64(0.5), "model": model, "on": True, "units": (8, 16)})
    expected = {"lr": 0.5, "model/width": 3, "model/kind": "cnn", "model/deep": None, "on": True}
    assert shown == {**expected, "units": [8, 16]}
    assert type(shown["lr"]) is float


@pytest.mark.parametrize(
    "choices, words",
    [
        ([nn.ReLU, nn.Tanh], ["ReLU", "Tanh"]),
        ([nn.ReLU(), clipped, print], ["ReLU()", "clipped", "print"]),
        ([Net(8), Net(16)], ["Net(width=8)", "Net(width=16)"]),
        ([functools.partial(clipped, 1), functools.partial(clipped, 2)], None),
        ([[nn.ReLU, 1], [nn.Tanh, 1]], [["ReLU", 1], ["Tanh", 1]]),
        ([torch.float32, torch.bfloat16], ["torch.float32", "torch.bfloat16"]),
        (LAMBDAS, None),
        ([nn.Sequential(nn.Linear(99, 9), nn.Linear(9, 9), nn.Linear(9, width)) for width in (1, 2)], None),
    ],
)
def test_classes_functions_and_objects_of_a_grid_are_told_apart(choices, words):
    shown = [trials.shown_config({"activation": one})["activation"] for one in choices]
    assert shown == words or words is None
    assert len({json.dumps(one) for one in shown}) == len(choices)
    assert "0x" not in str(shown)
    assert len({sweep._value(one) for one in shown}) == len(choices)  # in the table, too


def test_what_is_large_is_cut():
    assert len(trials.readable(numpy.arange(100_000))) <= 80


def test_a_restored_sweep_keeps_the_numbers_of_its_trials(monkeypatch):
    state = SweepRun("killed", metric="count")
    state.total = 4
    state.start()
    plan = TunerPlan(print, {}, tune.TuneConfig(metric="count"), None)
    panel = SimpleNamespace(update=lambda: contextlib.nullcontext(state), state=state, plan=plan)
    monkeypatch.setattr(SweepCallback, "panel", panel)

    def restored(x, status):
        data = SimpleNamespace(last_result={"count": x, "training_iteration": 1})
        tag = {"trial_id": f"a_{x:05}", "experiment_tag": f"{x}_x={x}"}
        return SimpleNamespace(**tag, status=status, config={"x": x}, run_metadata=data)

    newest_first = [restored(2, "PENDING"), restored(11, "PENDING"), restored(0, "TERMINATED")]
    SweepCallback().on_step_end(newest_first)
    numbers = {trial.config["x"]: trial.number for trial in state.trials.values()}
    assert numbers == {0: 0, 2: 1, 11: 2}
    assert "1 of 4 trials are over" in snapshot(state, state.now()).body


def ended(scheduler, results):
    """Why the scheduler ends trials that report these results one after the other; as Tune asks it."""
    plan = TunerPlan(print, {}, tune.TuneConfig(scheduler=scheduler), None)
    outer = plan.options.scheduler
    asked = [
        tune.experiment.Trial("none", trial_id=f"t{number}", stub=True) for number in range(len(results))
    ]
    controller = SimpleNamespace(get_live_trials=list)
    with plan.noting_stops():
        for trial, of_trial in zip(asked, results, strict=True):
            outer.on_trial_add(controller, trial)
            for result in of_trial:
                if outer.on_trial_result(controller, trial, result) == "STOP":
                    break
    assert "on_trial_result" not in vars(outer)
    return [plan.stopped.get(trial.trial_id) for trial in asked]


ASHA = {"metric": "score", "mode": "max", "reduction_factor": 3}


@pytest.mark.parametrize(
    "options, times, why",
    [
        ({"max_t": 9}, range(1, 10), "stopped at rung 1"),
        ({"max_t": 90, "grace_period": 10, "time_attr": "epoch"}, range(10, 91, 10), "stopped at rung 10"),
        ({"max_t": 9, "time_attr": "epoch"}, range(9), "stopped at rung 1"),
        ({"max_t": 100, "grace_period": 20, "time_attr": "epoch"}, range(7, 99, 7), "stopped at rung 20"),
    ],
)
def test_a_trial_that_asha_ends_is_stopped_early_in_whatever_it_counts(options, times, why):
    name = options.get("time_attr", "training_iteration")
    results = [[{name: time, "score": x * (1 + time)} for time in times] for x in (9, 8, 1)]
    assert ended(ASHAScheduler(**ASHA, **options), results) == [None, why, why]
    around = ResourceChangingScheduler(ASHAScheduler(**ASHA, **options))
    assert TunerPlan(print, {}, tune.TuneConfig(scheduler=around), None).rungs


def test_a_trial_that_another_scheduler_ends_is_stopped_early():
    rule = MedianStoppingRule("training_iteration", "score", "max", grace_period=1, min_samples_required=2)
    results = [[{"training_iteration": 1, "score": x}] for x in (9, 8, 1)]
    assert ended(rule, results) == [None, None, "stopped by MedianStoppingRule"]


def test_a_paused_trial_that_hyperband_ends_is_stopped_early():
    plan = TunerPlan(print, {}, tune.TuneConfig(scheduler=HyperBandScheduler()), None)
    for last, why in (
        ({"score": 1}, "stopped by HyperBandScheduler"),
        ({"score": 1, "done": True}, ""),
        ({}, ""),
    ):
        assert plan.stopped_in_a_pause(SimpleNamespace(run_metadata=SimpleNamespace(last_result=last))) == why


@pytest.mark.parametrize(
    "given, compared",
    [
        ({"metric": "loss", "mode": "min"}, ("loss", "min")),
        ({"scheduler": ASHAScheduler(metric="loss", mode="min")}, ("loss", "min")),
        ({"search_alg": OptunaSearch(metric="loss", mode="min")}, ("loss", "min")),
        ({"search_alg": ConcurrencyLimiter(OptunaSearch(metric="loss", mode="min"), 2)}, ("loss", "min")),
        ({"search_alg": OptunaSearch(metric=["loss", "size"], mode=["min", "max"])}, (None, "max")),
        ({}, (None, "max")),
    ],
)
def test_the_metric_is_found_wherever_it_is_named(given, compared):
    plan = TunerPlan(print, {}, tune.TuneConfig(**given), None)
    assert (plan.metric, plan.mode) == compared


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
