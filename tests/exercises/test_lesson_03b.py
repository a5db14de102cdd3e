"""The exercises of lesson 03b: what is said of a mistake. They run on a cluster."""

import sys

import pytest
import ray.train
import torch
from ray import cloudpickle
from torch.utils.data import TensorDataset

from course.models.torch import cnn
from verdicts import checks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("course/exercises/", "lessons/checks/"),
    pytest.mark.usefixtures("lab"),
]
# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def rows(seed, count):
    """Images of two classes that a mean tells apart; each of two ranks gets as many of both."""
    numbers = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) // 2 % 2
    brightness = 0.2 + 0.8 * labels[:, None, None]
    return TensorDataset(torch.rand(count, 28, 28, generator=numbers) * brightness, labels)


def mean(value):
    """The mean over all ranks."""
    total, workers = torch.tensor(value), ray.train.get_context().get_world_size()
    if workers > 1:
        torch.distributed.all_reduce(total)
    return total.item() / workers


GIVEN = {"make_model": lambda: cnn(seed=0), "train": rows(0, 1280), "test": rows(1, 64), "mean": mean}
ACCURACY = 'my_loop.accuracy(getattr(model, "module", model), test)'
ENOUGH = f"{ACCURACY} > 0.8"
OF_OWN_BATCH = ACCURACY.replace("test", "torch.utils.data.TensorDataset(x, y)")
RANK = "ray.train.get_context().get_world_rank()"
BROADCAST = f"torch.distributed.broadcast(right := torch.tensor({ACCURACY}), 0) or right > 0.8"
PLAIN = 'getattr(model, "module", model)'


ANSWERS = {
    "03-2": [
        ({ENOUGH: "epoch == 2"}, "stops after 3 epochs of a model that learns nothing"),
        ({ENOUGH: "False"}, "it trains all 10 epochs: stop early"),
        ({ENOUGH: "False", "10": "9"}, "returns 9, and 10 epochs are expected"),
        ({"return epoch + 1": "return epoch"}, "epochs and returns"),
        ({"return epoch + 1": "return None"}, "epochs is expected"),
        ({ENOUGH: BROADCAST}, "with `num_workers=0` there is no process group"),
        ({ENOUGH: f"{RANK} == 0 and {ENOUGH}"}, "one rank leaves the loop"),
        ({ENOUGH: f"{OF_OWN_BATCH} > 0.8"}, "was luck"),
        ({ENOUGH: "loss < 0.3"}, "was luck"),
        ({ENOUGH: f"mean({OF_OWN_BATCH}) > 0.8"}, "solved"),
    ],
    "03-3": [
        ({"return 0": "return 1"}, "counted from 0"),
        ({'return state["epoch"] + 1': 'return state["epoch"]'}, "trained twice"),
        ({f'    {PLAIN}.load_state_dict(state["model"])\n': ""}, "the weights of the checkpoint"),
        ({'    optimizer.load_state_dict(state["optimizer"])\n': ""}, "momentum is lost"),
        ({'    scheduler.load_state_dict(state["scheduler"])\n': ""}, "the learning rate starts"),
        ({PLAIN: "model.module"}, "with one worker there is no wrapper"),
        ({PLAIN: "model"}, "is the wrapper; load into the model inside it"),
        ({"checkpoint is None": "True"}, "starts from scratch"),
        ({"    if checkpoint is None:\n        return 0\n": ""}, "a new run has no checkpoint"),
    ],
}


test_what_a_check_says = checks(ANSWERS, store=None, **GIVEN)
