"""Hugging Face `datasets`, map-style

Group: Loaders in a TorchTrainer
Packages: datasets
Asked: all but stop
Guess: all
Line: `dataset.with_format("torch")`, then `prepare_data_loader` as for any data set
"""

import ray.train
import torch
from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

from benchmarks._works_with import problem
from datasets import Dataset


def loop(config):
    model = problem.new_model()
    optimizer = problem.sgd(model)
    model = prepare_model(model)
    first = 0
    if state := problem.load():
        model.module.load_state_dict(state["model"])
        first = state["epoch"] + 1
    data = Dataset.from_dict({"x": problem.X.tolist(), "y": problem.Y.tolist()}).with_format("torch")
    loader = prepare_data_loader(DataLoader(data, batch_size=problem.BATCH))
    for epoch in range(first, config["epochs"]):
        for batch in loader:
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        checkpoint = problem.save(epoch, model=model.module.state_dict())
        ray.train.report({"loss": loss.item(), "epoch": epoch}, checkpoint=checkpoint)
    return problem.weights_of_ranks(model)
