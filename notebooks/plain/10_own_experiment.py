"""Compare colour with grey on a folder of images, with three seeds each: what lesson 10 does, in plain Ray.

Reads FOLDER (a folder per class, images of one size; without it, some are painted) and NUM_WORKERS (2).
Prints mean and standard deviation of the accuracies.
"""

import copy
import os
import tempfile
from pathlib import Path

import numpy as np
import ray.train
import torch
from PIL import Image
from ray.train.torch import TorchTrainer, prepare_model


def train(arm, seed, rank, world):
    torch.manual_seed(seed)
    x = images.mean(dim=3, keepdim=True).expand_as(images) if arm == "grey" else images
    mine = torch.arange(valid.stop, len(x) - (len(x) - valid.stop) % world)[rank::world]
    plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(x[0].numel(), len(names)))
    model, optimizer = prepare_model(plain), torch.optim.Adam(plain.parameters(), lr=0.001)
    lowest, chosen = float("inf"), None
    for _ in range(8):
        for rows in mine[torch.randperm(len(mine))].split(16):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows]), labels[rows]).backward()
            optimizer.step()
        loss = torch.nn.functional.cross_entropy(plain(x[valid]), labels[valid]).item()
        if loss < lowest:  # validation rows choose the epoch
            lowest, chosen = loss, copy.deepcopy(plain.state_dict())
    plain.load_state_dict(chosen)  # the test rows are looked at once
    return (plain(x[test]).argmax(dim=1) == labels[test]).float().mean().item()


def train_loop(config):  # all settings in one run: the workers start once
    rank, world = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    found = {"colour": [], "grey": []}
    for arm, seed in zip(3 * list(found), (0, 0, 1, 1, 2, 2), strict=True):
        found[arm].append(train(arm, seed, rank, world))
    return found


folder = Path(os.environ.get("FOLDER") or tempfile.mkdtemp())
for number in range(0 if "FOLDER" in os.environ else 400):  # cyan or magenta noise
    (folder / str(number % 2)).mkdir(exist_ok=True)
    noise = np.random.default_rng(number).normal(np.roll([88, 100, 100], number % 2), 40, (16, 16, 3))
    Image.fromarray(noise.clip(0, 255).astype("uint8")).save(folder / str(number % 2) / f"{number}.png")
files = np.random.default_rng(0).permutation(sorted(folder.glob("*/*")))
names = sorted({file.parent.name for file in files})
labels = torch.tensor([names.index(file.parent.name) for file in files])
images = torch.tensor(np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])) / 255
test, valid = slice(0, len(files) // 4), slice(len(files) // 4, len(files) * 2 // 5)
run = ray.train.RunConfig(storage_path=tempfile.mkdtemp())
scaling = ray.train.ScalingConfig(num_workers=int(os.environ.get("NUM_WORKERS", 2)))
ray.init("local", num_cpus=scaling.num_workers)
for arm, found in TorchTrainer(train_loop, scaling_config=scaling, run_config=run).fit().return_value.items():
    print(f"{arm}: accuracy {np.mean(found):.3f} ± {np.std(found, ddof=1):.3f}")
