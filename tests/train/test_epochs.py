"""Epochs of a run on two workers, whatever the loop counts from, how fast it is and what it draws from.

A step comes to the panel by another way than a checkpoint, and faster or slower.
"""

import time

import pytest
import ray.data
import ray.train
import torch
from accelerate import Accelerator
from loops import checkpoint_of, first_epoch, report, trainer_of
from ray.train.torch import prepare_data_loader
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from labkit import runs
from labkit.panel.training_view import shown

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/worker/")]

LAB = {"nodes": 1, "cpus_per_node": 4}
SPEEDS = (0.0, 0.01, 0.1)  # seconds an epoch
ROWS, BATCH = 32, 4
BATCHES = ROWS // BATCH


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.rand(ROWS, 1))


def plain(shard):
    return DataLoader(TensorDataset(torch.rand(ROWS, 1)), BATCH)


def prepared(shard):
    return prepare_data_loader(DataLoader(TensorDataset(torch.rand(2 * ROWS, 1)), BATCH))


def stream(shard):
    return DataLoader(Stream(), BATCH)


def persistent(shard):
    return DataLoader(TensorDataset(torch.rand(ROWS, 1)), BATCH, num_workers=1, persistent_workers=True)


def accelerated(shard):
    return Accelerator(cpu=True).prepare(DataLoader(TensorDataset(torch.rand(2 * ROWS, 1)), BATCH))


def of_ray_data(shard):
    return shard.iter_torch_batches(batch_size=BATCH)


LOADERS = (plain, prepared, stream, persistent, accelerated, of_ray_data)


def loop(config):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    rows = config["make"](ray.train.get_dataset_shard("train"))
    for epoch in range(first_epoch(), config["epochs"]):
        numbers = {"nothing": {}, "from 1": {"epoch": epoch + 1}}.get(config["counts"], {"epoch": epoch})
        for number, batch in enumerate(rows, 1):
            x = batch["item"] if isinstance(batch, dict) else batch[0]
            time.sleep(config["seconds"] / BATCHES)
            loss = (weight * x.float()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if config["counts"] == "fractions" and number % (BATCHES // 2) == 0:
                numbers = {"epoch": epoch + number / BATCHES}
                report({"loss": loss.item(), **numbers}, checkpoint=checkpoint_of(epoch))
            elif config["counts"] == "twice" and number == BATCHES // 2:
                report({"loss": loss.item(), **numbers}, checkpoint=checkpoint_of(epoch))
        if config["counts"] != "fractions":
            report({"loss": loss.item(), **numbers}, checkpoint=checkpoint_of(epoch))


def fit(panel, folder, **config):
    data = {"train": ray.data.from_items([{"item": 1.0}] * 2 * ROWS)}
    run = {"name": "run", "storage_path": str(folder)}
    panel.fit(trainer_of(loop, run=run, options={"datasets": data}, **config))


def check(state, *, places, names, history, made):
    """Compare all that a reader sees of epochs: history, checkpoints, bar, log, and places of the curve."""
    record = runs.latest("run")
    assert [entry["epoch"] for entry in record.history] == history
    assert [entry["epoch"] for entry in state.history] == history
    assert [checkpoint.label for checkpoint in state.checkpoints] == [f"epoch {name}" for name in names]
    assert (record.epochs, state.fraction()) == (made, 1.0)
    state.status = "running"  # as it was drawn last
    live = shown(state, state.ended_at)
    lines = [line.partition(" · ")[0] for key, line in live.news if key[0] == "report"]
    assert lines == [f"epoch {name}/{state.epochs}" for name in names]
    curves = {curve.look: [x for x, _ in curve.points] for curve in live.plot.curves}
    assert curves["main"] == places
    assert all(xs == sorted(xs) for xs in curves.values())


@pytest.mark.parametrize("seconds", SPEEDS)
@pytest.mark.parametrize("make", LOADERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("counts", ["from 0", "from 1", "nothing", "fractions", "twice"])
def test_epochs_are_those_of_the_loop(lab, panel, tmp_path, make, counts, seconds):
    fit(panel, tmp_path, make=make, counts=counts, seconds=seconds)
    expected = {"places": [1, 2, 3], "names": "123", "history": [0, 1, 2]}
    if counts in ("fractions", "twice"):
        expected = {"places": [0.5, 1, 1.5, 2, 2.5, 3], "names": "112233", "history": [0, 0, 1, 1, 2, 2]}
    if counts == "fractions":
        expected |= {"names": ["0.5", "1", "1.5", "2", "2.5", "3"], "history": [0, 0, 0.5, 1, 1.5, 2]}
    check(panel.state, **expected, made=3)


@pytest.mark.parametrize("seconds", SPEEDS)
@pytest.mark.parametrize("make", LOADERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("counts", ["from 0", "from 1", "nothing"])
def test_a_resumed_loop_keeps_its_numbers_and_its_bar(lab, panel, tmp_path, make, counts, seconds):
    for epochs in (2, 4):
        fit(panel, tmp_path, make=make, counts=counts, seconds=seconds, epochs=epochs)
    assert panel.state.note == "went on after epoch 2 of 4"
    check(panel.state, places=[3, 4], names="34", history=[2, 3], made=2)
