"""What is read of Tune's trials: configurations, ends, failures."""

import json
import logging

import numpy
import pytest
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch
from torch import nn

from labkit.tune import trials
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
