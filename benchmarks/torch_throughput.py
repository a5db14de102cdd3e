"""Rows per second of a run: Ray Data in two ways, a DataLoader in Ray Train, torchrun, one process.

    .venv/bin/python -m benchmarks torch_throughput [--rows 60000] [--repeat 3] [--epochs 4] [--json FILE]

The same rows (rendered digits, uint8, one Parquet file for each worker), the same `mlp` 784-128-64-10,
plain SGD, global batch 128, one thread for each process. Each way is a run of its own; in each round
all come in turn.

- ray data, recipe: what lesson 03 comes to. Rows are read into Ray's object store once, before the training;
  the worker takes its shard from there in large pieces, keeps them, and cuts its batches from them.
- ray data, as asked: each epoch reads the files again, `iter_torch_batches(batch_size=64)`.
- ray loader: Ray Train with a `DataLoader` and its `DistributedSampler`.
- torchrun: the same DataLoader in torchrun, without Ray.
- one process: tensors in memory, batch 128, two threads. No way of distributing so small a model reaches
  it.

First epoch: from the moment when the loop asks for its first batch, with all that Ray Data has to start
then. What a way reads before (the DataLoaders and `one process` all rows, the recipe, too) counts in
"whole": from the start of reading to the end of `fit()`, or of the program. Later epochs: their median. The
last line is ``torch_throughput: ratio=…``, that of the later epochs of the recipe against torchrun.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import _throughput
from benchmarks._paired import Found
from labkit.local import cluster
from labkit.settings import Settings

_PIECE = 8192  # rows in a large piece


def epochs_of(model: Any, epochs: int, feed: Callable[[], Any]) -> list[float]:
    """Train, and return the seconds of each epoch. `feed()` gives the (x uint8, y) batches of one."""
    import torch

    from benchmarks._models import to_input

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seconds = []
    for _ in range(epochs):
        began = time.perf_counter()
        for x, y in feed():
            loss = torch.nn.functional.cross_entropy(model(to_input(x)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds.append(time.perf_counter() - began)
    return seconds


def tensors(folder: str) -> tuple[Any, Any]:
    """All rows as (uint8 [n, 28, 28], int64 [n])."""
    import torch

    from course.datasets import read_rows

    images, labels = read_rows(folder)
    return torch.from_numpy(images), torch.from_numpy(labels)


def loader_of(folder: str) -> Any:
    """A DataLoader of this rank's part."""
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    rows = TensorDataset(*tensors(folder))
    sampler = DistributedSampler(rows, shuffle=False)
    return DataLoader(rows, batch_size=_throughput.GLOBAL_BATCH // sampler.num_replicas, sampler=sampler)


def cut(pieces: Any, size: int) -> Any:
    """Batches of `size` rows from large ones."""
    for piece in pieces:
        yield from zip(piece["image"].split(size), piece["label"].split(size), strict=True)


def ray_loop(config: dict[str, Any]) -> None:
    """The training loop of each worker; the seconds of its epochs go into a file."""
    import ray.train
    from ray.train.torch import prepare_model

    from benchmarks._models import mlp

    feed, size = config["feed"], _throughput.GLOBAL_BATCH // ray.train.get_context().get_world_size()
    model = prepare_model(mlp(seed=0))
    if feed == "loader":
        loader = loader_of(config["rows"])
        batches = lambda: loader  # noqa: E731
    else:
        shard = ray.train.get_dataset_shard("train")
        kept: list[Any] = []

        def batches() -> Any:
            if feed == "asked":
                return cut(shard.iter_torch_batches(batch_size=size), size)
            kept[:] = kept or shard.iter_torch_batches(batch_size=_PIECE)
            return cut(kept, size)

    seconds = epochs_of(model, config["epochs"], batches)
    if ray.train.get_context().get_world_rank() == 0:
        Path(config["told"]).write_text(json.dumps(seconds))
    ray.train.report({"epochs": len(seconds)})


def in_ray(feed: str, folder: str, options: Any, workers: int = _throughput.WORKERS) -> dict[str, float]:
    """A run in Ray."""
    import ray.data
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    with tempfile.TemporaryDirectory() as place:
        told = f"{place}/seconds.json"
        config = {"feed": feed, "rows": folder, "epochs": options.epochs, "told": told}
        began = time.perf_counter()
        ray.data.DataContext.get_current().use_datasource_v2 = False  # lesson 02: with few files it is slower
        data = {} if feed == "loader" else {"train": ray.data.read_parquet(folder)}
        if feed == "recipe":
            data = {"train": data["train"].materialize()}
        TorchTrainer(
            ray_loop,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=workers),
            datasets=data,
            run_config=RunConfig(storage_path=f"{place}/runs"),
        ).fit()
        return _throughput.figures(json.loads(Path(told).read_text()), time.perf_counter() - began)


def alone(folder: str, epochs: int) -> list[float]:
    """What the process of `one process` does."""
    import torch

    from benchmarks._models import mlp

    torch.set_num_threads(2)
    x, y = tensors(folder)
    return epochs_of(
        mlp(seed=0),
        epochs,
        lambda: zip(x.split(_throughput.GLOBAL_BATCH), y.split(_throughput.GLOBAL_BATCH), strict=True),
    )


def torchrun(folder: str, epochs: int) -> list[float] | None:
    """What each process of torchrun does."""
    import torch
    import torch.distributed as dist

    from benchmarks._models import mlp

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(mlp(seed=0))
    loader = loader_of(folder)
    seconds = epochs_of(model, epochs, lambda: loader)
    rank = dist.get_rank()
    dist.destroy_process_group()
    return seconds if rank == 0 else None


_PROGRAM = """
import json, sys
from benchmarks import torch_throughput as here
seconds = getattr(here, sys.argv[1])(sys.argv[2], int(sys.argv[3]))
if seconds:
    print("seen", json.dumps(seconds), flush=True)
"""


def as_program(way: str, folder: str, epochs: int, workers: int = _throughput.WORKERS) -> dict[str, float]:
    """A run in processes of its own; `workers` of them in torchrun."""
    environment = _throughput.program_environment()
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
        program.write(_PROGRAM)
        program.flush()
        run = [program.name, way, folder, str(epochs)]
        if way == "torchrun":
            run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}", *run]
        began = time.perf_counter()
        done = subprocess.run([sys.executable, *run], env=environment, capture_output=True, text=True)
        whole = time.perf_counter() - began
    seconds = _throughput.told_by(done.stdout)
    if done.returncode or seconds is None:
        raise SystemExit(f"{way} failed:\n{done.stdout}\n{done.stderr}")
    return _throughput.figures(seconds, whole)


def main() -> None:
    options = _throughput.arguments(__doc__).parse_args()
    os.environ["LABKIT_PANEL"] = "none"
    settings = Settings.from_env()
    folder = _throughput.rows_folder(settings, options.rows)
    found = Found("torch_throughput", ours="ray data, recipe")
    with cluster.start(settings=settings):
        from labkit.data import quiet

        quiet()
        ways: dict[str, Callable[[], dict[str, float]]] = {
            "ray data, recipe": lambda: in_ray("recipe", folder, options),
            "ray data, as asked": lambda: in_ray("asked", folder, options),
            "ray loader": lambda: in_ray("loader", folder, options),
            "torchrun": lambda: as_program("torchrun", folder, options.epochs),
            "one process": lambda: as_program("alone", folder, options.epochs),
        }
        _throughput.compare(found, ways, "torchrun", options)


if __name__ == "__main__":
    main()
