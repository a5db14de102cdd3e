"""What is read of Tune's trials: configurations, ends, failures."""

import json
import logging
from types import SimpleNamespace

import numpy
import pytest
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch
from torch import nn

from labkit.tune import trials
from labkit.tune.panel import SweepCallback, SweepPanel
from labkit.tune.trials import TunerPlan


class Net:
    """As most objects, it has no `repr` of its own."""

    def __init__(self, width):
        self.width = width


def clipped(x):
    return min(x, 1)


def test_a_configuration_is_shown_flat_and_with_plain_numbers():
    shown = trials.shown_config(
        {"lr": numpy.float64(0.5), "model": {"deep": None}, "on": True, "units": (8,)}
    )
    assert shown == {"lr": 0.5, "model/deep": None, "on": True, "units": [8]} and type(shown["lr"]) is float
    assert len(trials.readable(numpy.arange(100_000))) <= 80


@pytest.mark.parametrize(
    "choices, words",
    [
        ([nn.ReLU, nn.Tanh], ["ReLU", "Tanh"]),
        ([nn.ReLU(), clipped, print], ["ReLU()", "clipped", "print"]),
        ([Net(8), Net(16)], ["Net({'width': 8})", "Net({'width': 16})"]),
        ([[nn.ReLU, 1], [nn.Tanh, 1]], [["ReLU", 1], ["Tanh", 1]]),
        ([torch.float32, torch.bfloat16], ["torch.float32", "torch.bfloat16"]),
    ],
)
def test_classes_functions_and_objects_of_a_grid_are_told_apart(choices, words):
    shown = [trials.shown_config({"activation": one})["activation"] for one in choices]
    assert shown == words and json.dumps(shown)


def test_a_restored_sweep_keeps_the_numbers_of_its_trials_and_counts_changed_configurations(monkeypatch):
    panel = SweepPanel("killed")
    panel.plan = TunerPlan.from_tuner(tune.Tuner(print, tune_config=tune.TuneConfig(metric="count")))
    panel.state = panel.new_state()
    monkeypatch.setattr(SweepCallback, "panel", panel)

    def restored(x, status):
        data = SimpleNamespace(last_result={"count": x, "training_iteration": 1})
        tag = {"trial_id": f"a_{x:05}", "experiment_tag": f"{x}_x={x}"}
        return SimpleNamespace(**tag, status=status, config={"x": x}, run_metadata=data)

    callback = SweepCallback()
    known = [restored(2, "PENDING"), restored(11, "PENDING"), restored(0, "TERMINATED")]
    callback.on_step_begin(trials=known)
    callback.on_step_end()
    numbers = {trial.config["x"]: trial.number for trial in panel.state.trials.values()}
    assert numbers == {0: 0, 2: 1, 11: 2} and panel.state.counts() == {"finished": 1, "waiting": 2}
    for config in ({"x": 2}, {"x": 3}):  # as population based training does it
        known[0].config = config
        callback.on_trial_result(trial=known[0], result={"count": 1, "training_iteration": 2})
    changed = panel.state.trials["a_00002"]
    assert (changed.changes, changed.config, changed.status) == (1, {"x": 3}, "running")


def asha(**options):
    return ASHAScheduler(metric="score", mode="max", reduction_factor=3, **options)


@pytest.mark.parametrize(
    "scheduler, times, stopped",
    [
        (asha(max_t=9), range(1, 10), {1, 2}),
        (asha(max_t=90, grace_period=10, time_attr="epoch"), range(10, 91, 10), {1, 2}),
        (MedianStoppingRule("epoch", "score", "max", grace_period=1, min_samples_required=2), [1], {2}),
    ],
)
def test_a_trial_that_its_scheduler_ends_is_stopped_early_in_whatever_it_counts(scheduler, times, stopped):
    plan = TunerPlan(print, {}, tune.TuneConfig(scheduler=scheduler), None)
    asked = [tune.experiment.Trial("none", trial_id=f"t{k}", stub=True) for k in range(3)]
    controller = SimpleNamespace(get_live_trials=list)
    with plan.noting_stops():
        for trial, x in zip(asked, (9, 8, 1), strict=True):  # as Tune asks it
            scheduler.on_trial_add(controller, trial)
            for time in times:
                result = {plan.time: time, "score": x * (1 + time)}
                if scheduler.on_trial_result(controller, trial, result) == "STOP":
                    break
    assert plan.stopped == {f"t{k}" for k in stopped}
    assert "on_trial_result" not in vars(scheduler)


@pytest.mark.parametrize(
    "given, compared",
    [
        ({"metric": "loss", "mode": "min"}, ("loss", "min")),
        ({"scheduler": ASHAScheduler(metric="loss", mode="min")}, ("loss", "min")),
        ({"search_alg": ConcurrencyLimiter(OptunaSearch(metric="loss", mode="min"), 2)}, ("loss", "min")),
        ({"search_alg": OptunaSearch(metric=["loss", "size"], mode=["min", "max"])}, (None, "max")),
        ({}, (None, "max")),
    ],
)
def test_the_metric_is_found_wherever_it_is_named(given, compared):
    assert TunerPlan(print, {}, tune.TuneConfig(**given), None).compared == compared


def test_warnings_of_tune_are_heard_and_what_the_panel_shows_is_not(caplog, monkeypatch):
    log = logging.getLogger("ray")
    monkeypatch.setattr(log, "handlers", [caplog.handler])
    monkeypatch.setattr(log, "level", logging.ERROR)  # as `ray.init` of a cluster's handle sets it
    with trials.without_noise():
        logging.getLogger("ray.tune.execution.experiment_state").error("Saving experiment state failed")
        logging.getLogger("ray.tune.execution.tune_controller").error("Trial task failed for trial 3")
        logging.getLogger("ray.tune.tune").info("Total run time: 3 seconds")
    logging.getLogger("ray.tune.tune").warning("after it")
    assert caplog.messages == ["Saving experiment state failed"]
