"""Ray Train, fed by Ray Data. For equal weights each rank has its rows fixed: a dataset of its own."""

import sys

import ray.data
import torch
from ray.train import DataConfig, RunConfig, ScalingConfig, get_context, get_dataset_shard
from ray.train.torch import TorchTrainer, prepare_model

from benchmarks._engines.stopwatch import Stopwatch
from benchmarks._models import mlp, train_epoch
from labkit.local import cluster

work = Stopwatch(sys.argv[1])


def train():
    model = prepare_model(mlp(seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    context = get_context()
    shard = get_dataset_shard(f"rank-{context.get_world_rank()}")
    for _ in range(work.epochs):
        loader = shard.iter_torch_batches(batch_size=128 // context.get_world_size())
        train_epoch(model, work.steps(loader), torch.nn.functional.cross_entropy, optimizer)
    work.save(model)


with cluster.start(cpus_per_node=4):
    options = ray.data.DataContext.get_current()
    options.use_datasource_v2 = False
    options.execution_options.preserve_order = True
    work.launch()
    TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        datasets={f"rank-{k}": ray.data.read_parquet(str(work.part(k))) for k in (0, 1)},
        dataset_config=DataConfig(datasets_to_split=[]),
        run_config=RunConfig(storage_path=str(work.folder / "ray")),
    ).fit()
