"""TorchDistributor on Spark's executors: a rank on each of two executors."""

import sys

import torch
import torch.distributed as dist
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks._engines.stopwatch import Stopwatch
from benchmarks._models import mlp, train_epoch
from labkit.local import spark

work = Stopwatch(sys.argv[1])


def train():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(mlp(seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rows = work.rows()
    sampler = DistributedSampler(rows, shuffle=False)
    loader = DataLoader(rows, batch_size=128 // dist.get_world_size(), sampler=sampler)
    for _ in range(work.epochs):
        train_epoch(model, work.steps(loader), torch.nn.functional.cross_entropy, optimizer)
    work.save(model)
    del model  # freed later, it can hang (docs/upstream.md)
    dist.destroy_process_group()


spark.prepare()
builder = SparkSession.builder.master("local-cluster[2,1,1024]")
session = builder.config("spark.cores.max", 2).getOrCreate()
work.launch()
TorchDistributor(num_processes=2, local_mode=False, use_gpu=False).run(train)
session.stop()
