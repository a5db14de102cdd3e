"""What cannot work in a sweep is refused before anything starts; what is read of a tuner and its trials."""

import functools
import json
import logging
from types import SimpleNamespace

import numpy
import pytest
import torch
from ray import tune
from ray.train._internal.storage import StorageContext
from ray.train.torch import TorchTrainer
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining, ResourceChangingScheduler
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.basic_variant import BasicVariantGenerator
from ray.tune.search.optuna import OptunaSearch
from torch import nn

from labkit import _tune
from labkit.cluster.capacity import Node
from labkit.errors import BadInput, NoRoom
from labkit.storage.folders import shown_folder
from labkit.tune import SweepPanel, trials
from labkit.tune.trials import TunerPlan


class Model(tune.Trainable):
    def step(self):
        return {"accuracy": self.config["rate"]}


def function(config):
    config = {"epochs": 2, **config}
    for _ in range(config["epochs"]):
        tune.report({"accuracy": config["rate"]})


GOOD = {"rate": tune.loguniform(1e-3, 1)}
PBT = PopulationBasedTraining(hyperparam_mutations={"rate": [1, 2]})


@pytest.fixture
def check(tmp_path):
    def check(trainable=Model, space=GOOD, *, name="new", **options):
        tuner = tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(metric="accuracy", mode="max", **options),
            run_config=tune.RunConfig(name=name, storage_path=str(tmp_path)),
        )
        nodes = [Node("head", "1", True, {"CPU": 2.0}, "127.0.0.1")]
        TunerPlan.from_tuner(tuner).check(SimpleNamespace(nodes=nodes, is_ours=True))

    return check


@pytest.mark.parametrize("trainable", [Model, function, tune.with_parameters(Model)])
@pytest.mark.parametrize(
    "space, options",
    [
        ({"rate": tune.grid_search([0.1, 0.2]), "layers": [64, 32]}, {}),
        ({"layers": [tune.choice([1, 2]), tune.choice([3, 4])]}, {}),
        ({"optimizer": {"lr": tune.sample_from(lambda spec: 0.1)}}, {}),
        ({"rate": 0.1}, {"num_samples": 8}),  # to see how much chance changes
        ({}, {"search_alg": BasicVariantGenerator()}),  # which brings its own
        ({"rate": 1}, {"scheduler": PBT, "num_samples": 4}),
        ({}, {"scheduler": ResourceChangingScheduler(PBT), "num_samples": 4}),
        ({}, {}),  # one trial
    ],
)
def test_what_works_is_let_through(check, trainable, space, options):
    check(trainable, space, **options)


def test_a_space_in_which_nothing_is_searched(check):
    for space, fact in (
        ({"optimizer": {"lr": [0.1, 0.2]}}, "(?s)'optimizer/lr' is a plain list.*grid_search"),
        (None, "(?s)the search space is empty.*param_space="),
    ):
        with pytest.raises(BadInput, match=fact):
            check(space=space, num_samples=4)


def test_a_scheduler_that_is_a_name(check):
    with pytest.raises(BadInput, match="is a name") as refused:
        check(scheduler="async_hyperband")
    fixed = {}
    exec(refused.value.fix.replace("TuneConfig(", "dict(").replace("; ", "; fixed = "), fixed)
    check(scheduler=fixed["fixed"]["scheduler"])


@pytest.mark.parametrize("name", ["lr sweep", "a#b", "50%", "is it?"])
def test_the_name_of_a_run_in_a_uri_may_have_what_a_uri_cannot(tmp_path, name):
    (tmp_path / "runs").mkdir()
    config = tune.RunConfig(name=name, storage_path=f"file://{tmp_path}/runs")
    plan = TunerPlan(function, {}, tune.TuneConfig(), config)
    context = StorageContext(config.storage_path, name)  # where Ray keeps the sweep
    assert plan.storage[1] == context.experiment_fs_path == f"{tmp_path}/runs/{name}"
    assert plan.to_restore == f"{context.experiment_fs_path!r}, storage_filesystem=…"
    assert plan.path == f"file://{tmp_path}/runs/{name}"


def test_the_options_of_a_uri_stay_at_its_end():
    path = shown_folder("s3://bucket/runs?scheme=http&endpoint_override=host:9000", "mine")
    assert path == "s3://bucket/runs/mine?scheme=http&endpoint_override=host:9000"


@pytest.mark.parametrize("trainable", [Model, function])
@pytest.mark.parametrize(
    "asked, fact",
    [
        ({"CPU": 3}, "needs 3 CPU .*head 2 CPU"),
        (
            tune.PlacementGroupFactory([{"CPU": 2}, {"CPU": 2}]),
            "needs 4 CPU, and all nodes together have less",
        ),
    ],
)
def test_trials_that_fit_nowhere(check, trainable, asked, fact):
    check(tune.with_resources(trainable, {"CPU": 0.5}))
    with pytest.raises(NoRoom, match=f"{fact}.*Ray would wait forever"):
        check(tune.with_resources(trainable, asked))


def test_a_name_that_is_taken_and_what_is_no_tuner(check, tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "experiment_state-2026-01-01_00-00-00.json").write_text("{}")
    with pytest.raises(BadInput, match="'old'") as refused:
        check(name="old")
    assert "Tuner.restore" in refused.value.fix
    with pytest.raises(BadInput, match="takes a ray.tune.Tuner and got .*TorchTrainer"):
        SweepPanel("night").watch(TorchTrainer)
    with pytest.raises(BadInput, match="it watches no tuner"), SweepPanel("night"):
        pass


# -- what is read ---------------------------------------------------------------------------------------


class Net:
    """As most objects, it has no `repr` of its own."""

    def __init__(self, width, token="x"):
        self.width, self.token = width, token


@pytest.mark.parametrize(
    "choices, words",
    [
        ([nn.ReLU, nn.Tanh], ["ReLU", "Tanh"]),
        ([Net(8), Net(16)], ["Net(width=8)", "Net(width=16)"]),
        ([functools.partial(function, password="x"), ""], ["partial", ""]),
    ],
)
def test_classes_functions_and_objects_of_a_grid_are_told_apart(choices, words):
    assert [trials.shown_config({"one": choice})["one"] for choice in choices] == words


def test_a_configuration_is_shown_flat_with_plain_numbers_and_names_and_without_secrets():
    model = {"deep": None, "layers": (8, nn.ReLU), "loss": function, "last": nn.Tanh(), "rows": numpy.ones(9)}
    config = {"lr": numpy.float64(0.5), "on": True, "dtype": torch.bfloat16, "model": model, "api_key": "x"}
    shown = trials.shown_config(config)
    assert json.loads(json.dumps(shown)) == {
        "lr": 0.5, "on": True, "dtype": "torch.bfloat16", "api_key": "(secret)", "model/deep": None,
        "model/layers": [8, "ReLU"], "model/loss": "function", "model/last": "Tanh()",
        "model/rows": "ndarray of shape (9,)",
    }  # fmt: skip


@pytest.mark.parametrize(
    "options, compared",
    [
        ({"metric": "loss", "mode": "min"}, ("loss", "min")),
        ({"scheduler": ASHAScheduler(metric="loss", mode="min")}, ("loss", "min")),
        ({"search_alg": ConcurrencyLimiter(OptunaSearch(metric="loss", mode="min"), 2)}, ("loss", "min")),
        ({"search_alg": OptunaSearch(metric=["loss", "size"], mode=["min", "max"])}, (None, "max")),
        ({}, (None, "max")),
    ],
)
def test_the_metric_is_found_wherever_it_is_named(options, compared):
    assert TunerPlan(print, {}, tune.TuneConfig(**options), None).compared == compared


def test_warnings_of_tune_are_heard_and_what_the_panel_shows_is_not(caplog, monkeypatch):
    log = logging.getLogger("ray")
    monkeypatch.setattr(log, "handlers", [caplog.handler])
    monkeypatch.setattr(log, "level", logging.ERROR)  # as `ray.init` of a cluster's handle sets it
    with _tune.without_noise():
        logging.getLogger("ray.tune.execution.experiment_state").error("Saving experiment state failed")
        logging.getLogger("ray.tune.execution.tune_controller").error("Trial task failed for trial 3")
        logging.getLogger("ray.tune.tune").info("Total run time: 3 seconds")
    logging.getLogger("ray.tune.tune").warning("after it")
    assert caplog.messages == ["Saving experiment state failed"]
