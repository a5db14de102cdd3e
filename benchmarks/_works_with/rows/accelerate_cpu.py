"""accelerate's `Accelerator(cpu=True)`

Group: Trainers in a TorchTrainer
Packages: accelerate
Guess: all
Line: `Accelerator(cpu=True)` on CPUs, or the variable `ACCELERATE_USE_CPU=true`
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from benchmarks._works_with import problem

ROWS_OF = problem.in_batches


def train(config, accelerator, loader):
    model = problem.new_model(config["pause"])
    model, optimizer, loader = accelerator.prepare(model, problem.sgd(model), loader)
    for epoch in range(problem.resume(model), config["epochs"]):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        problem.report(epoch, loss.item(), model)
    return problem.weights_of_ranks(model)


def loop(config):
    loader = DataLoader(problem.data(), batch_size=problem.BATCH)
    return train(config, Accelerator(cpu=True), loader)
