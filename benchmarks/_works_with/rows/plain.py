"""Plain PyTorch with `prepare_model`

Group: PyTorch in a TorchTrainer
Packages: torch
Guess: all
"""

import ray.train
import torch
from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

from benchmarks._works_with import problem


def loop(config):
    model = problem.new_model(config["pause"])
    optimizer = problem.sgd(model)
    first = 0
    if state := problem.load():
        model.load_state_dict(state["model"])
        first = state["epoch"] + 1
    model = prepare_model(model)
    loader = prepare_data_loader(DataLoader(problem.data(), batch_size=problem.BATCH))
    for epoch in range(first, config["epochs"]):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        checkpoint = problem.save(epoch, model=model.module.state_dict())
        ray.train.report({"loss": loss.item(), "epoch": epoch}, checkpoint=checkpoint)
    return problem.weights_of_ranks(model)
