"""Gradient accumulation with `model.no_sync()`

Group: PyTorch in a TorchTrainer
Packages: torch
Asked: all but stop
Guess: all but loss
Note: Two micro-batches of 4 rows make a step. The panel follows the loss of one micro-batch,
    divided by two.
"""

import contextlib

import torch
from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

from benchmarks._works_with import problem

PARTS = 2


def loop(config):
    model = problem.new_model()
    optimizer = problem.sgd(model)
    model = prepare_model(model)
    first = problem.resume(model)
    loader = prepare_data_loader(DataLoader(problem.data(), batch_size=problem.BATCH // PARTS))
    for epoch in range(first, config["epochs"]):
        total = 0.0
        for number, (x, y) in enumerate(loader, 1):
            last = number % PARTS == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = torch.nn.functional.mse_loss(model(x), y) / PARTS
                loss.backward()
            total += loss.item()
            if last:
                optimizer.step()
                optimizer.zero_grad()
                reported, total = total, 0.0
        problem.report(epoch, reported, model)
    return problem.weights_of_ranks(model)
