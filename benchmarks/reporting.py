"""What following a training costs: epochs with the panel and without it, in turn, in one run.

    .venv/bin/python -m benchmarks.reporting [--epochs 24]

Two workers train lesson 03's two models on the digits. Every other epoch goes through `panel.steps` and
`panel.log`, those between through the bare iterator; within a pair the order changes, so that a machine
that slows down hits both. The figure is the median over the pairs of (seconds with / seconds without).
"""

import argparse
import statistics
import tempfile
import time

from labkit import cluster, datasets
from labkit.settings import Settings


def train_loop(config):
    import ray.train
    import torch
    from ray.train.torch import prepare_model
    from torch.utils.data import DataLoader, TensorDataset

    from labkit import torch_models

    panel, rank = config["panel"], ray.train.get_context().get_world_rank()
    data = config["data"]
    rows = TensorDataset(torch_models.to_input(data.images), torch.tensor(data.labels))
    model = prepare_model(getattr(torch_models, config["model"])(seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seconds = {True: [], False: []}
    for epoch in range(config["epochs"] * 2):
        followed = (epoch % 2 == 0) != (epoch // 2 % 2 == 0)
        loader = DataLoader(rows, batch_size=64)
        began = time.perf_counter()
        for x, y in panel.steps(loader, epoch=epoch, epochs=config["epochs"] * 2) if followed else loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if followed:
                panel.log(loss=loss)
        seconds[followed].append(time.perf_counter() - began)
    if rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"with": seconds[True], "without": seconds[False]}, checkpoint=checkpoint)
    else:
        ray.train.report({})


def measure(model: str, *, epochs: int, settings: Settings) -> None:
    """Print the cost of reporting for one model."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from labkit.ray_reporting import TrainPanel

    train = datasets.load(split="train")
    panel = TrainPanel(f"benchmark-reporting-{model}", dataset=train.name, rows=len(train))
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"panel": panel, "model": model, "epochs": epochs, "data": train},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name=panel.run_id, storage_path=str(settings.home / "runs"), callbacks=[panel.callback()]
        ),
    )
    with panel.watch(trainer):
        metrics = trainer.fit().metrics
    # The first pair warms up.
    pairs = list(zip(metrics["with"], metrics["without"], strict=True))[1:]
    cost = [100 * (one / other - 1) for one, other in pairs]
    low, middle, high = statistics.quantiles(cost, n=4)
    rate = len(train) / statistics.median(other for _, other in pairs)
    print(
        f"{model}: {rate:,.0f} rows/s per worker without; with the panel {middle:+.2f} % time"
        f" (quartiles {low:+.2f} and {high:+.2f}, {len(pairs)} pairs)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=24, help="pairs of epochs, one of them to warm up")
    epochs = parser.parse_args().epochs
    settings = Settings.from_env()
    with cluster.start(settings=settings):
        for model in ("cnn", "mlp"):
            measure(model, epochs=epochs, settings=settings)


if __name__ == "__main__":
    main()
