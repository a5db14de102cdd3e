"""accelerate's `Accelerator()`

Group: Trainers in a TorchTrainer
Packages: accelerate
Asked: one model, one process, epochs
Guess: epochs
Line: see the row above
Note: On CPUs each worker trains a model of its own, on all rows, and the panel says so.
"""

import ray.train
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from benchmarks._works_with import problem


def loop(config):
    accelerator = Accelerator()
    model = problem.new_model()
    loader = DataLoader(problem.data(), batch_size=problem.BATCH, shuffle=True)
    torch.manual_seed(ray.train.get_context().get_world_rank())
    model, optimizer, loader = accelerator.prepare(model, problem.sgd(model), loader)
    for epoch in range(config["epochs"]):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        ray.train.report({"loss": loss.item(), "epoch": epoch})
    return problem.weights_of_ranks(accelerator.unwrap_model(model))
