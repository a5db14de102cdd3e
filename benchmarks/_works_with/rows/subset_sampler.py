"""Rows for training of a larger data set: `Subset`

Group: Loaders in a TorchTrainer
Packages: torch
Asked: all but stop
Guess: all
Line: `Subset(dataset, indices)` instead of `SubsetRandomSampler(indices)`
Note: Ray replaces a `SubsetRandomSampler` by a sampler over all rows, also those for validation. The
    panel says so.
"""

import ray.train
import torch
from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, Subset, TensorDataset

from benchmarks._works_with import problem


def loop(config):
    model = problem.new_model()
    optimizer = problem.sgd(model)
    model = prepare_model(model)
    first = 0
    if state := problem.load():
        model.module.load_state_dict(state["model"])
        first = state["epoch"] + 1
    for_validation = torch.full((20, 4), 1e6)
    everything = TensorDataset(
        torch.cat([problem.X, for_validation]), torch.cat([problem.Y, torch.zeros(20, 1)])
    )
    data = Subset(everything, range(problem.ROWS))
    loader = prepare_data_loader(DataLoader(data, batch_size=problem.BATCH))
    for epoch in range(first, config["epochs"]):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        checkpoint = problem.save(epoch, model=model.module.state_dict())
        ray.train.report({"loss": loss.item(), "epoch": epoch}, checkpoint=checkpoint)
    return problem.weights_of_ranks(model)
