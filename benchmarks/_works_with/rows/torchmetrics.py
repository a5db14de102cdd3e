"""torchmetrics

Group: PyTorch in a TorchTrainer
Packages: torchmetrics
Asked: all but stop
Guess: all
Note: `MeanMetric` is the mean over the rows of both ranks. It is reported as the loss.
"""

import torch
from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from benchmarks._works_with import problem


def loop(config):
    model = problem.new_model()
    optimizer = problem.sgd(model)
    model = prepare_model(model)
    first = problem.resume(model)
    loader = prepare_data_loader(DataLoader(problem.data(), batch_size=problem.BATCH))
    mean = MeanMetric()
    for epoch in range(first, config["epochs"]):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean.update(loss.detach(), weight=len(x))
        problem.report(epoch, mean.compute().item(), model)
        mean.reset()
    return problem.weights_of_ranks(model)
