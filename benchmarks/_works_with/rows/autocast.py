"""`torch.autocast("cpu", torch.bfloat16)`

Group: PyTorch in a TorchTrainer
Packages: torch
Asked: all but one process, stop
Guess: all
"""

import torch
from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

from benchmarks._works_with import problem


def loop(config):
    model = problem.new_model()
    optimizer = problem.sgd(model)
    model = prepare_model(model)
    first = problem.resume(model)
    loader = prepare_data_loader(DataLoader(problem.data(), batch_size=problem.BATCH))
    for epoch in range(first, config["epochs"]):
        for x, y in loader:
            with torch.autocast("cpu", torch.bfloat16):
                loss = torch.nn.functional.mse_loss(model(x).float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        problem.report(epoch, loss.item(), model)
    return problem.weights_of_ranks(model)
