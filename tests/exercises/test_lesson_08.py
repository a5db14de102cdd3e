"""The exercises of lesson 08: what is right, and what a check says of a mistake. They run on a cluster."""

import sys
import tempfile

import pytest
import ray.train
import torch
from ray import cloudpickle

from labkit.exercises import check, lesson_08
from labkit.exercises.answers import Wrong
from labkit.exercises.running import limited
from labs import _home, lab  # noqa: F401  in the place of the folder of conftest

pytestmark = pytest.mark.usefixtures("lab")
# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
LAB = {"nodes": 1, "cpus_per_node": 2}


def best_interval(step_seconds, save_seconds, machine_hours, machines):
    return max(1, round((2 * save_seconds * machine_hours * 3600 / machines) ** 0.5 / step_seconds))


def test_the_interval():
    lesson_08._interval(best_interval)


@pytest.mark.parametrize(
    "wrong, said",
    [
        (lambda a, b, c, n: round((2 * b * c * 3600) ** 0.5 / a), "one machine"),
        (lambda a, b, c, n: round((2 * b * c * 3600 / n) ** 0.5), "step_seconds"),
        (lambda a, b, c, n: round((2 * b * c * 3600 / n) ** 0.5 / a), "at least one step"),
        (lambda a, b, c, n: float(best_interval(a, b, c, n)), "whole number"),
        (lambda a, b, c, n: round((2 * b * c / n) ** 0.5 / a), "machine_hours is in hours"),
        (lambda a, b, c, n: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_wrong_intervals(wrong, said):
    with pytest.raises(Wrong, match=said):
        lesson_08._interval(wrong)


def complete(model, optimizer, step, folder):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, f"{folder}/state.pt")


def loaded(optimizers=True, more=0):
    def load_state(model, optimizer, folder):
        state = torch.load(f"{folder}/state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        if optimizers:
            optimizer.load_state_dict(state["optimizer"])
        return state["step"] + more

    return load_state


@pytest.mark.parametrize(
    "load_state, said",
    [
        (loaded(), "solved"),
        (loaded(more=1), "leaves out a step"),
        (loaded(optimizers=False), "something that is not in the checkpoint"),
    ],
)
def test_what_was_forgotten(load_state, said):
    assert said in repr(check("08-1", complete, load_state))


def saving(wanted):
    def save_model(model, step):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if wanted(ray.train.get_context().get_world_rank()):
                torch.save(model.state_dict(), f"{folder}/model.pt")
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"step": step}, checkpoint=checkpoint)

    return save_model


@pytest.mark.parametrize(
    "wanted, said",
    [
        (lambda rank: rank == 0, "solved"),
        (lambda rank: rank == 3, "with one worker, no checkpoint"),
        (lambda rank: rank == 1, "with one worker, no checkpoint"),
        (lambda rank: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_the_rank_that_saves(wanted, said):
    assert said in repr(check("08-3", saving(wanted)))


@pytest.mark.parametrize(
    "sees_notice, said",
    [
        (lambda step: step % 5 == 0 and ray.train.get_preemption_info() is not None, "solved"),
        (lambda step: False, "no rank saved"),
        (lambda step: step % 5 == 0, "it saves at step 5"),
    ],
)
def test_the_notice(sees_notice, said):
    assert said in repr(check("08-2", sees_notice))


def test_a_notice_that_only_one_rank_asks_for_is_stopped():
    def sees_notice(step):
        return ray.train.get_context().get_world_rank() == 0 and ray.train.get_preemption_info() is not None

    with pytest.raises(Wrong, match="is a barrier"), limited(12, "that is a barrier"):
        lesson_08._all_ask(sees_notice)
