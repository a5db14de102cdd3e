"""torchdata's `StatefulDataLoader`, resumed in the middle of an epoch

Group: Loaders in a TorchTrainer
Packages: torchdata
Asked: one model, one process, rows, steps, resumes
Guess: all but rows, steps
Line: save the epoch with the loader's state, and call `sampler.set_epoch` before `load_state_dict`
Note: The last checkpoint is saved after two of four steps, and the second run resumes there. Don't pass
    this loader to `prepare_data_loader`, which would make a plain loader of it.
"""

import torch
from ray.train.torch import prepare_model
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks._works_with import problem

EPOCHS_AFTER_RESUME = 2  # the second half of an epoch, and a whole one


def loop(config):
    model = problem.new_model()
    optimizer = problem.sgd(model)
    model = prepare_model(model)
    data = problem.data()
    sampler = DistributedSampler(data, shuffle=False)
    loader = StatefulDataLoader(data, batch_size=problem.BATCH, sampler=sampler)
    first, steps = 0, 0
    if state := problem.load():
        model.module.load_state_dict(state["model"])
        first, steps = state["epoch"], state["steps"]
        sampler.set_epoch(first)
        loader.load_state_dict(state["loader"])
    for epoch in range(first, config["epochs"]):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps == problem.STEPS // 2:
                problem.report(epoch, loss.item(), model, loader=loader.state_dict(), steps=steps)
        steps = 0
    return problem.weights_of_ranks(model)
