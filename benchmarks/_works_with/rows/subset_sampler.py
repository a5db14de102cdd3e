"""Rows for training of a larger data set: `Subset`

Group: Loaders in a TorchTrainer
Packages: torch
Asked: all but stop
Guess: all
Line: `Subset(dataset, indices)` instead of `SubsetRandomSampler(indices)`
Note: Ray replaces a `SubsetRandomSampler` by a sampler over all rows, also those for validation. The
    panel says so.
"""

import torch
from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, Subset, TensorDataset

from benchmarks._works_with import problem
from benchmarks._works_with.rows import plain


def loop(config):
    for_validation = torch.full((20, 4), 1e6)
    everything = TensorDataset(
        torch.cat([problem.X, for_validation]), torch.cat([problem.Y, torch.zeros(20, 1)])
    )
    data = Subset(everything, range(problem.ROWS))
    loader = prepare_data_loader(DataLoader(data, batch_size=problem.BATCH))
    return plain.train(config, prepare_model(problem.new_model()), loader)
