"""Train on handwritten digits, on any number of workers: what lesson 03 does, in plain Ray and PyTorch.

Reads NUM_WORKERS (2), USE_GPU (0), STORAGE (a folder or s3://bucket/prefix). Prints accuracy, about 0.95.
"""

import os
import tempfile
from pathlib import Path

import pyarrow.parquet
import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, TensorDataset

DIGITS = Path(__file__).resolve().parents[2] / "datasets/digits.parquet"


def train_loop(config):
    plain = config["model"]
    model = prepare_model(plain)  # in DDP's wrapper, which trains plain; checkpoints need no wrapper
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = prepare_data_loader(DataLoader(config["train"], batch_size=config["batch_size"]))
    first, checkpoint = 0, ray.train.get_checkpoint()
    if checkpoint:  # after a failure
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt", weights_only=True)
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    for epoch in range(first, 6):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:
                state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, f"{folder}/state.pt")
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"loss": loss.item()}, checkpoint=checkpoint)


workers, gpu = int(os.environ.get("NUM_WORKERS", 2)), os.environ.get("USE_GPU") == "1"
storage = os.environ.get("STORAGE") or tempfile.mkdtemp()
address = os.environ.get("RAY_ADDRESS", "local")  # a cluster of its own, even if one runs here
ray.init(address, num_cpus=workers + 1 if address == "local" else None, log_to_driver=False)
table = pyarrow.parquet.read_table(DIGITS)
x = torch.tensor(table["image"].combine_chunks().to_numpy_ndarray()) / 255
y = torch.tensor(table["label"].to_numpy())
train = TensorDataset(x[:1437], y[:1437])
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
result = TorchTrainer(
    train_loop,
    train_loop_config={"model": model, "train": train, "batch_size": 128 // workers},
    scaling_config=ray.train.ScalingConfig(num_workers=workers, use_gpu=gpu),
    run_config=ray.train.RunConfig(storage_path=storage, failure_config=ray.train.FailureConfig(2)),
).fit()
with result.checkpoint.as_directory() as folder:
    model.load_state_dict(torch.load(f"{folder}/state.pt", weights_only=True)["model"])
right = (model(x[1437:]).argmax(dim=1) == y[1437:]).float()
print(f"accuracy {right.mean():.3f}, checkpoint {result.checkpoint.path}")
