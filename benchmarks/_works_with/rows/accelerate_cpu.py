"""accelerate's `Accelerator(cpu=True)`

Group: Trainers in a TorchTrainer
Packages: accelerate
Guess: all
Line: `Accelerator(cpu=True)` on CPUs, or the variable `ACCELERATE_USE_CPU=true`
"""

import ray.train
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from benchmarks._works_with import problem

ROWS_OF = problem.in_batches


def loop(config):
    accelerator = Accelerator(cpu=True)
    model = problem.new_model(config["pause"])
    loader = DataLoader(problem.data(), batch_size=problem.BATCH)
    model, optimizer, loader = accelerator.prepare(model, problem.sgd(model), loader)
    first = 0
    if state := problem.load():
        accelerator.unwrap_model(model).load_state_dict(state["model"])
        first = state["epoch"] + 1
    for epoch in range(first, config["epochs"]):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        checkpoint = problem.save(epoch, model=accelerator.unwrap_model(model).state_dict())
        ray.train.report({"loss": loss.item(), "epoch": epoch}, checkpoint=checkpoint)
    return problem.weights_of_ranks(model)
