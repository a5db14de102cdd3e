"""Epochs of a run on two workers, whatever the loop counts from, how fast it is and what it draws from.

A step comes to the panel by another way than a checkpoint, and faster or slower. `RUNS=20` runs each
loop twenty times.
"""

import os
import tempfile
import time
from pathlib import Path

import pytest
import ray.data
import ray.train
import torch
from accelerate import Accelerator
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from labkit import runs
from labkit.panel.drawing import snapshot
from labkit.panel.reporters import NullReporter
from labkit.panel.training_view import shown
from labkit.train import TrainPanel

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/worker/")]


LAB = {"nodes": 1, "cpus_per_node": 4}
RUNS = int(os.environ.get("RUNS", "3"))
SPEEDS = (0.0, 0.01, 0.1)  # seconds an epoch, in turns
ROWS, BATCH = 32, 4


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


def done_before():
    """How many epochs the checkpoint has from which Ray resumes this loop."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        return int(Path(folder, "done").read_text())


def report(loss, done, **metrics):
    checkpoint = None
    if ray.train.get_context().get_world_rank() == 0:
        folder = tempfile.mkdtemp()
        Path(folder, "done").write_text(str(int(done)))
        checkpoint = ray.train.Checkpoint.from_directory(folder)
    ray.train.report({"loss": loss, **metrics}, checkpoint=checkpoint)


def loop(config):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    shard = ray.train.get_dataset_shard("train") if config["make"] is of_ray_data else None
    rows, batches = config["make"](shard), ROWS // BATCH
    for epoch in range(done_before(), config["epochs"]):
        for number, batch in enumerate(rows, 1):
            x = batch["item"] if isinstance(batch, dict) else batch[0]
            time.sleep(config["seconds"] / batches)
            loss = (weight * x.float()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if config["counts"] == "fractions" and number % (batches // 2) == 0:
                report(loss.item(), epoch + 1, epoch=epoch + number / batches)
            elif config["counts"] == "twice" and number == batches // 2:
                report(loss.item(), epoch + 1, epoch=epoch)
        if config["counts"] == "nothing":
            report(loss.item(), epoch + 1)
        elif config["counts"] != "fractions":
            report(loss.item(), epoch + 1, epoch=epoch + (config["counts"] == "from 1"))


def followed(home, name, make, counts, seconds, epochs):
    """The state of a run and its record."""
    data = {"train": ray.data.from_items([{"item": 1.0}] * 2 * ROWS)} if make is of_ray_data else None
    config = {"make": make, "counts": counts, "seconds": seconds, "epochs": epochs}
    panel = TrainPanel(name, reporter=NullReporter())
    panel.fit(
        TorchTrainer(
            loop,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(name=name, storage_path=str(home / "runs")),
            datasets=data,
        )
    )
    return panel.state, runs.latest(name)


def seen_of(state, record):
    """All that a reader sees of epochs: history, checkpoints, log, bar, and the places of the curve."""
    state.status = "running"  # as it was drawn last
    live = shown(state, state.ended_at)
    lines = [line.partition(" · ")[0] for key, line in live.news if key[0] == "report"]
    drawn = snapshot(state, live, state.ended_at)
    state.status = "finished"
    curves = {curve.look: [x for x, _ in curve.points] for curve in live.plot.curves}
    assert drawn.html and all(xs == sorted(xs) for xs in curves.values())
    assert [entry["epoch"] for entry in record.history] == [entry["epoch"] for entry in state.history]
    labels = [checkpoint.label for checkpoint in state.checkpoints]
    history = [entry["epoch"] for entry in state.history]
    return history, labels, lines, curves["main"], record.epochs, state.fraction()


def expected(places, epochs, *, before=0, whole=True):
    """The same for reports at these places of the axis, of so many epochs."""
    names = [f"{-(-place // 1) if whole else place:g}" for place in places]
    history = [max(-(-place // 1) - 1, 0) if whole else max(place - 1, 0) for place in places]
    labels, lines = [f"epoch {name}" for name in names], [f"epoch {name}/{epochs}" for name in names]
    return history, labels, lines, list(places), epochs - before, 1.0


@pytest.mark.parametrize("make", LOADERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("counts", ["from 0", "from 1", "nothing", "fractions", "twice"])
def test_epochs_are_those_of_the_loop(lab, home, make, counts):
    halves = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    places = halves if counts in ("fractions", "twice") else (1.0, 2.0, 3.0)
    wrong = []
    for number in range(RUNS):
        seconds = SPEEDS[number % len(SPEEDS)]
        name = f"{make.__name__}-{counts.replace(' ', '-')}-{number}"
        seen = seen_of(*followed(home, name, make, counts, seconds, 3))
        if seen != expected(places, 3, whole=counts != "fractions"):
            wrong.append((seconds, seen))
    print(f"{make.__name__}, {counts}: {len(wrong)} wrong of {RUNS}")
    assert wrong == []


@pytest.mark.parametrize("make", LOADERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("counts", ["from 0", "from 1", "nothing"])
def test_a_resumed_loop_keeps_its_numbers_and_its_bar(lab, home, make, counts):
    wrong = []
    for number in range(RUNS):
        seconds = SPEEDS[number % len(SPEEDS)]
        name = f"{make.__name__}-{counts.replace(' ', '-')}-resumed-{number}"
        followed(home, name, make, counts, seconds, 2)
        state, record = followed(home, name, make, counts, seconds, 4)
        seen = seen_of(state, record)
        if seen != expected((3.0, 4.0), 4, before=2) or state.note != "went on after epoch 2 of 4":
            wrong.append((seconds, seen, state.note))
    print(f"{make.__name__}, resumed {counts}: {len(wrong)} wrong of {RUNS}")
    assert wrong == []
