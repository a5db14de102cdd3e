"""accelerate's `Accelerator()`

Group: Trainers in a TorchTrainer
Packages: accelerate
Asked: one model, one process, epochs
Guess: epochs
Line: see the row above
Note: On CPUs each worker trains a model of its own, on all rows, and the panel says so.
"""

import ray.train
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from benchmarks._works_with import problem
from benchmarks._works_with.rows import accelerate_cpu


def loop(config):
    order = torch.Generator().manual_seed(ray.train.get_context().get_world_rank())
    loader = DataLoader(problem.data(), batch_size=problem.BATCH, shuffle=True, generator=order)
    return accelerate_cpu.train(config, Accelerator(), loader)
