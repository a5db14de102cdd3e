"""Notes on workers that train alone with accelerate, and on what Ray drops of a loader that it prepares."""

import os
import re
import sys
import types

import pytest
import ray.train
import torch
from loops import rank, trainer_of
from ray.train.torch import prepare_data_loader
from torch import distributed
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from labkit.worker.calls import calls_to
from labs import shown

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/worker/")]

LAB = {"nodes": 1, "cpus_per_node": 4}
DATA = TensorDataset(torch.rand(64, 4), torch.rand(64, 1))


def by_accelerate(config):
    """Returns the weights of both ranks."""
    if config["variable"]:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    from accelerate import Accelerator

    accelerator = Accelerator(**config["accelerator"])
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    torch.manual_seed(rank())  # each rank shuffles its own way
    parts = model, optimizer, DataLoader(DATA, batch_size=8, shuffle=True)
    model, optimizer, rows = accelerator.prepare(*parts)
    for epoch in range(2):
        for x, y in rows:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        ray.train.report({"loss": loss.item(), "epoch": epoch})
    weights = [None, None]
    distributed.all_gather_object(weights, [part.tolist() for part in model.parameters()])
    return weights


@pytest.mark.parametrize("options, variable", [({}, False), ({"cpu": True}, False), ({}, True)])
def test_ranks_that_train_alone_are_told_and_each_fix_works(lab, panel, options, variable):
    trainer = trainer_of(by_accelerate, accelerator=options, variable=variable)
    first, second = panel.fit(trainer).return_value
    notes = shown(panel).notes
    if options or variable:
        assert first == second and notes == []
        return
    assert first != second
    (note,) = notes
    assert "each of the 2 workers trains a model of its own" in note
    assert "Accelerator(cpu=True)" in note and 'os.environ["ACCELERATE_USE_CPU"] = ' in note


# -- what `prepare_data_loader` changes -----------------------------------------------------------------


class Stateful(DataLoader):
    """A loader that remembers where it is."""


ROWS = TensorDataset(torch.rand(64))
BATCHES = BatchSampler(SequentialSampler(ROWS), 8, False)
CHANGED = [
    (DataLoader(ROWS, sampler=WeightedRandomSampler([1.0] * 64, 64)), "replaces WeightedRandomSampler"),
    (DataLoader(ROWS, sampler=SubsetRandomSampler(range(32))), r"over all 64 rows.*Subset\("),
    (DataLoader(ROWS, sampler=RandomSampler(ROWS, replacement=True)), "replaces RandomSampler"),
    (DataLoader(ROWS, batch_sampler=BATCHES), "single rows without a batch dimension"),
    (Stateful(ROWS), "makes a plain DataLoader of your Stateful"),
    (
        DataLoader(ROWS, num_workers=1, persistent_workers=True, prefetch_factor=4),
        "drops persistent_workers=True and prefetch_factor=4",
    ),
]
KEPT = [
    DataLoader(ROWS, shuffle=True),
    DataLoader(ROWS),
    DataLoader(ROWS, sampler=DistributedSampler(ROWS, num_replicas=2, rank=0)),
]


def prepares(config):
    for loader in KEPT:
        prepare_data_loader(loader)
    prepare_data_loader(DataLoader(ROWS, batch_sampler=BATCHES), add_dist_sampler=False)
    for loader, _ in CHANGED:
        prepare_data_loader(loader)


def test_what_ray_changes_in_a_loader_is_told(lab, panel):
    panel.fit(trainer_of(prepares))
    notes = shown(panel).notes
    assert len(notes) == len(CHANGED)
    for note, (_, words) in zip(notes, CHANGED, strict=True):
        assert re.search(words, note)


def test_a_file_that_has_imported_the_function_calls_the_replacement(monkeypatch):
    original, file = prepare_data_loader, types.ModuleType("makes_loaders")
    file.prepare_data_loader = original
    monkeypatch.setitem(sys.modules, "makes_loaders", file)
    with calls_to(prepares, "ray.train.torch", "prepare_data_loader", print):
        assert file.prepare_data_loader is print
    assert file.prepare_data_loader is original
