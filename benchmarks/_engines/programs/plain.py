"""One process: what the others are changed from."""

import sys

import torch
from torch.utils.data import DataLoader

from benchmarks._engines.stopwatch import Stopwatch
from benchmarks._models import mlp, train_epoch

work = Stopwatch(sys.argv[1])


def train():
    model = mlp(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(work.rows(), batch_size=128)
    for _ in range(work.epochs):
        train_epoch(model, work.steps(loader), torch.nn.functional.cross_entropy, optimizer)
    work.save(model)


work.launch()
train()
