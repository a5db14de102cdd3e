"""accelerate's `Accelerator(cpu=True)`, in TorchDistributor

Group: In TorchDistributor
Packages: accelerate, pyspark
Asked: all but resumes, stop
Guess: all
Line: `Accelerator(cpu=True)` on CPUs
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from benchmarks._works_with import problem, sparked


def loop(epochs):
    accelerator = Accelerator(cpu=True)
    model = problem.new_model()
    loader = DataLoader(problem.data(), batch_size=problem.BATCH)
    model, optimizer, loader = accelerator.prepare(model, problem.sgd(model), loader)
    for _ in range(epochs):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
    ranks = problem.weights_of_ranks(model)
    del model  # before its process group goes
    accelerator.end_training()
    return ranks


def measured(storage):
    return sparked.measured(loop, "spark_accelerate", problem.in_batches)
