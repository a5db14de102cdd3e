"""Validate checkpoints alongside a training with Ray Train: what lesson 06 does, in plain Ray.

Prints each checkpoint's metrics, those of the loop and those of the validator.
"""

import tempfile
from pathlib import Path

import pyarrow.parquet
import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model

DIGITS = Path(__file__).resolve().parents[2] / "datasets/digits.parquet"


def load_digits(part):
    table = pyarrow.parquet.read_table(DIGITS)
    images = table["image"].combine_chunks().to_numpy_ndarray()
    x, y = torch.tensor(images, dtype=torch.float32) / 255, torch.tensor(table["label"].to_numpy())
    return x[part].flatten(1), y[part]


def build_model():
    return torch.nn.Sequential(torch.nn.Linear(28 * 28, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def train_loop(config):
    x, y = load_digits(slice(0, 1437))
    model = prepare_model(build_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for epoch in range(4):
        for rows in torch.randperm(len(y)).split(64):
            loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        folder = tempfile.mkdtemp()  # Ray removes it after the upload
        torch.save(model.state_dict(), f"{folder}/model.pt")
        ray.train.report(
            {"epoch": epoch, "loss": loss.item()},
            checkpoint=ray.train.Checkpoint.from_directory(folder),
            checkpoint_upload_mode=ray.train.CheckpointUploadMode.ASYNC,
            validation=True,
        )


def validate(checkpoint):
    model, (x, y) = build_model(), load_digits(slice(1437, None))
    with checkpoint.as_directory() as folder:
        model.load_state_dict(torch.load(f"{folder}/model.pt"))
    return {"val_accuracy": (model.eval()(x).argmax(dim=1) == y).float().mean().item()}


if __name__ == "__main__":
    ray.init(num_cpus=2)
    limit = ray.train.ValidationTaskConfig(timeout_s=60)  # without it, fit() waits for one that hangs
    validation = ray.train.ValidationConfig(fn=validate, task_config=limit)
    result = TorchTrainer(train_loop, validation_config=validation).fit()
    print(*(metrics for _, metrics in result.best_checkpoints), sep="\n")
