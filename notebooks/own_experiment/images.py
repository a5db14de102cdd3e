# %% [markdown]
# # Images of your own
# Copy this file and change it; README.md, in the same folder, explains each part.
# `python images.py` trains on handwritten digits, and `python images.py photos` on yours.
# JupyterLab and VS Code open this file as a notebook, too.

# %%
import argparse
import sys
import tempfile
from pathlib import Path

import ray.train
import torch
from PIL import Image
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from labkit import cluster, datasets, runs, storage
from labkit.settings import Settings
from labkit.train import TrainPanel

NAME = "images"
CONFIG = {"epochs": 8, "batch_size": 64, "lr": 0.005, "width": 16, "seed": 0}
parser = argparse.ArgumentParser()
parser.add_argument("path", nargs="?", help="your data; without it, digits that ship with the lab")
parser.add_argument("--seed", type=int, default=CONFIG["seed"], help="of the weights and the validation rows")
parser.add_argument("--resume", action="store_true", help="continue the last run after its latest checkpoint")
given = parser.parse_args([] if "ipykernel" in sys.modules else None)  # in a notebook: ["photos"]
last = runs.latest(NAME, state=None) if given.resume else None
CONFIG["seed"] = last.config["seed"] if last else given.seed  # else other rows would be for validation


# %%
def load_data():  # a row of x is an image, y the number of its class: the folder that it was in
    with tempfile.TemporaryDirectory() as made:
        digits = datasets.load("digits") if given.path is None else []
        for number in range(len(digits)):
            folder = Path(made, "digits", str(digits.labels[number]))
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(digits.images[number]).save(folder / f"{number}.png")
        return datasets.from_folder(given.path or f"{made}/digits", size=(28, 28))


data, split = load_data(), torch.Generator().manual_seed(CONFIG["seed"])
train, test = (TensorDataset(*map(torch.tensor, data.load(part))) for part in ("train", "test"))
train, valid = random_split(train, [0.8, 0.2], split)  # the validation rows choose the checkpoint


# %%
class Network(nn.Module):
    def __init__(self, x, classes, width):
        super().__init__()
        layers = [nn.Conv2d(3 if x.ndim == 4 else 1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(4)]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * width, classes))

    def forward(self, x):  # bytes become numbers from 0 to 1, with the colours first
        x = x.float() / 255
        return self.layers(x.permute(0, 3, 1, 2) if x.ndim == 4 else x.unsqueeze(1))


@torch.no_grad()
def measure(model, rows):
    model.eval()
    device = next(model.parameters()).device
    right = [model(x.to(device)).argmax(dim=1).cpu() == y for x, y in DataLoader(rows, batch_size=256)]
    return {"accuracy": torch.cat(right).float().mean().item()}


# %%
def train_loop(config):
    rank, world = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    plain = config["model"]
    model = prepare_model(plain)  # with several workers, DDP's wrapper around plain
    optimizer, first = torch.optim.Adam(model.parameters(), lr=config["lr"]), 0
    if checkpoint := ray.train.get_checkpoint():  # after a failure, and with --resume
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt", map_location="cpu", weights_only=True)
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    # Each worker gets its part of the rows, and its part of each batch.
    loader = prepare_data_loader(DataLoader(config["train"], config["batch_size"] // world, shuffle=True))
    for epoch in range(first, config["epochs"]):
        model.train()
        if world > 1:
            loader.sampler.set_epoch(epoch)  # else each epoch has the same order
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        metrics, checkpoint = {"epoch": epoch}, None
        with tempfile.TemporaryDirectory() as folder:
            if rank == 0:
                metrics |= measure(plain, config["valid"])
                state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, f"{folder}/state.pt")
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint)  # every rank calls it and waits for the others


# %%
settings, lab, store = Settings.from_env(), cluster.start(), storage.start()
torch.manual_seed(CONFIG["seed"])
model = Network(data.x, len(data.classes), CONFIG["width"])
trainer = TorchTrainer(
    train_loop,
    train_loop_config=CONFIG | {"model": model, "train": train, "valid": valid},
    scaling_config=ScalingConfig(num_workers=settings.num_workers, use_gpu=settings.use_gpu),
    run_config=RunConfig(
        # Ray continues the run that had this name. Without a name, the panel finds a new one.
        name=last.storage_path.rpartition("/")[2] if last else None,
        storage_path=store.storage_path("runs", NAME),
        storage_filesystem=store.filesystem,
        checkpoint_config=CheckpointConfig(1, "accuracy", checkpoint_score_order="max"),
        failure_config=FailureConfig(max_failures=1),
    ),
)
with TrainPanel(NAME, dataset=data).watch(trainer) as panel:
    result = trainer.fit()

# %%
# The test rows are used once, for the model that the validation rows have chosen.
with result.get_best_checkpoint("accuracy", "max").as_directory() as folder:
    model.load_state_dict(torch.load(f"{folder}/state.pt", map_location="cpu", weights_only=True)["model"])
found = ", ".join(f"{name} {value:.4g}" for name, value in measure(model, test).items())
print(f"on {len(test)} test rows: {found}")
runs.note(panel.run_id, f"test: {found}")
print(runs.table(name=NAME, columns=["started", "state", "lr", "width", "seed", "accuracy", "note"]))

# %%
store.stop()
lab.stop()
