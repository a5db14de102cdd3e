# %% [markdown]
# # A text of your own
# Copy this file and change it; README.md, in the same folder, explains each part.
# `python text.py` trains on sentences that ship with the lab, and `python text.py plays.txt` on yours.
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
from torch.utils.data import DataLoader, Subset, TensorDataset

from course import datasets
from labkit import runs
from labkit.local import cluster, storage
from labkit.settings import Settings
from labkit.train import TrainPanel

NAME = "text"
CONFIG = {"epochs": 10, "batch_size": 16, "lr": 0.01, "width": 64, "seed": 0}
parser = argparse.ArgumentParser()
parser.add_argument("path", nargs="?", help="your data; without it, sentences that ship with the lab")
parser.add_argument("--seed", type=int, default=CONFIG["seed"], help="of the weights and of the order")
parser.add_argument("--resume", action="store_true", help="continue the last run after its latest checkpoint")
given = parser.parse_args([] if "ipykernel" in sys.modules else None)  # in a notebook: ["plays.txt"]
last = runs.latest(NAME, state=None) if given.resume else None
CONFIG["seed"] = last.config["seed"] if last else given.seed


# %% [markdown]
# ## Read the text
# A text file doesn't say what its encoding is. Opened in the wrong one, `Österreich` becomes `Ã–sterreich`
# in silence, and if rows of two programs were put into one file, it has two encodings, so no single one is
# right.
# So every line is looked at: a line that isn't in `encoding` is refused, and so is one in UTF-8 if
# `encoding` is another.


# %%
def read_text(path, encoding="utf-8"):
    """Return the text of a file, whose lines all have this encoding."""
    content = Path(path).read_bytes()
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ValueError(f"{path} is UTF-16: write it in UTF-8")
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        is_utf8 = line.decode("utf-8", errors="ignore").encode() == line
        if encoding == "utf-8" and not is_utf8:
            fix = 'if all lines are like that, pass encoding="cp1252", else write the file in UTF-8'
            raise ValueError(f"line {number} isn't UTF-8: {line[:60]}; {fix}")
        if encoding != "utf-8" and is_utf8 and not line.isascii():
            raise ValueError(f"line {number} is UTF-8, and would become {line.decode(encoding)[:60]!r}")
    return b"".join(lines).decode(encoding)


def rows_of(text, length):
    """Return x, the bytes of the text in rows of this length, and y, the byte after each of them."""
    tokens = torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8).long()
    count = (len(tokens) - 1) // length
    return tokens[: count * length].view(count, length), tokens[1 : count * length + 1].view(count, length)


# %%
def make_sentences():  # a text to try the template with
    shipped = pandas.read_table(datasets.shipped("sentences.tsv"), names=["label", "text"], quoting=3)
    path = Path(tempfile.mkdtemp(), "sentences.txt")
    path.write_text("\n".join(shipped["text"].sample(frac=1, random_state=0)), encoding="utf-8")
    return path


path = given.path or make_sentences()
if last and last.dataset != Path(path).name:
    sys.exit(f"the last run of {NAME!r} had the data {last.dataset!r}: give their path, or no --resume")
rows = TensorDataset(*rows_of(read_text(path), length=64))
# A row continues the one before, so each part is one piece of the text. The validation rows choose
# the checkpoint.
ends = [int(0.64 * len(rows)), int(0.8 * len(rows))]
train, valid, test = (Subset(rows, part.tolist()) for part in np.split(np.arange(len(rows)), ends))


# %%
class Network(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = nn.GRU(width, 2 * width, batch_first=True)
        self.last = nn.Linear(2 * width, vocabulary)

    def forward(self, x):  # [rows, length] → [rows, length, vocabulary]
        return self.last(self.recurrent(self.embedding(x))[0])


@torch.no_grad()
def measure(model, rows):
    model.eval()
    device = next(model.parameters()).device
    logits = ((model(x.to(device)).transpose(1, 2), y.to(device)) for x, y in DataLoader(rows, batch_size=64))
    losses = [nn.functional.cross_entropy(*one, reduction="none") for one in logits]
    return {"perplexity": torch.cat(losses).mean().exp().item()}


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
            loss = nn.functional.cross_entropy(model(x).transpose(1, 2), y)
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
model = Network(256, CONFIG["width"])
trainer = TorchTrainer(
    train_loop,
    train_loop_config=CONFIG | {"model": model, "train": train, "valid": valid},
    scaling_config=ScalingConfig(num_workers=settings.num_workers, use_gpu=settings.use_gpu),
    run_config=RunConfig(
        # Ray continues the run that had this name. Without a name, the panel finds a new one.
        name=last.storage_path.rpartition("/")[2] if last else None,
        storage_path=store.storage_path("runs", NAME),
        storage_filesystem=store.filesystem,
        checkpoint_config=CheckpointConfig(1, "perplexity", checkpoint_score_order="min"),
        failure_config=FailureConfig(max_failures=1),
    ),
)
with TrainPanel(NAME, dataset=Path(path).name).watch(trainer) as panel:
    result = trainer.fit()

# %%
# The test rows are used once, for the model that the validation rows have chosen.
with result.get_best_checkpoint("perplexity", "min").as_directory() as folder:
    model.load_state_dict(torch.load(f"{folder}/state.pt", map_location="cpu", weights_only=True)["model"])
found = ", ".join(f"{name} {value:.4g}" for name, value in measure(model, test).items())
print(f"on {len(test)} test rows: {found}")
runs.note(panel.run_id, f"test: {found}")
print(runs.table(NAME)[["started", "state", "lr", "width", "seed", "perplexity", "note"]])

# %%
# What the model makes of the beginning of a test row.
tokens = test[0][0][None, :20]
with torch.no_grad():
    for _ in range(60):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(dim=2)], dim=1)
print(bytes(tokens[0].tolist()).decode(errors="replace"))

# %%
store.stop()
lab.stop()
