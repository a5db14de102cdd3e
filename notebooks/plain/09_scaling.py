"""Predict what more workers bring from steps with one and two of them, then measure: lesson 09 in plain Ray.

Reads NUM_WORKERS (4). Each step sleeps, as if it waited for a GPU, and averages gradients of 16 MB.
Prints both for all numbers of workers, in 40 s on two cores.
"""

import os
import statistics
import time

import numpy
import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import TorchTrainer


def step_seconds(group, workers, rows, megabytes):
    gradients, seconds = torch.zeros(250_000 * megabytes), []
    for _ in range(12):
        begin = time.perf_counter()
        time.sleep(0.010 + 0.0004 * rows)
        if workers > 1:
            dist.all_reduce(gradients, group=group)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[2:])


def train_loop(config):
    rank, found = ray.train.get_context().get_world_rank(), []
    for workers, rows, megabytes in config["phases"]:
        group = dist.new_group(list(range(workers)))  # every rank makes it, also those outside
        if rank < workers:
            found.append(step_seconds(group, workers, rows, megabytes))
        dist.barrier()
    return found


def terms(workers, rows, megabytes):  # of serial, per row, alpha and beta
    return [1, rows, 2 * (workers - 1), megabytes * 2 * (workers - 1) / workers]


most = int(os.environ.get("NUM_WORKERS", 4))
address = os.environ.get("RAY_ADDRESS", "local")  # a cluster of its own, even if one runs here
ray.init(address, num_cpus=most if address == "local" else None, log_to_driver=False)
short = [(1, 256, 0), (1, 64, 0), (2, 64, 1), (2, 64, 64)]
whole = [(workers, 256 // workers, 16) for workers in range(1, most + 1)]
trainer = TorchTrainer(
    train_loop,
    train_loop_config={"phases": short + whole},
    scaling_config=ray.train.ScalingConfig(num_workers=most),
)
seconds = trainer.fit().return_value
costs = numpy.linalg.solve([terms(*one) for one in short], seconds[:4])
for one, measured in zip(whole, seconds[4:], strict=True):
    predicted = 1000 * numpy.dot(terms(*one), costs)
    print(f"{one[0]} workers: {1000 * measured:.0f} ms, predicted {predicted:.0f} ms")
