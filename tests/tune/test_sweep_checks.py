"""What cannot work in a sweep is refused before anything starts, with the fact and the fix."""

import logging
import os
import pickle
from types import SimpleNamespace

import pytest
from ray import tune
from ray.train.torch import TorchTrainer
from ray.tune.search.basic_variant import BasicVariantGenerator

from labkit.errors import LabError
from labkit.tune.checks import check_plan
from labkit.tune.panel import SweepPanel
from labkit.tune.trials import TunerPlan, without_noise


class Model(tune.Trainable):
    def step(self):
        return {"accuracy": self.config["learning_rate"]}


def function(config):
    tune.report({"accuracy": config["learning_rate"]})


def merged(config):
    """Reads one name from its defaults, and the searched one as an attribute."""
    config = {"epochs": 2, **config}
    options = SimpleNamespace(**config)
    for _ in range(config["epochs"]):
        tune.report({"accuracy": options.rate})


GOOD = {"learning_rate": tune.loguniform(1e-3, 1)}


@pytest.fixture
def refuse(tmp_path):
    def refuse(trainable=Model, space=GOOD, *, nodes=({"CPU": 2.0},), name="new", **options):
        tuner = tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(**{"metric": "accuracy", "mode": "max", **options}),
            run_config=tune.RunConfig(name=name, storage_path=str(tmp_path)),
        )
        check_plan(TunerPlan.from_tuner(tuner), list(nodes))

    return refuse


@pytest.mark.parametrize("trainable", [Model, function, merged, tune.with_parameters(Model)])
@pytest.mark.parametrize(
    "space",
    [
        GOOD,
        {"rate": tune.grid_search([0.1, 0.2]), "model.width": tune.randint(1, 9)},
        {"learning_rate": 0.1},
        {"learning_rate": 0.1, "layers": [64, 32], "seed": tune.randint(0, 9)},
        {"layers": [tune.choice([1, 2]), tune.choice([3, 4])]},
        {"optimizer": {"lr": tune.sample_from(lambda spec: 0.1)}},
    ],
)
def test_what_works_is_let_through(refuse, trainable, space):
    refuse(trainable, space, reuse_actors=True)


@pytest.mark.parametrize(
    "space, fact, fix",
    [
        ({"learning_rate": [0.1, 0.2]}, "a plain list", "grid_search"),
        ({"optimizer": {"lr": [0.1, 0.2]}}, "'optimizer/lr' is a plain list", "grid_search"),
        (None, "the search space is empty", "param_space="),
    ],
)
def test_a_space_that_is_empty(refuse, space, fact, fix):
    with pytest.raises(LabError) as refused:
        refuse(space=space)
    assert fact in refused.value.fact and fix in refused.value.fix


def test_many_trials_of_one_configuration(refuse):
    with pytest.raises(LabError, match="all 8 trials would be the same"):
        refuse(space={"learning_rate": 0.1}, num_samples=8)


def test_what_brings_its_own_space_is_let_through(refuse):
    refuse(space={}, search_alg=BasicVariantGenerator())


BOTH = tune.PlacementGroupFactory([{"CPU": 2}, {"CPU": 2}])


@pytest.mark.parametrize(
    "asked, nodes, said",
    [
        ({"CPU": 4}, [2.0], "have 2 CPUs:"),
        ({"CPU": 3}, [2.0, 2.0], "have 2, 2 CPUs:"),
        ({"CPU": 1, "GPU": 1}, [2.0], "have 0 GPUs:"),
        (BOTH, [2.0], "4 CPUs each"),
        ({"CPU": 0.5}, [2.0], None),
        (BOTH, [2.0, 2.0], None),
    ],
)
@pytest.mark.parametrize("trainable", [Model, function])
def test_trials_that_fit_nowhere(refuse, trainable, asked, nodes, said):
    trainable, nodes = tune.with_resources(trainable, asked), [{"CPU": cpus} for cpus in nodes]
    if said is None:
        refuse(trainable, nodes=nodes)
        return
    with pytest.raises(LabError, match=f"(?s){said}.*no trial would ever start"):
        refuse(trainable, nodes=nodes)


def test_a_name_that_is_taken(refuse, tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "experiment_state-2026-01-01_00-00-00.json").write_text("{}")
    with pytest.raises(LabError, match="'old'") as refused:
        refuse(name="old")
    assert "Tuner.restore" in refused.value.fix


def test_what_is_no_tuner():
    with pytest.raises(LabError, match="takes a ray.tune.Tuner and got .*TorchTrainer"):
        SweepPanel("night").watch(TorchTrainer)


@pytest.mark.parametrize("state, fine", [("{}", True), ('{"trial_da', False), (None, False)])
def test_a_state_that_was_cut_off_in_mid_writing(tmp_path, state, fine):
    """Tune would start again, silently, with one trial of an empty configuration."""
    folder = tmp_path / "night"
    folder.mkdir()
    (folder / "search_gen_state-2026-01-01_00-00-00.json").write_bytes(pickle.dumps({}))
    if state is not None:
        (folder / "experiment_state-2026-01-01_00-00-00.json").write_text(state)
    run = tune.RunConfig(name="night", storage_path=str(tmp_path))
    plan = TunerPlan(function, {}, tune.TuneConfig(), run, restored=True)
    if fine:
        check_plan(plan)
    else:
        with pytest.raises(LabError, match="missing or cut off"):
            check_plan(plan)


# -- around a sweep ---------------------------------------------------------------------------------
def test_warnings_of_tune_are_heard_and_what_the_panel_shows_is_not(caplog, monkeypatch):
    log = logging.getLogger("ray")
    monkeypatch.setattr(log, "handlers", [caplog.handler])
    monkeypatch.setattr(log, "level", logging.ERROR)  # as `ray.init` of a cluster's handle sets it
    with without_noise():
        assert os.environ["RAY_AIR_NEW_OUTPUT"] == "0"
        logging.getLogger("ray.tune.execution.experiment_state").error("Saving experiment state failed")
        logging.getLogger("ray.tune.execution.insufficient_resources_manager").warning("No trial is running")
        logging.getLogger("ray.tune.execution.tune_controller").error("Trial task failed for trial 3")
        logging.getLogger("ray.tune.tune").error("Trials did not complete: [3]")
        logging.getLogger("ray.tune.tune").info("Total run time: 3 seconds")
    logging.getLogger("ray.tune.tune").warning("after it")
    assert caplog.messages == ["Saving experiment state failed", "No trial is running"]
    assert "RAY_AIR_NEW_OUTPUT" not in os.environ
