"""What a check runs on the cluster: loops, batches, sweeps and tasks; and a limit that frees the CPUs."""

import pytest
import ray.train
from ray import tune
from ray.data import ActorPoolStrategy

from labkit.exercises import registry
from labkit.exercises.answers import NotAttempted, Wrong
from labkit.exercises.running import limited, run_loop
from labs import idle

mapped, in_a_task = registry.load("02").mapped, registry.load("06").in_a_task
run_tuner = registry.load("05").run_tuner
ROWS = [{"x": 1}, {"x": 2}]


@pytest.fixture
def tripled():
    """A class as a notebook has it: pickled with its code, since no process could import it."""

    class Tripled:
        def __call__(self, batch):
            return {"x": batch["x"] * 3}

    return Tripled


def test_a_function_and_a_class_map_batches(lab, tripled):
    assert mapped(lambda batch: {"x": batch["x"] * 2}, ROWS, batch_size=1) == [{"x": 2}, {"x": 4}]
    assert mapped(tripled, ROWS, compute=ActorPoolStrategy(size=1)) == [{"x": 3}, {"x": 6}]
    with pytest.raises(NotAttempted):
        mapped(lambda batch: ..., ROWS)


def test_a_loop_on_two_workers(lab):
    def loop(config):
        if ray.train.get_context().get_world_size() != 2:
            raise ValueError("not two")
        ray.train.report({"rank": ray.train.get_context().get_world_rank()})
        return config["n"]

    result, reports = run_loop(loop, {"n": 7}, num_workers=2)
    assert (result.return_value, reports) == (7, [])
    with pytest.raises(Wrong, match="raised ValueError: not two$"):
        run_loop(loop, {"n": 7}, num_workers=1)


def test_a_rank_that_waits_is_stopped_and_its_cpus_are_free_again(lab, tripled):
    def waits(config):
        if ray.train.get_context().get_world_rank() == 0:
            ray.train.report({})

    with pytest.raises(Wrong, match="Likely: rank 1 never reports"), limited(12, "rank 1 never reports"):
        run_loop(waits, num_workers=2)
    assert idle(lab)
    assert mapped(tripled(), ROWS[:1]) == [{"x": 3}]  # the next check works


def make(trainable, space, tmp_path, **options):
    run, config = tune.RunConfig(storage_path=str(tmp_path)), tune.TuneConfig(**options)
    return tune.Tuner(trainable, param_space=space, tune_config=config, run_config=run)


GRID = {"lr": tune.grid_search([0.1, 0.5])}


def test_a_sweep_that_cannot_work_or_is_unfinished(lab, tmp_path):
    trainable = tune.with_resources(lambda config: {"loss": config["lr"]}, {"CPU": 640})
    with pytest.raises(Wrong, match="no trial would ever start"):
        run_tuner(make(trainable, GRID, tmp_path), "it")
    with pytest.raises(NotAttempted):
        run_tuner(make(lambda config: tune.report({"loss": ... + config["lr"]}), GRID, tmp_path), "it")


def test_a_function_runs_in_a_task(lab):
    data = bytes(2_000_000)

    def fails():
        raise KeyError("label")

    assert in_a_task(lambda x: x + 1, 1, name="f") == 2
    for function, said in ((fails, "f raised KeyError"), (lambda: len(data), "2.0 MB"), (7, "a function")):
        with pytest.raises(Wrong, match=said):
            in_a_task(function, name="f")
