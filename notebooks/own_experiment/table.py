# %% [markdown]
# # A table of your own
# Copy this file and change it; README.md, in the same folder, explains each part.
# `python table.py` trains on a small table that it makes, and `python table.py flats.csv` on yours.
# JupyterLab and VS Code open this file as a notebook, too.

# %%
import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas
import ray.train
import torch
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from labkit import runs
from labkit.local import cluster, storage
from labkit.settings import Settings
from labkit.train import TrainPanel

NAME = "table"
CONFIG = {"epochs": 10, "batch_size": 32, "lr": 0.02, "width": 32, "seed": 0}
parser = argparse.ArgumentParser()
parser.add_argument("path", nargs="?", help="your data; without it, a small table is made")
parser.add_argument("--seed", type=int, default=CONFIG["seed"], help="of the weights and the validation rows")
parser.add_argument("--resume", action="store_true", help="continue the last run after its latest checkpoint")
given = parser.parse_args([] if "ipykernel" in sys.modules else None)  # in a notebook: ["flats.csv"]
last = runs.latest(NAME, state=None) if given.resume else None
CONFIG["seed"] = last.config["seed"] if last else given.seed  # else other rows would be for validation


# %% [markdown]
# ## Read the table
# pandas guesses the type of a column, and some guesses go wrong in silence: the texts `NA` and `None`
# become empty cells, the code `007` becomes the number 7, and a single `n/a` turns a column of numbers into
# texts.
# So name the columns of texts: `categories` for those that the model gets, `drop` for those that it
# doesn't. Their cells stay unchanged. Every other column must have a number in every row.
# Read what the function prints: a code that is listed as numbers belongs in `categories`, and letters such
# as Ã mean that the encoding is wrong. Excel may need `encoding="cp1252", sep=";", decimal=","`, which
# `pandas.read_csv` gets.


# %%
def read_table(path, target, categories=(), drop=(), **options):
    """Return the table with its texts unchanged, and the numbers that the model gets, without the target."""
    texts = [*categories, *drop]
    options = {"keep_default_na": False, "encoding": "utf-8-sig", **options}
    table = pandas.read_csv(path, dtype=dict.fromkeys(texts, str), **options)
    if not isinstance(table.index, pandas.RangeIndex):
        raise ValueError(f"the rows of {path} have more cells than its header")
    for name, column in table.items():
        if name in texts:
            print(f"{name}: {column.nunique()} texts, such as {sorted(column.unique())[:5]}")
            continue
        numbers = pandas.to_numeric(column, errors="coerce").astype(float)
        if not np.isfinite(numbers).all():
            row = np.isfinite(numbers).argmin()
            fix = "fill it with a number, leave out the row, or name the column in categories or drop"
            raise ValueError(f"{name!r} has {column[row]!r} in row {row + 2}: {fix}")
        if name != target and column.dtype.kind in "iu" and numbers.abs().max() > 2**24:
            raise ValueError(f"{name!r} has whole numbers above 16,777,216, which float32 rounds")
        print(f"{name}: numbers from {numbers.min():g} to {numbers.max():g}")
    x = table.drop(columns=[target, *drop], errors="ignore")  # new rows have no target
    if categories:  # each value becomes a column of zeros and ones
        x = pandas.get_dummies(x, columns=list(categories), dtype=float)
    return table, x.astype("float32")


# %%
def make_flats():  # a table to try the template with
    rng, path = np.random.default_rng(0), f"{tempfile.mkdtemp()}/made-up-flats.csv"
    size, district = rng.uniform(25, 140, 900), rng.choice(["north", "south", "port"], 900)
    price = 40 + 3 * size + 90 * (district == "port") + rng.normal(0, 25, 900)
    pandas.DataFrame({"size": size, "district": district, "price": price}).to_csv(path, index=False)
    return path


path = given.path or make_flats()
if last and last.dataset != Path(path).name:
    sys.exit(f"the last run of {NAME!r} had the data {last.dataset!r}: give their path, or no --resume")
table, x = read_table(path, target="price", categories=["district"])
y = table["price"].astype("float32")
rows = TensorDataset(torch.tensor(x.to_numpy()), torch.tensor(y.to_numpy()))
rest, test = random_split(rows, [0.8, 0.2], torch.Generator().manual_seed(0))  # the same for every seed
split = torch.Generator().manual_seed(CONFIG["seed"])
train, valid = random_split(rest, [0.8, 0.2], split)  # the validation rows choose the checkpoint


# %%
class Network(nn.Module):
    def __init__(self, x, y, width):
        super().__init__()
        for name, rows in (("x", x), ("y", y)):  # scales of the training rows, saved with the weights
            std = rows.std(dim=0)
            self.register_buffer(f"{name}_mean", rows.mean(dim=0))
            self.register_buffer(f"{name}_std", torch.where(std > 0, std, 1.0))  # some columns are constant
        self.layers = nn.Sequential(nn.Linear(x.shape[1], width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.layers((x - self.x_mean) / self.x_std).squeeze(1) * self.y_std + self.y_mean


@torch.no_grad()
def measure(model, rows):
    model.eval()
    device = next(model.parameters()).device
    errors = [model(x.to(device)) - y.to(device) for x, y in DataLoader(rows, batch_size=1024)]
    return {"rmse": torch.cat(errors).square().mean().sqrt().item()}  # in the unit of y


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
            loss = nn.functional.mse_loss(model(x), y) / plain.y_std**2  # 1 if it predicts the mean
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
model = Network(*train[:], CONFIG["width"])
trainer = TorchTrainer(
    train_loop,
    train_loop_config=CONFIG | {"model": model, "train": train, "valid": valid},
    scaling_config=ScalingConfig(num_workers=settings.num_workers, use_gpu=settings.use_gpu),
    run_config=RunConfig(
        # Ray continues the run that had this name. Without a name, the panel finds a new one.
        name=last.storage_path.rpartition("/")[2] if last else None,
        storage_path=store.storage_path("runs", NAME),
        storage_filesystem=store.filesystem,
        checkpoint_config=CheckpointConfig(1, "rmse", checkpoint_score_order="min"),
        failure_config=FailureConfig(max_failures=1),
    ),
)
with TrainPanel(NAME, dataset=Path(path).name).watch(trainer) as panel:
    result = trainer.fit()

# %%
# The test rows are used once, for the model that the validation rows have chosen.
with result.get_best_checkpoint("rmse", "min").as_directory() as folder:
    model.load_state_dict(torch.load(f"{folder}/state.pt", map_location="cpu", weights_only=True)["model"])
found = ", ".join(f"{name} {value:.4g}" for name, value in measure(model, test).items())
print(f"on {len(test)} test rows: {found}")
runs.note(panel.run_id, f"test: {found}")
print(runs.table(NAME)[["started", "state", "lr", "width", "seed", "rmse", "note"]])

# %%
store.stop()
lab.stop()
