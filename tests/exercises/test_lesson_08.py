"""The exercises of lesson 08: what is said of a mistake. They run on a cluster."""

import sys
import tempfile

import numpy as np
import pytest
import ray.train
import torch
from ray import cloudpickle

from labkit.exercises import check, registry
from labkit.exercises.answers import Wrong
from labkit.exercises.running import limited
from verdicts import verdicts

lesson_08 = registry.load("08")

pytestmark = pytest.mark.usefixtures("lab")
# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def best_interval(step_seconds, save_seconds, machine_hours, machines):
    return max(1, round((2 * save_seconds * machine_hours * 3600 / machines) ** 0.5 / step_seconds))


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


def saving(wanted, inside=lambda model: model):
    def save_model(model, step):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if wanted(ray.train.get_context().get_world_rank()):
                torch.save(inside(model).state_dict(), f"{folder}/model.pt")
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"step": step}, checkpoint=checkpoint)

    return save_model


def by_all_ranks(decide, operation=torch.distributed.ReduceOp.SUM):
    def good_enough(loss):
        found = torch.tensor(loss)
        torch.distributed.all_reduce(found, op=operation)
        return decide(found.item())

    return good_enough


def test_a_save_that_each_rank_decides_for_itself_is_stopped():
    with pytest.raises(Wrong, match="its own loss"), limited(12, "each asks about its own loss"):
        lesson_08._agree(lambda loss: loss < 0.5)


SAID = {
    "08-1": [
        (complete, loaded(more=1), "leaves out a step"),
        (complete, loaded(optimizers=False), "something that is not in the checkpoint"),
    ],
    "08-2": [
        (by_all_ranks(lambda total: total / 2 < 0.5), "solved"),
        (by_all_ranks(lambda total: total < 0.5), "that is the sum, or the largest"),
        (by_all_ranks(lambda least: least < 0.5, torch.distributed.ReduceOp.MIN), "only rank 0 is below"),
        (lambda loss: False, "in steps 3 and 4"),
    ],
    "08-3": [
        (saving(lambda rank: rank == 0, lambda model: getattr(model, "module", model)), "solved"),
        (saving(lambda rank: rank == 3), "with one worker, no checkpoint"),
        (saving(lambda rank: rank == 0), "with two workers, model.pt has module.weight, module.bias"),
    ],
    "08-4": [
        (best_interval, "solved"),
        (lambda *given: np.int64(best_interval(*given)), "solved"),
        (lambda a, b, c, n: round((2 * b * c * 3600) ** 0.5 / a), "one machine"),
        (lambda a, b, c, n: round((2 * b * c * 3600 / n) ** 0.5), "step_seconds"),
        (lambda a, b, c, n: round((2 * b * c * 3600 / n) ** 0.5 / a), "at least one step"),
        (lambda a, b, c, n: float(best_interval(a, b, c, n)), "an int is expected"),
        (lambda a, b, c, n: round((2 * b * c / n) ** 0.5 / a), "machine_hours is in hours"),
    ],
}


@verdicts(SAID)
def test_what_a_check_says(id, answers, said):
    assert said in repr(check(id, *answers))
