"""Validate checkpoints alongside training, and resume after a failure: lessons 03b and 06, in plain Ray.

Reads NUM_WORKERS (1), STORAGE (a folder or s3://bucket/prefix), RUN (a name: a run of that name and storage
is resumed), EPOCHS (4). Prints the epoch that the loop started with, and each checkpoint's metrics.
"""

import os
import tempfile
from pathlib import Path

import pyarrow.parquet
import ray.train
import torch
from ray.train import CheckpointUploadMode, FailureConfig, RunConfig, ValidationConfig, ValidationTaskConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, TensorDataset

DIGITS = Path(__file__).resolve().parents[2] / "datasets/digits.parquet"


def load_digits(part):
    table = pyarrow.parquet.read_table(DIGITS)
    x = torch.tensor(table["image"].combine_chunks().to_numpy_ndarray()) / 255
    return x[part].flatten(1), torch.tensor(table["label"].to_numpy())[part]


def build_model():
    return torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def train_loop(config):
    plain, first, checkpoint = build_model(), 0, ray.train.get_checkpoint()
    model, optimizer = prepare_model(plain), torch.optim.Adam(plain.parameters(), lr=0.005)
    rows = TensorDataset(*load_digits(slice(1437)))
    loader = prepare_data_loader(DataLoader(rows, batch_size=config["batch_size"], shuffle=True))
    if checkpoint:  # after a failure, or if a run of this name is there
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt", weights_only=True)
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    for epoch in range(first, config["epochs"]):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        checkpoint, how = None, {"checkpoint_upload_mode": CheckpointUploadMode.ASYNC}
        if ray.train.get_context().get_world_rank() == 0:
            folder = tempfile.mkdtemp()  # Ray removes it after the upload
            state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, f"{folder}/state.pt")
            checkpoint, how["validation"] = ray.train.Checkpoint.from_directory(folder), True
        ray.train.report({"epoch": epoch, "loss": loss.item()}, checkpoint=checkpoint, **how)
    return first


def validate(checkpoint):
    model, (x, y) = build_model().eval(), load_digits(slice(1437, None))
    with checkpoint.as_directory() as folder:
        model.load_state_dict(torch.load(f"{folder}/state.pt", weights_only=True)["model"])
    return {"val_accuracy": (model(x).argmax(dim=1) == y).float().mean().item()}


workers, storage = int(os.environ.get("NUM_WORKERS", 1)), os.environ.get("STORAGE") or tempfile.mkdtemp()
ray.init("local", num_cpus=workers + 1, log_to_driver=False)  # one CPU is for validations
result = TorchTrainer(
    train_loop,
    train_loop_config={"epochs": int(os.environ.get("EPOCHS", 4)), "batch_size": 64 // workers},
    scaling_config=ray.train.ScalingConfig(num_workers=workers),
    run_config=RunConfig(name=os.environ.get("RUN"), storage_path=storage, failure_config=FailureConfig(2)),
    validation_config=ValidationConfig(fn=validate, task_config=ValidationTaskConfig(timeout_s=60)),
).fit()
print("started with epoch", result.return_value)
print(*(metrics for _, metrics in result.best_checkpoints), sep="\n")
