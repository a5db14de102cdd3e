"""The exercises of lesson 03b: what is said of a mistake. They run on a cluster."""

import sys

import pytest
import ray.train
import torch
from ray import cloudpickle
from ray.train.torch import prepare_model

from course.exercises import check
from course.models.torch import cnn
from verdicts import cases, solution

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("course/exercises/", "lessons/checks/"),
    pytest.mark.usefixtures("lab"),
]
# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def build():
    return cnn(seed=0)


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def inside(model):
    return getattr(model, "module", model)


def sure(model):
    """Whether the model has learnt that all images are of class 0."""
    return model(torch.ones(1, 28, 28)).softmax(dim=1)[0, 0] > 0.8


def stops(decide, epochs=10, answer=lambda epoch: epoch + 1):
    """A loop that leaves after an epoch for which decide(rank, epoch, model) is true."""

    def train_together(config):
        model = prepare_model(build())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(epochs):
            for _ in range(5):
                step(model, optimizer, torch.ones(4, 28, 28), torch.zeros(4, dtype=torch.int64))
            if decide(ray.train.get_context().get_world_rank(), epoch, inside(model)):
                return answer(epoch)
        return epochs

    return train_together


def rows_of(rank):
    """Images of the two classes that a mean tells apart; other ones on each rank."""
    numbers = torch.Generator().manual_seed(rank)
    labels = torch.arange(32) % 2
    return torch.rand(32, 28, 28, generator=numbers) * (0.2 + 0.8 * labels[:, None, None]), labels


def judged(judge):
    """A loop that trains on its own rows, and stops when judge(rank, plain model, last loss) is true."""

    def train_together(config):
        rank = ray.train.get_context().get_world_rank()
        model = prepare_model(build())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
        x, y = rows_of(rank)
        for epoch in range(10):
            for _ in range(10):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
            if judge(rank, inside(model), loss.item()):
                return epoch + 1
        return 10

    return train_together


def accuracy(model, rows):
    with torch.no_grad():
        return (model(rows[0]).argmax(dim=1) == rows[1]).float().mean().item()


def common(rank, model, loss):
    return accuracy(model, rows_of(2)) > 0.9


def by_its_own_rows(rank, model, loss):
    return accuracy(model, rows_of(rank)) > 0.9


def by_its_own_loss(rank, model, loss):
    return loss < 0.3


def by_the_mean(rank, model, loss):
    total, workers = torch.tensor(accuracy(model, rows_of(rank))), ray.train.get_context().get_world_size()
    if workers > 1:
        torch.distributed.all_reduce(total)
    return total.item() / workers > 0.9


def by_rank_0_of_several(rank, model, loss):
    stop = torch.tensor(float(rank == 0 and common(rank, model, loss)))
    torch.distributed.broadcast(stop, 0)
    return bool(stop)


def by_rank_0(rank, model, loss):
    several = ray.train.get_context().get_world_size() > 1
    return (by_rank_0_of_several if several else common)(rank, model, loss)


ANSWERS = {
    "03-2": [
        (
            [stops(lambda rank, epoch, model: epoch == 2)],
            "stops after 3 epochs of a model that learns nothing",
        ),
        ([stops(lambda rank, epoch, model: False)], "it trains all 10 epochs: stop early"),
        ([stops(lambda rank, epoch, model: False, epochs=9)], "returns 9, and 10 epochs are expected"),
        ([stops(lambda rank, epoch, model: sure(model), answer=lambda epoch: epoch)], "epochs and returns"),
        ([judged(by_rank_0_of_several)], "with `num_workers=0` there is no process group"),
        ([stops(lambda rank, epoch, model: sure(model), answer=lambda epoch: None)], "epochs is expected"),
        ([judged(lambda rank, *given: rank == 0 and common(rank, *given))], "one rank leaves the loop"),
        ([judged(by_its_own_rows)], "was luck"),
        ([judged(by_its_own_loss)], "was luck"),
        ([judged(common)], "solved"),
        ([judged(by_the_mean)], "solved"),
        ([judged(by_rank_0)], "solved"),
    ],
}


@pytest.mark.parametrize(("exercise", "answers", "verdict"), cases(ANSWERS))
def test_what_a_check_says(exercise, answers, verdict):
    assert verdict in repr(check(exercise, *answers))


PLAIN = 'getattr(model, "module", model)'


CHANGED = {
    "03-3": [
        ({}, "solved"),
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


@pytest.mark.parametrize(("exercise", "change", "verdict"), cases(CHANGED))
def test_what_a_check_says_of_a_run(exercise, change, verdict):
    assert verdict in repr(check(exercise, *solution(exercise, change, store=None)))
