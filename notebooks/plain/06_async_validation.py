"""Validate checkpoints alongside training with Ray Train: what lesson 06 does, in plain Ray.

Reads NUM_WORKERS (1). Prints each checkpoint's metrics, those of the loop and those of the validator.
"""

import os
import tempfile
from pathlib import Path

import pyarrow.parquet
import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model

DIGITS = Path(__file__).resolve().parents[2] / "datasets/digits.parquet"


def load_digits(part):
    table = pyarrow.parquet.read_table(DIGITS)
    x = torch.tensor(table["image"].combine_chunks().to_numpy_ndarray()) / 255
    return x[part].flatten(1), torch.tensor(table["label"].to_numpy())[part]


def build_model():
    return torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def train_loop(config):
    rank, world = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    x, y = load_digits(slice(rank, 1437 // world * world, world))  # equally many rows for each
    plain = build_model()  # saved without DDP's wrapper, which renames the weights
    model, optimizer = prepare_model(plain), torch.optim.Adam(plain.parameters(), lr=0.005)
    for epoch in range(4):
        for rows in torch.randperm(len(y)).split(64 // world):
            loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        checkpoint, metrics = None, {"epoch": epoch, "loss": loss.item()}
        if rank == 0:
            folder = tempfile.mkdtemp()  # Ray removes it after the upload
            torch.save(plain.state_dict(), f"{folder}/model.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        how = {"checkpoint_upload_mode": ray.train.CheckpointUploadMode.ASYNC, "validation": rank == 0}
        ray.train.report(metrics, checkpoint=checkpoint, **how)


def validate(checkpoint):
    model, (x, y) = build_model(), load_digits(slice(1437, None))
    with checkpoint.as_directory() as folder:
        model.load_state_dict(torch.load(f"{folder}/model.pt", weights_only=True))
    return {"val_accuracy": (model.eval()(x).argmax(dim=1) == y).float().mean().item()}


workers = int(os.environ.get("NUM_WORKERS", 1))
ray.init("local", num_cpus=workers + 1)  # one CPU is for validations; fit() waits a minute for each at most
validation = ray.train.ValidationConfig(fn=validate, task_config=ray.train.ValidationTaskConfig(timeout_s=60))
scaling = ray.train.ScalingConfig(num_workers=workers)
result = TorchTrainer(train_loop, scaling_config=scaling, validation_config=validation).fit()
print(*(metrics for _, metrics in result.best_checkpoints), sep="\n")
