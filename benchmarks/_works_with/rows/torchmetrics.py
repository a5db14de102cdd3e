"""torchmetrics

Group: PyTorch in a TorchTrainer
Packages: torchmetrics
Asked: all but stop
Guess: all
Note: `MeanMetric` is the mean over the rows of both ranks. It is reported as the loss.
"""

import ray.train
import torch
from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from benchmarks._works_with import problem


def loop(config):
    model = problem.new_model()
    optimizer = problem.sgd(model)
    model = prepare_model(model)
    first = 0
    if state := problem.load():
        model.module.load_state_dict(state["model"])
        first = state["epoch"] + 1
    loader = prepare_data_loader(DataLoader(problem.data(), batch_size=problem.BATCH))
    mean = MeanMetric()
    for epoch in range(first, config["epochs"]):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean.update(loss.detach(), weight=len(x))
        checkpoint = problem.save(epoch, model=model.module.state_dict())
        ray.train.report({"loss": mean.compute().item(), "epoch": epoch}, checkpoint=checkpoint)
        mean.reset()
    return problem.weights_of_ranks(model)
