"""The programs that `benchmarks.engines` compares: the same training by each launcher.

    python -m benchmarks._engines WAY FOLDER EPOCHS

The folder has the digits; another one next to it gets the weights of rank 0. The programs differ only in what
their engine requires.
"""

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import _programs
from benchmarks.torch_throughput import GLOBAL_BATCH, loader_of, tensors, train


def weights_of(folder: str, way: str) -> Path:
    """Return the file with the weights that a program came to."""
    return Path(f"{folder}-weights", f"{way}.pt")


def measured(way: str, folder: str, epochs: int) -> dict[str, Any] | None:
    """Train as one process, or as a rank of a group that was launched; return the figures of rank 0."""
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, TensorDataset

    from benchmarks._models import mlp

    model = mlp(seed=0)
    in_group = "WORLD_SIZE" in os.environ
    if not in_group:
        loader = DataLoader(TensorDataset(*tensors(folder)), GLOBAL_BATCH)
    else:
        if not dist.is_initialized():  # Ray Train has done it
            dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
        loader = loader_of(folder)
    first_step = 0.0

    def batches() -> Any:
        nonlocal first_step
        for batch in loader:
            yield batch
            first_step = first_step or time.time()

    seconds = train(model, epochs, batches)
    weights = getattr(model, "module", model).state_dict()
    del model  # freed after the group, it can hang (docs/upstream.md)
    if in_group and dist.get_rank() > 0:
        return None
    path = weights_of(folder, way)
    path.parent.mkdir(exist_ok=True)
    torch.save(weights, path)
    return {"first step at": first_step, "epochs": seconds}


def torchrun(*work: Any) -> dict[str, Any] | None:
    import torch.distributed as dist

    try:
        return measured(*work)
    finally:
        dist.destroy_process_group()


def ray_train(*work: Any) -> dict[str, Any]:
    from benchmarks._ray import fit
    from labkit.local import cluster

    with cluster.start():
        return fit(lambda _: measured(*work), {})


def on_spark(master: str, *work: Any) -> dict[str, Any] | None:
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    from labkit.local import spark

    spark.prepare()
    session = SparkSession.builder.master(master).config("spark.cores.max", 2).getOrCreate()
    try:
        is_local = master.startswith("local[")
        return TorchDistributor(num_processes=2, local_mode=is_local, use_gpu=False).run(torchrun, *work)
    finally:
        session.stop()


WAYS = {
    "one process": measured,
    "torchrun": torchrun,
    "Ray Train": ray_train,
    "TorchDistributor, local mode": partial(on_spark, "local[2]"),
    "TorchDistributor, executors": partial(on_spark, "local-cluster[2,1,1024]"),
}

if __name__ == "__main__":
    # By the module's own name, so that a rank imports its function and doesn't get `__main__`.
    from benchmarks._engines import WAYS as ways

    way, folder, epochs = sys.argv[1:]
    seen = ways[way](way, folder, int(epochs))
    if seen is not None:
        _programs.show(seen)
