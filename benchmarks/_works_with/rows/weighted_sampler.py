"""`WeightedRandomSampler`

Group: Loaders in a TorchTrainer
Packages: torch
Asked: one model, rows, steps, epochs, loss
Guess: all
Line: `prepare_data_loader(loader, add_dist_sampler=False)`, half of `num_samples`, and a generator with
    a seed of each rank
Note: Without these, Ray replaces the sampler by one over all rows, and the panel says so.
"""

import ray.train
import torch
from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, WeightedRandomSampler

from benchmarks._works_with import problem
from benchmarks._works_with.rows import plain


def loop(config):
    generator = torch.Generator().manual_seed(ray.train.get_context().get_world_rank())
    sampler = WeightedRandomSampler([1.0, 9.0] * 32, problem.ROWS // 2, generator=generator)
    loader = DataLoader(problem.data(), batch_size=problem.BATCH, sampler=sampler)
    loader = prepare_data_loader(loader, add_dist_sampler=False)
    return plain.train(config, prepare_model(problem.new_model()), loader)
