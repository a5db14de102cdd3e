"""`memory_format=torch.channels_last`

Group: PyTorch in a TorchTrainer
Packages: torch
Asked: all but one process, stop
Guess: all
Note: A small convolution. A checkpoint keeps the memory format of its weights.
"""

import torch
from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, TensorDataset

from benchmarks._works_with import problem


def loop(config):
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 6 * 6, 1)]
    model = torch.nn.Sequential(*layers).to(memory_format=torch.channels_last)
    images = torch.rand(problem.ROWS, 3, 8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model = prepare_model(model)
    first = problem.resume(model)
    loader = prepare_data_loader(DataLoader(TensorDataset(images, problem.Y), batch_size=problem.BATCH))
    for epoch in range(first, config["epochs"]):
        for x, y in loader:
            output = model(x.to(memory_format=torch.channels_last))
            loss = torch.nn.functional.mse_loss(output, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        problem.report(epoch, loss.item(), model)
    assert model.module[0].weight.is_contiguous(memory_format=torch.channels_last)
    return problem.weights_of_ranks(model)
