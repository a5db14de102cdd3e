"""A training loop that saves checkpoints and resumes: lesson 03b writes this file and explains it."""

import tempfile

import ray.train
import torch
from ray.train.torch import prepare_data_loader, prepare_model
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


def save(model, optimizer, epoch, metrics):
    """Rank 0 writes a checkpoint, and every rank reports."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            weights = getattr(model, "module", model).state_dict()
            state = {"model": weights, "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, f"{folder}/state.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"epoch": epoch, **metrics}, checkpoint=checkpoint)


def resume(model, optimizer):
    """Load the latest checkpoint of this run, if there is one. Returns the epoch to start with."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(f"{folder}/state.pt", weights_only=True)
    getattr(model, "module", model).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


@torch.no_grad()
def accuracy(model, rows):
    """The share of `rows` that the plain `model` gets right, in the mode (train or eval) that it is in."""
    device, right = next(model.parameters()).device, 0
    for x, y in DataLoader(rows, batch_size=256):
        right += (model(x.to(device)).argmax(dim=1).cpu() == y).sum().item()
    return right / len(rows)


def train_loop(config):
    """Train config["make_model"]() on config["train"]. Returns the epoch that it started with."""
    model = prepare_model(config["make_model"]())
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    loader = prepare_data_loader(DataLoader(config["train"], batch_size=config["batch_size"], shuffle=True))
    first = resume(model, optimizer)
    for epoch in range(first, config["epochs"]):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)  # otherwise all epochs have the same order
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = accuracy(getattr(model, "module", model), config["test"])
        save(model, optimizer, epoch, {"loss": loss.item(), "accuracy": right})
    return first
