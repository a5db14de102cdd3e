"""What cannot work in a sweep is refused before anything starts, with the fact and the fix."""

import logging
import os
import pickle

import pytest
from ray import tune
from ray.train.torch import TorchTrainer
from ray.tune.search.basic_variant import BasicVariantGenerator

from labkit.errors import RunError
from labkit.panel.reporters import NullReporter
from labkit.tune.checks import check_plan
from labkit.tune.panel import SweepPanel
from labkit.tune.trials import TunerPlan, without_noise


class Model(tune.Trainable):
    """Reads two parameters, one of them with a default."""

    def setup(self, config):
        self.lr, self.momentum = config["learning_rate"], config.get("momentum", 0.9)

    def step(self):
        return {"accuracy": self.lr}

    def reset_config(self, config):
        self.setup(config)
        return True


class Forgetful(Model):
    def reset_config(self, config):
        self.setup(config)


class Fixed(Model):
    reset_config = tune.Trainable.reset_config


def function(config):
    tune.report({"accuracy": config["learning_rate"] * config.get("momentum", 1)})


def whole(config):
    tune.report({"accuracy": len(dict(**config))})


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


@pytest.mark.parametrize("trainable", [Model, function, whole, tune.with_parameters(Model)])
@pytest.mark.parametrize(
    "space",
    [
        GOOD,
        {"learning_rate": tune.grid_search([0.1, 0.2]), "momentum": tune.uniform(0, 1)},
        {"learning_rate": 0.1},
        {"learning_rate": 0.1, "seed": tune.randint(0, 9), "note": "never read"},
    ],
)
def test_what_works_is_let_through(refuse, trainable, space):
    refuse(trainable, space, reuse_actors=True)


@pytest.mark.parametrize(
    "space, fact, fix",
    [
        ({"learning_rte": tune.uniform(0, 1)}, "reads 'learning_rate'", "rename"),
        ({"learning_rate": 0.1, "momentun": tune.uniform(0, 1)}, "there reads 'momentun'", "'momentum'"),
        ({"lr": tune.grid_search([1, 2])}, "nothing there reads 'lr'", "'learning_rate'"),
        ({"learning_rate": [0.1, 0.2]}, "a plain list", "grid_search"),
        (None, "the search space is empty", "param_space="),
    ],
)  # fmt: skip
@pytest.mark.parametrize("trainable", [Model, function, tune.with_parameters(function)])
def test_a_space_that_is_empty_or_misspelt(refuse, trainable, space, fact, fix):
    with pytest.raises(RunError) as refused:
        refuse(trainable, space)
    assert fact in refused.value.fact and fix in refused.value.fix


def test_many_trials_of_one_configuration(refuse):
    with pytest.raises(RunError, match="all 8 trials would be the same"):
        refuse(space={"learning_rate": 0.1}, num_samples=8)


def test_what_brings_its_own_space_or_has_no_source_is_let_through(refuse):
    refuse(space={}, search_alg=BasicVariantGenerator())
    made = {}
    exec("def trainable(config): return config['learning_rate']", made)
    refuse(made["trainable"], {"lr": tune.uniform(0, 1)})


def test_actors_that_cannot_be_reused(refuse):
    with pytest.raises(RunError, match="it has no reset_config"):
        refuse(Fixed, reuse_actors=True)
    with pytest.raises(RunError, match="its reset_config returns None"):
        refuse(Forgetful, reuse_actors=True)
    refuse(Fixed, reuse_actors=False)
    refuse(function, reuse_actors=True)


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
    with pytest.raises(RunError, match=f"(?s){said}.*no trial would ever start"):
        refuse(trainable, nodes=nodes)


def test_a_name_that_is_taken(refuse, tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "experiment_state-2026-01-01_00-00-00.json").write_text("{}")
    with pytest.raises(RunError, match="'old'") as refused:
        refuse(name="old")
    assert "Tuner.restore" in refused.value.fix


def test_what_is_no_tuner():
    with pytest.raises(RunError, match="takes a ray.tune.Tuner and got .*TorchTrainer"):
        SweepPanel("night").watch(TorchTrainer)


@pytest.mark.parametrize("renamed", ["_local_tuner", "_tune_config"])
def test_a_ray_that_keeps_what_a_tuner_was_given_elsewhere(tmp_path, renamed):
    tuner = tune.Tuner(function, run_config=tune.RunConfig(name="new", storage_path=str(tmp_path)))
    delattr(tuner if renamed == "_local_tuner" else tuner._local_tuner, renamed)
    panel = SweepPanel("night", reporter=NullReporter())
    with pytest.warns(UserWarning, match="followed, but not checked"):
        panel.watch(tuner)
    with panel:
        pass
    assert panel.state.status == "finished"


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
        with pytest.raises(RunError, match="missing or cut off"):
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
