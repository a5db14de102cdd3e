"""Rows per second of a run: Ray Data in two ways, a DataLoader in Ray Train, torchrun, one process.

    .venv/bin/python -m benchmarks torch_throughput [--rows 60000] [--repeat 3] [--epochs 4] [--json FILE]

The same rows (digits, uint8, one Parquet file for each worker), the same `mlp` 784-128-64-10,
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
"whole": from the start of reading to the end of `fit()`, and all of the program in torchrun. Later epochs:
their median. The last line is ``torch_throughput: ratio=…``, that of the later epochs of the recipe against
torchrun.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks import _programs
from benchmarks._digits import digits
from benchmarks._paired import Results, measure, parser
from benchmarks._ray import WORKERS, fit
from labkit.local import cluster
from labkit.settings import Settings

GLOBAL_BATCH = 128
_PIECE = 8192  # rows in a large piece


def rows_folder(home: Path, rows: int) -> str:
    """Return a folder with the digits, one Parquet file for each worker; they are written once."""
    folder = home / "benchmarks" / f"digits-{rows}"
    paths = [folder / f"part-{rank:05}.parquet" for rank in range(WORKERS)]
    if not all(path.exists() for path in paths):
        data = digits(rows)
        for rank, path in enumerate(paths):
            data[rank * rows // WORKERS : (rank + 1) * rows // WORKERS].to_parquet(path)
    return str(folder)


def train(model: Any, epochs: int, feed: Callable[[], Iterable[tuple[Any, Any]]]) -> list[float]:
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
    """Read all rows as (uint8 [n, 28, 28], int64 [n])."""
    import torch

    from course.datasets import read_rows

    images, labels = read_rows(folder)
    return torch.from_numpy(images), torch.from_numpy(labels)


def loader_of(folder: str) -> Any:
    """Return a DataLoader of this rank's part."""
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    rows = TensorDataset(*tensors(folder))
    sampler = DistributedSampler(rows, shuffle=False)
    return DataLoader(rows, batch_size=GLOBAL_BATCH // WORKERS, sampler=sampler)


def cut(pieces: Iterable[Any]) -> Iterable[tuple[Any, Any]]:
    """Yield the batches of a worker from large pieces."""
    size = GLOBAL_BATCH // WORKERS
    for piece in pieces:
        yield from zip(piece["image"].split(size), piece["label"].split(size), strict=True)


def ray_loop(config: dict[str, Any]) -> list[float]:
    """Train in a worker, and return the seconds of its epochs."""
    import ray.train
    from ray.train.torch import prepare_model

    from benchmarks._models import mlp

    model = prepare_model(mlp(seed=0))
    if config["feed"] == "loader":
        loader = loader_of(config["rows"])
        return train(model, config["epochs"], lambda: loader)
    shard = ray.train.get_dataset_shard("train")
    pieces: list[Any] = []

    def kept() -> Iterable[tuple[Any, Any]]:
        if not pieces:
            pieces.extend(shard.iter_torch_batches(batch_size=_PIECE))
        return cut(pieces)

    def fetched() -> Iterable[tuple[Any, Any]]:
        return cut(shard.iter_torch_batches(batch_size=GLOBAL_BATCH // WORKERS))

    return train(model, config["epochs"], kept if config["feed"] == "recipe" else fetched)


def in_ray(feed: str, folder: str, epochs: int) -> dict[str, float]:
    """Measure a run in Ray."""
    import ray.data

    began = time.perf_counter()
    ray.data.DataContext.get_current().use_datasource_v2 = False  # lesson 02: with few files it is slower
    data = {}
    if feed != "loader":
        data["train"] = ray.data.read_parquet(folder)
    if feed == "recipe":
        data["train"] = data["train"].materialize()
    seconds = fit(ray_loop, {"feed": feed, "rows": folder, "epochs": epochs}, data)
    return figures(seconds, time.perf_counter() - began)


def figures(seconds: list[float], whole: float) -> dict[str, float]:
    """Return the figures of a run: the seconds of its epochs, and of all that it takes."""
    return {"first epoch": seconds[0], "later epochs": statistics.median(seconds[1:]), "whole": whole}


def alone(folder: str, epochs: int) -> dict[str, float]:
    """Measure a run in this process."""
    import torch

    from benchmarks._models import mlp

    torch.set_num_threads(2)
    began = time.perf_counter()
    x, y = tensors(folder)

    def batches() -> Iterable[tuple[Any, Any]]:
        return zip(x.split(GLOBAL_BATCH), y.split(GLOBAL_BATCH), strict=True)

    seconds = train(mlp(seed=0), epochs, batches)
    return figures(seconds, time.perf_counter() - began)


def in_torchrun(folder: str, epochs: int) -> dict[str, float]:
    """Measure a run in torchrun, by a program that `benchmarks.engines` measures, too."""
    began = time.perf_counter()
    command = ["-m", "benchmarks._engines", "torchrun", folder, str(epochs)]
    (seen,) = _programs.run([*_programs.TORCHRUN, *command])
    return figures(seen["epochs"], time.perf_counter() - began)


def main() -> None:
    options = parser(__doc__, repeat=3, rows=60_000)
    options.add_argument("--epochs", type=int, default=4)
    options = options.parse_args()
    os.environ["LABKIT_PANEL"] = "none"
    folder = rows_folder(Settings.from_env().home, options.rows)
    results = Results("torch_throughput", ours="ray data, recipe")
    ways = {
        "ray data, recipe": lambda: in_ray("recipe", folder, options.epochs),
        "ray data, as asked": lambda: in_ray("asked", folder, options.epochs),
        "ray loader": lambda: in_ray("loader", folder, options.epochs),
        "torchrun": lambda: in_torchrun(folder, options.epochs),
        "one process": lambda: alone(folder, options.epochs),
    }
    with cluster.start():
        measure(ways, results, options.repeat)
    ratio = results.ratio("later epochs", "torchrun")
    results.finish(ratio, json=options.json, rows=options.rows)


if __name__ == "__main__":
    main()
