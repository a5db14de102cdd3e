"""The exercises of lesson 03: what is said of a mistake. They run on a cluster."""

import sys
import tempfile

import pytest
import ray.train
import torch
from ray import cloudpickle
from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

from labkit.exercises import check
from labkit.models.torch import cnn
from verdicts import verdicts

pytestmark = pytest.mark.usefixtures("lab")
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


def part(batch):
    return batch // ray.train.get_context().get_world_size()


def blanks(wrap=prepare_model, size=part, deal=prepare_data_loader, weights=None, saves=(0,)):
    """The loop of exercise 03-1 with these in its blanks."""
    weights = weights or (lambda model: inside(model).state_dict())

    def train_blanks(config):
        model = wrap(build())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in deal(DataLoader(config["rows"], batch_size=size(config["global_batch"]))):
            step(model, optimizer, x, y)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if ray.train.get_context().get_world_rank() in saves:
                torch.save(weights(model), f"{folder}/weights.pt")
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({}, checkpoint=checkpoint)

    return train_blanks


def unfilled(config):
    prepare_model(build())

    ...  # your answer


def measures(count, reduce=True, mean=lambda counts: counts[0] / counts[1]):
    """An answer to 03-5 that adds up what count(model, batches) returns."""

    def accuracy_on_all_ranks(model, batches):
        counts = count(model, batches)
        if reduce:
            torch.distributed.all_reduce(counts)
        return mean(counts).item()

    return accuracy_on_all_ranks


def right(model, x, y):
    return (model(x).argmax(dim=1) == y).sum()


def of_rows(model, batches):
    return torch.tensor([sum(right(model, *batch) for batch in batches), sum(len(y) for _, y in batches)])


def of_this_rank(model, batches):
    hits, rows = of_rows(model, batches)
    return torch.tensor([hits / rows, 1.0])


def of_batches(model, batches):
    return torch.tensor([sum(right(model, x, y) / len(y) for x, y in batches), len(batches)])


def in_each_batch(model, batches):
    counts = torch.zeros(2)
    for x, y in batches:
        one = torch.tensor([right(model, x, y), len(y)])
        torch.distributed.all_reduce(one)
        counts += one
    return (counts[0] / counts[1]).item()


def only_rank_0(model, batches):
    counts = of_rows(model, batches)
    if ray.train.get_context().get_world_rank() == 0:
        torch.distributed.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def four(batch_size=32, steps=390, lr=0.05):
    return {"batch_size": batch_size, "steps per epoch": steps, "lr": lr}


SAME, SCALED = four(), four(128, 97, 0.2)


SAID = {
    "03-1": [
        (blanks(), "solved"),
        (blanks(wrap=lambda model: model), "gradients were not averaged"),
        (blanks(deal=lambda loader: loader), "all rows instead of its own part"),
        (blanks(size=lambda batch: batch), "twice the global batch"),
        (blanks(saves=()), "no report came with a checkpoint"),
        (blanks(saves=(0, 1)), "both attach a checkpoint: only rank 0 should"),
        (blanks(weights=lambda model: model.module.state_dict()), "there is no wrapper"),
        (blanks(weights=lambda model: model.state_dict()), "weights of the wrapper"),
        (blanks(weights=inside), "has the model itself"),
        (unfilled, "not attempted"),
    ],
    "03-4": [
        (SAME, SCALED, "solved"),
        (four(steps=...), SCALED, "not attempted"),
        (four(batch_size=128), SCALED, "512 images in an update"),
        (four(steps=1562), SCALED, "not only those of one"),
        (four(lr=0.2), SCALED, "hasn't grown"),
        (SAME, four(128, 390, 0.2), "with a global batch of 128"),
        (SAME, four(128, 97, 0.05), "can be bolder"),
        (SAME, four(128, 97, 0.1), "square root"),
    ],
    "03-5": [
        (measures(of_rows), "solved"),
        (measures(of_rows, reduce=False), "its own rows only"),
        (measures(of_this_rank), "mean of means"),
        (measures(of_batches), "mean of means"),
        (measures(of_this_rank, mean=lambda counts: counts[0]), "sum of the ranks"),
        (measures(of_rows, mean=lambda counts: counts[0]), "the number of right answers"),
        (measures(of_rows, mean=lambda counts: 100 * counts[0] / counts[1]), "in percent"),
        (in_each_batch, "does each of them call all_reduce"),
        (only_rank_0, "does each of them call all_reduce"),
        (lambda model, batches: "half", "a number is expected"),
    ],
}


@verdicts(SAID)
def test_what_a_check_says(id, answers, said):
    assert said in repr(check(id, *answers))
