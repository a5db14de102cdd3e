"""What a check runs on the cluster: the learner's own errors, and a limit that frees the CPUs again."""

import numpy as np
import pytest
import ray.train
from ray.data import ActorPoolStrategy

from labkit.exercises.answers import NotAttempted, Wrong
from labkit.exercises.running import limited, mapped, run_loop
from labs import _home, idle, lab  # noqa: F401  in the place of the folder of conftest

LAB = {"nodes": 1, "cpus_per_node": 3}
ROWS = [{"x": 1}, {"x": 2}]


@pytest.fixture
def tripled():
    """A class as a notebook has it: pickled with its code, since no process could import it."""

    class Tripled:
        def __call__(self, batch):
            return {"x": batch["x"] * 3}

    return Tripled


def test_a_function_and_a_class_map_batches(lab, tripled):  # noqa: F811
    assert mapped(lambda batch: {"x": batch["x"] * 2}, ROWS, batch_size=1) == [{"x": 2}, {"x": 4}]
    assert mapped(tripled, ROWS, compute=ActorPoolStrategy(size=1)) == [{"x": 3}, {"x": 6}]
    with pytest.raises(Wrong, match="^double raised IndexError: "):

        def double(batch):
            return {"x": np.zeros(1)[3]}

        mapped(double, ROWS)
    with pytest.raises(NotAttempted):
        mapped(lambda batch: ..., ROWS)


def test_a_loop_on_two_workers(lab):  # noqa: F811
    def loop(config):
        if ray.train.get_context().get_world_size() != 2:
            raise ValueError("not two")
        ray.train.report({"rank": ray.train.get_context().get_world_rank()})
        return config["n"]

    result, reports = run_loop(loop, {"n": 7}, num_workers=2)
    assert (result.return_value, reports) == (7, [])
    with pytest.raises(Wrong, match="raised ValueError: not two$"):
        run_loop(loop, {"n": 7}, num_workers=1)


def test_a_rank_that_waits_is_stopped_and_its_cpus_are_free_again(lab, tripled):  # noqa: F811
    def waits(config):
        if ray.train.get_context().get_world_rank() == 0:
            ray.train.report({})

    def runs():
        run_loop(waits, num_workers=2)

    with pytest.raises(Wrong, match="Likely: rank 1 never reports"), limited(12, "rank 1 never reports"):
        runs()
    assert idle(lab)
    assert mapped(tripled(), ROWS[:1]) == [{"x": 3}]  # the next check works
