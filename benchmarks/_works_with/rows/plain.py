"""Plain PyTorch with `prepare_model`

Group: PyTorch in a TorchTrainer
Packages: torch
Guess: all
"""

import torch
from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

from benchmarks._works_with import problem


def train(config, model, loader):
    """The loop, which the rows of loaders run, too. A batch is a pair, or a dict of "x" and "y"."""
    optimizer = problem.sgd(model)
    for epoch in range(problem.resume(model), config["epochs"]):
        for batch in loader:
            x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        problem.report(epoch, loss.item(), model)
    return problem.weights_of_ranks(model)


def loop(config):
    model = prepare_model(problem.new_model(config["pause"]))
    loader = prepare_data_loader(DataLoader(problem.data(), batch_size=problem.BATCH))
    return train(config, model, loader)
