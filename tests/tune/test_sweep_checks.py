"""What cannot work in a sweep is refused before anything starts, with the fact and the fix."""

import pytest
from ray import tune
from ray.train.torch import TorchTrainer
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.search.basic_variant import BasicVariantGenerator

from labkit.errors import LabError
from labkit.tune import SweepPanel
from labkit.tune.trials import TunerPlan


class Model(tune.Trainable):
    def step(self):
        return {"accuracy": self.config["rate"]}


def function(config):
    config = {"epochs": 2, **config}
    for _ in range(config["epochs"]):
        tune.report({"accuracy": config["rate"]})


GOOD = {"rate": tune.loguniform(1e-3, 1)}
BOTH = tune.PlacementGroupFactory([{"CPU": 2}, {"CPU": 2}])
PBT = PopulationBasedTraining(hyperparam_mutations={"rate": [1, 2]})


@pytest.fixture
def check(tmp_path):
    def check(trainable=Model, space=GOOD, *, cpus=(2.0,), name="new", **options):
        tuner = tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(metric="accuracy", mode="max", **options),
            run_config=tune.RunConfig(name=name, storage_path=str(tmp_path)),
        )
        TunerPlan.from_tuner(tuner).check([{"CPU": one} for one in cpus])

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
    ],
)
def test_what_works_is_let_through(check, trainable, space, options):
    check(trainable, space, **options)


def test_a_space_in_which_nothing_is_searched(check):
    for space, said in (
        ({"optimizer": {"lr": [0.1, 0.2]}}, "(?s)'optimizer/lr' is a plain list.*grid_search"),
        (None, "(?s)the search space is empty.*param_space="),
    ):
        with pytest.raises(LabError, match=said):
            check(space=space)


@pytest.mark.parametrize("trainable", [Model, function])
@pytest.mark.parametrize(
    "asked, cpus, said",
    [
        ({"CPU": 3}, [2.0, 2.0], "have 2 and 2 CPU:"),
        ({"CPU": 1, "GPU": 1}, [2.0], "have 0 GPU:"),
        (BOTH, [2.0], "4 CPU each"),
        ({"CPU": 0.5}, [2.0], None),
        (BOTH, [2.0, 2.0], None),
    ],
)
def test_trials_that_fit_nowhere(check, trainable, asked, cpus, said):
    trainable = tune.with_resources(trainable, asked)
    if said is None:
        check(trainable, cpus=cpus)
        return
    with pytest.raises(LabError, match=f"(?s){said}.*no trial would ever start"):
        check(trainable, cpus=cpus)


def test_a_name_that_is_taken_and_what_is_no_tuner(check, tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "experiment_state-2026-01-01_00-00-00.json").write_text("{}")
    with pytest.raises(LabError, match="'old'") as refused:
        check(name="old")
    assert "Tuner.restore" in refused.value.fix
    with pytest.raises(LabError, match="takes a ray.tune.Tuner and got .*TorchTrainer"):
        SweepPanel("night").watch(TorchTrainer)
    with pytest.raises(LabError, match="it watches no tuner"), SweepPanel("night"):
        pass
