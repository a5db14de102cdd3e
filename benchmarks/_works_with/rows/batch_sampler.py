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
from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

from benchmarks._works_with import problem
from benchmarks._works_with.rows import plain


def loop(config):
    rows = problem.dealt(ray.train.get_context().get_world_rank())
    batches = [rows[start : start + problem.BATCH] for start in range(0, len(rows), problem.BATCH)]
    loader = DataLoader(problem.data(), batch_sampler=batches)
    loader = prepare_data_loader(loader, add_dist_sampler=False)
    return plain.train(config, prepare_model(problem.new_model()), loader)
