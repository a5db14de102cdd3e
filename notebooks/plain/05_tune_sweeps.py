"""Search a learning rate and a momentum with Ray Tune and ASHA: what lesson 05 does, in plain Ray.

Prints how many epochs the 16 trials trained, the best configuration, and its accuracy on the test images.
"""

import tempfile
from pathlib import Path

import pyarrow.parquet
import ray
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from torch import nn

DIGITS = Path(__file__).resolve().parents[2] / "datasets/digits.parquet"
TRAIN, VALID, TEST = 1149, slice(1149, 1437), slice(1437, None)  # of 1797 images: 64 %, 16 %, 20 %


def load_digits():
    table = pyarrow.parquet.read_table(DIGITS)
    x = torch.tensor(table["image"].combine_chunks().to_numpy_ndarray()) / 255
    return x, torch.tensor(table["label"].to_numpy())


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def train(config, data):
    (x, y), model = data, build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
    for _ in range(27):
        for rows in torch.randperm(TRAIN).split(64):
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = (model(x[VALID]).argmax(dim=1) == y[VALID]).float().mean().item()
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), f"{folder}/model.pt")
            tune.report({"accuracy": accuracy}, checkpoint=tune.Checkpoint.from_directory(folder))


if __name__ == "__main__":
    ray.init("local", num_cpus=2)
    x, y = load_digits()
    scheduler = ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3)
    ranked = {"metric": "accuracy", "mode": "max", "scheduler": scheduler}
    options = tune.TuneConfig(num_samples=16, reuse_actors=True, **ranked)
    space = {"lr": tune.loguniform(1e-3, 1), "momentum": tune.uniform(0, 0.95)}
    trainable = tune.with_parameters(train, data=(x, y))
    results = tune.Tuner(trainable, param_space=space, tune_config=options).fit()
    best, model = results.get_best_result(), build_model()
    with best.checkpoint.as_directory() as folder:
        model.load_state_dict(torch.load(f"{folder}/model.pt", weights_only=True))
    accuracy = (model(x[TEST]).argmax(dim=1) == y[TEST]).float().mean().item()
    print(results.get_dataframe()["training_iteration"].sum(), "epochs in", len(results), "trials")
    print("best:", best.config, f"accuracy on {len(y[TEST])} test images: {accuracy:.3f}")
