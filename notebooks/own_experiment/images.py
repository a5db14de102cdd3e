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

import numpy as np
import ray.train
import torch
from PIL import Image, ImageOps
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from course import datasets
from labkit import runs
from labkit.local import cluster, storage
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


# %% [markdown]
# ## Read the images
# Pillow opens nearly everything, and some of it goes wrong in silence: of a TIFF stack it shows the first
# page, `np.asarray` of an image with a palette has the numbers of its colours and not the colours,
# `convert` cuts 16 bits off at 255, a transparent pixel has any colour, and a photograph is on its side
# until its EXIF data are applied.
# So a file with several pages or more than 8 bits a channel is refused here, and the rest is handled. Read
# what the function prints: each folder is a class, `train` and `test` would be two of them.


# %%
def read_images(folder, size, mode="RGB"):
    """Return x, uint8 [rows, height, width, 3] ("L": without the 3), y, and the names of the classes.

    `size` is (width, height): an image of other proportions gets white borders.
    """
    x, y = [], []
    classes = sorted(path.name for path in Path(folder).iterdir() if path.is_dir() and path.name[0] != ".")
    for label, name in enumerate(classes):
        files = [path for path in sorted(Path(folder, name).rglob("*")) if path.is_file()]
        files = [path for path in files if path.name[0] != "." and path.name != "Thumbs.db"]
        print(f"{name}: {len(files)} images")
        for path in files:
            with Image.open(path) as image:
                if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":  # a photo with a preview
                    raise ValueError(f"{path} has {image.n_frames} pages: choose one by image.seek(page)")
                if image.mode[0] in "IF":
                    raise ValueError(f"{path} has more than 8 bits: divide all images by the same number")
                turned = ImageOps.exif_transpose(image).convert("RGBA")
            white = Image.new("RGBA", turned.size, "white")
            whole = Image.alpha_composite(white, turned).convert(mode)
            x.append(np.asarray(ImageOps.pad(whole, size, color="white")))  # keeps the proportions
            y.append(label)
    if not x:
        raise ValueError(f"{folder} has no images: it needs a folder for each class")
    return np.stack(x), np.array(y), classes


# %%
def make_photos():  # images to try the template with
    folder, digits = f"{tempfile.mkdtemp()}/digits", datasets.load("digits")
    for number, (image, label) in enumerate(digits):
        path = Path(folder, str(label), f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return folder


path = given.path or make_photos()
if last and last.dataset != Path(path).name:
    sys.exit(f"the last run of {NAME!r} had the data {last.dataset!r}: give their path, or no --resume")
x, y, classes = read_images(path, size=(28, 28))
rows = TensorDataset(torch.tensor(x), torch.tensor(y))
rest, test = random_split(rows, [0.8, 0.2], torch.Generator().manual_seed(0))  # the same for every seed
split = torch.Generator().manual_seed(CONFIG["seed"])
train, valid = random_split(rest, [0.8, 0.2], split)  # the validation rows choose the checkpoint


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
model = Network(x, len(classes), CONFIG["width"])
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
with TrainPanel(NAME, dataset=Path(path).name).watch(trainer) as panel:
    result = trainer.fit()

# %%
# The test rows are used once, for the model that the validation rows have chosen.
with result.get_best_checkpoint("accuracy", "max").as_directory() as folder:
    model.load_state_dict(torch.load(f"{folder}/state.pt", map_location="cpu", weights_only=True)["model"])
found = ", ".join(f"{name} {value:.4g}" for name, value in measure(model, test).items())
print(f"on {len(test)} test rows: {found}")
runs.note(panel.run_id, f"test: {found}")
print(runs.table(NAME)[["started", "state", "lr", "width", "seed", "accuracy", "note"]])

# %%
store.stop()
lab.stop()
