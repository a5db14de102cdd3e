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


def save_state(model, optimizer, scheduler, step, folder):
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save(state | {"step": step}, f"{folder}/state.pt")


def loaded(*names, more=0):
    """A `load_state` that forgets these parts."""

    def load_state(model, optimizer, scheduler, folder):
        state = torch.load(f"{folder}/state.pt", weights_only=True)
        for name, part in {"model": model, "optimizer": optimizer, "scheduler": scheduler}.items():
            if name not in names:
                part.load_state_dict(state[name])
        return state["step"] + more

    return load_state


def seeded(step, rank):
    torch.manual_seed(1000 * step + rank)


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
        (save_state, loaded(), seeded, "solved"),
        (save_state, loaded(more=1), seeded, "leaves out a step"),
        (save_state, lambda *parts: 0, seeded, "starts from scratch"),
        (save_state, loaded("optimizer"), seeded, "has no momentum"),
        (save_state, loaded("scheduler"), seeded, "0.045 instead of 0.0266"),
        (save_state, loaded("model"), seeded, "were they loaded?"),
        (save_state, loaded(), lambda step, rank: 0, "depend on more than the step"),
        (save_state, loaded(), lambda step, rank: torch.manual_seed(step), "use the rank"),
        (save_state, loaded(), lambda step, rank: torch.manual_seed(rank), "use the step"),
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
