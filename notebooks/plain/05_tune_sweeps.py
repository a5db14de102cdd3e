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

DIGITS = Path(__file__).resolve().parents[2] / "datasets/digits.parquet"


def load_digits():
    table = pyarrow.parquet.read_table(DIGITS)
    images = table["image"].combine_chunks().to_numpy_ndarray()
    return torch.tensor(images, dtype=torch.float32) / 255, torch.tensor(table["label"].to_numpy())


def train(config, data):
    x, y = data
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(28 * 28, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
    for _ in range(27):
        for rows in torch.randperm(1149).split(64):
            loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = (model(x[1149:1437]).argmax(dim=1) == y[1149:1437]).float().mean().item()
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model, Path(folder) / "model.pt")
            tune.report({"accuracy": accuracy}, checkpoint=tune.Checkpoint.from_directory(folder))


if __name__ == "__main__":
    ray.init(num_cpus=2)
    x, y = load_digits()
    scheduler = ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3)
    options = tune.TuneConfig(
        metric="accuracy", mode="max", num_samples=16, scheduler=scheduler, reuse_actors=True
    )
    space = {"lr": tune.loguniform(1e-3, 1), "momentum": tune.uniform(0, 0.95)}
    results = tune.Tuner(
        tune.with_parameters(train, data=(x, y)), param_space=space, tune_config=options
    ).fit()
    best = results.get_best_result()
    with best.checkpoint.as_directory() as folder:
        model = torch.load(Path(folder) / "model.pt", weights_only=False)
    accuracy = (model(x[1437:]).argmax(dim=1) == y[1437:]).float().mean().item()
    print(results.get_dataframe()["training_iteration"].sum(), "epochs in", len(results), "trials")
    print("best:", best.config, f"accuracy on {len(y) - 1437} test images: {accuracy:.3f}")
