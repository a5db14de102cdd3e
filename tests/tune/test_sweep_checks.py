"""What cannot work in a sweep is refused before anything starts, with the fact and the fix."""

from types import SimpleNamespace

import pytest
from ray import tune
from ray.train.torch import TorchTrainer
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.search.basic_variant import BasicVariantGenerator

from labkit.errors import LabError
from labkit.tune import SweepPanel
from labkit.tune.checks import check_plan
from labkit.tune.trials import TunerPlan


class Model(tune.Trainable):
    def step(self):
        return {"accuracy": self.config["rate"]}


def function(config):
    """Reads one name from its defaults, and the searched one as an attribute."""
    config = {"epochs": 2, **config}
    options = SimpleNamespace(**config)
    for _ in range(config["epochs"]):
        tune.report({"accuracy": options.rate})


GOOD = {"rate": tune.loguniform(1e-3, 1)}
BOTH = tune.PlacementGroupFactory([{"CPU": 2}, {"CPU": 2}])


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


@pytest.mark.parametrize("trainable", [Model, function, tune.with_parameters(Model)])
@pytest.mark.parametrize(
    "space",
    [
        GOOD,
        {"rate": tune.grid_search([0.1, 0.2]), "model.width": tune.randint(1, 9)},
        {"rate": 0.1},
        {"rate": 0.1, "layers": [64, 32], "seed": tune.randint(0, 9)},
        {"layers": [tune.choice([1, 2]), tune.choice([3, 4])]},
        {"optimizer": {"lr": tune.sample_from(lambda spec: 0.1)}},
    ],
)
def test_what_works_is_let_through(refuse, trainable, space):
    refuse(trainable, space, reuse_actors=True)


@pytest.mark.parametrize(
    "space, samples, fact, fix",
    [
        ({"optimizer": {"lr": [0.1, 0.2]}}, 1, "'optimizer/lr' is a plain list", "grid_search"),
        (None, 1, "the search space is empty", "param_space="),
        ({"rate": 0.1}, 8, "all 8 trials would be the same", "param_space="),
    ],
)
def test_a_space_in_which_nothing_is_searched(refuse, space, samples, fact, fix):
    with pytest.raises(LabError) as refused:
        refuse(space=space, num_samples=samples)
    assert fact in refused.value.fact and fix in refused.value.fix
    refuse(space={}, search_alg=BasicVariantGenerator())  # which brings its own
    changes = PopulationBasedTraining(hyperparam_mutations={"rate": [1, 2]})
    refuse(space={"rate": 1}, num_samples=4, scheduler=changes)


@pytest.mark.parametrize(
    "asked, nodes, said",
    [
        ({"CPU": 4}, [2.0], "have 2 CPU:"),
        ({"CPU": 3}, [2.0, 2.0], "have 2 and 2 CPU:"),
        ({"CPU": 1, "GPU": 1}, [2.0], "have 0 GPU:"),
        (BOTH, [2.0], "4 CPU each"),
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


def test_a_name_that_is_taken_and_what_is_no_tuner(refuse, tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "experiment_state-2026-01-01_00-00-00.json").write_text("{}")
    with pytest.raises(LabError, match="'old'") as refused:
        refuse(name="old")
    assert "Tuner.restore" in refused.value.fix
    with pytest.raises(LabError, match="takes a ray.tune.Tuner and got .*TorchTrainer"):
        SweepPanel("night").watch(TorchTrainer)
    with pytest.raises(LabError, match="it watches no tuner"), SweepPanel("night"):
        pass
