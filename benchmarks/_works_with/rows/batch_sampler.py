"""A `batch_sampler` of your own

Group: Loaders in a TorchTrainer
Packages: torch
Asked: all but stop
Guess: all
Line: deal the batches to the ranks in the sampler, and `prepare_data_loader(loader,
    add_dist_sampler=False)`
Note: Without that, Ray's loader gives single rows without a batch dimension. The panel says so.
"""

import ray.train
import torch
from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

from benchmarks._works_with import problem


def loop(config):
    model = problem.new_model()
    optimizer = problem.sgd(model)
    model = prepare_model(model)
    first = 0
    if state := problem.load():
        model.module.load_state_dict(state["model"])
        first = state["epoch"] + 1
    rows = problem.dealt(ray.train.get_context().get_world_rank())
    batches = [rows[start : start + problem.BATCH] for start in range(0, len(rows), problem.BATCH)]
    loader = DataLoader(problem.data(), batch_sampler=batches)
    loader = prepare_data_loader(loader, add_dist_sampler=False)
    for epoch in range(first, config["epochs"]):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        checkpoint = problem.save(epoch, model=model.module.state_dict())
        ray.train.report({"loss": loss.item(), "epoch": epoch}, checkpoint=checkpoint)
    return problem.weights_of_ranks(model)
