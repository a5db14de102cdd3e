"""Ray Train, each worker with a DataLoader."""

import sys

import torch
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

from benchmarks._engines.stopwatch import Stopwatch
from benchmarks._models import mlp, train_epoch
from labkit.local import cluster

work = Stopwatch(sys.argv[1])


def train():
    model = prepare_model(mlp(seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    world_size = get_context().get_world_size()
    loader = prepare_data_loader(DataLoader(work.rows(), batch_size=128 // world_size))
    for _ in range(work.epochs):
        train_epoch(model, work.steps(loader), torch.nn.functional.cross_entropy, optimizer)
    work.save(model)


with cluster.start():
    work.launch()
    TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(work.folder / "ray")),
    ).fit()
