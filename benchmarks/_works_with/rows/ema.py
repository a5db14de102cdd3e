"""A moving average of the weights, `torch.optim.swa_utils.AveragedModel`

Group: PyTorch in a TorchTrainer
Packages: torch
Asked: all but stop
Guess: all
Note: The average is in the checkpoint as well, and equal on both ranks; the row fails otherwise.
"""

import torch
from ray.train.torch import prepare_data_loader, prepare_model
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from benchmarks._works_with import problem


def loop(config):
    model = problem.new_model()
    optimizer = problem.sgd(model)
    model = prepare_model(model)
    average = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    first = problem.resume(model)
    if first > 0:
        average.load_state_dict(problem.load()["average"])
    loader = prepare_data_loader(DataLoader(problem.data(), batch_size=problem.BATCH))
    for epoch in range(first, config["epochs"]):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update_parameters(model.module)
        problem.report(epoch, loss.item(), model, average=average.state_dict())
    averages = problem.weights_of_ranks(average)
    assert averages[0] == averages[1] != problem.weights(model)
    return problem.weights_of_ranks(model)
