"""For torchrun: torchrun --standalone --nproc_per_node=2 ddp.py FOLDER."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks._engines.stopwatch import Stopwatch
from benchmarks._models import mlp, train_epoch

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


work.launch()
train()
