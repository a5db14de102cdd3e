"""Rows per second of a stream of images from a store: shuffled by names, not shuffled, and a DataLoader.

    .venv/bin/python -m benchmarks streams [--rows 1437] [--repeat 3] [--epochs 3] [--away 0] [--json FILE]

Each way trains the same linear model on the same PNG objects of the lab's S3 server, fetched by the same
function, with two workers and 32 rows each in a step. In each round all come in turn.

- shuffled: lesson 03c's loop at the row. Names are permuted by (seed, epoch), and each worker executes a plan
  of its own part.
- not shuffled: one plan for both workers, `datasets=` and `iter_torch_batches`, in the order of the names.
- torchrun: a map-style data set whose `__getitem__` fetches, and `DistributedSampler(shuffle=True)`.
- torchrun, 1 loader: the same with `DataLoader(num_workers=1)`, one process more for each rank.

In Ray's ways each data task asks for a quarter of a CPU and fetches its rows in eight threads. Seconds are
those of all epochs, from asking for the first batch of the first one to the end of the last. The last line is
``streams: ratio=…``, seconds of the shuffled stream over those of torchrun.
"""

import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import _programs
from benchmarks._digits import digits, upload
from benchmarks._paired import Results, measure, parser
from benchmarks._ray import WORKERS, fit
from labkit.local import cluster, storage

_BATCH = 32  # rows of a worker in a step


def image_of(files: Any, name: str, away: float) -> tuple[Any, int]:
    """Fetch the (image, label) of one object from a store that answers `away` seconds later."""
    import numpy as np
    import PIL.Image

    time.sleep(away)
    with files.open_input_stream(name) as stream:
        image = np.asarray(PIL.Image.open(io.BytesIO(stream.read())), np.float32)
    return image / 255, int(name.split("/")[-2])


def fetch(batch: dict[str, Any], *, files: Any, away: float) -> dict[str, Any]:
    """Fetch a batch of names, in a data task."""
    import numpy as np

    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda name: image_of(files, name, away), batch["item"]))
    images, labels = zip(*rows, strict=True)
    return {"x": np.stack(images), "y": np.array(labels)}


def train(epochs: int, feed: Callable[[int], Iterable[tuple[Any, Any]]], wrap: Callable) -> float:
    """Train, and return the seconds; `feed(epoch)` yields the batches of one epoch."""
    import torch

    torch.manual_seed(0)
    model = wrap(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    began = time.perf_counter()
    for epoch in range(epochs):
        for x, y in feed(epoch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return time.perf_counter() - began


def plan_of(names: list[str], files: Any, away: float) -> Any:
    """Return a dataset that fetches these objects when it is executed."""
    import ray.data

    named = ray.data.from_items(names, override_num_blocks=max(len(names) // 90, 1))
    return named.map_batches(fetch, fn_kwargs={"files": files, "away": away}, num_cpus=0.25)


def ray_loop(config: dict[str, Any]) -> float:
    """Train in a worker, and return the seconds."""
    import numpy as np
    import ray.data
    import ray.train
    from ray.train.torch import prepare_model

    ray.data.DataContext.get_current().execution_options.preserve_order = True
    rank = ray.train.get_context().get_world_rank()
    names = config["names"]

    def batches(epoch: int) -> Iterable[tuple[Any, Any]]:
        if config["shuffled"]:
            order = np.random.default_rng((7, epoch)).permutation(names).tolist()
            rows = plan_of(order[rank::WORKERS], config["files"], config["away"])
        else:
            rows = ray.train.get_dataset_shard("train")
        for batch in rows.iter_torch_batches(batch_size=_BATCH):
            yield batch["x"], batch["y"]

    return train(config["epochs"], batches, prepare_model)


def in_ray(shuffled: bool, names: list[str], files: Any, away: float, epochs: int) -> dict[str, float]:
    """Measure a run in Ray."""
    config = {"names": names, "files": files, "epochs": epochs, "shuffled": shuffled, "away": away}
    data = {} if shuffled else {"train": plan_of(names, files, away)}
    return {"all epochs": fit(ray_loop, config, data)}


class Images:
    """A map-style data set of the store's objects."""

    def __init__(self, names: list[str], client: dict[str, str], away: float) -> None:
        from pyarrow.fs import S3FileSystem

        self._names = names
        self._files = S3FileSystem(**client)
        self._away = away

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return image_of(self._files, self._names[row], self._away)


def torchrun() -> None:
    """Train in a process of torchrun; rank 0 prints the seconds."""
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler

    config = json.loads(Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    images = Images(config["names"], config["client"], config["away"])
    sampler = DistributedSampler(images, shuffle=True, drop_last=True)
    options = {}
    if config["loaders"]:
        options = {"multiprocessing_context": "spawn", "persistent_workers": True}
    loader = DataLoader(images, _BATCH, sampler=sampler, num_workers=config["loaders"], **options)

    def batches(epoch: int) -> Iterable[tuple[Any, Any]]:
        sampler.set_epoch(epoch)
        return loader

    seconds = train(config["epochs"], batches, torch.nn.parallel.DistributedDataParallel)
    if dist.get_rank() == 0:
        _programs.show(seconds)
    dist.destroy_process_group()


def in_torchrun(**config: Any) -> dict[str, float]:
    """Measure a run of two processes in torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.json")
        file.touch(mode=0o600)  # it has the store's keys
        file.write_text(json.dumps(config))
        code = "from benchmarks import streams; streams.torchrun()"
        (seconds,) = _programs.run_in_torchrun(code, str(file))
    return {"all epochs": seconds}


def main() -> None:
    options = parser(__doc__, repeat=3, rows=1437)
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--away", type=float, default=0, help="milliseconds that each request takes longer")
    options = options.parse_args()
    os.environ["LABKIT_PANEL"] = "none"
    results = Results("streams", ours="shuffled")
    with cluster.start(), storage.start() as store:
        from pyarrow.fs import S3FileSystem

        names = upload(digits(options.rows), store, f"benchmarks/streams-{options.rows}")
        access_key, secret_key = store.read_keys()
        client = {"endpoint_override": store.endpoint, "access_key": access_key, "secret_key": secret_key}
        files = S3FileSystem(**client)
        step = WORKERS * _BATCH
        names = names[: len(names) // step * step]
        away = options.away / 1000
        common = {"names": names, "away": away, "epochs": options.epochs}
        ways = {
            "shuffled": lambda: in_ray(True, files=files, **common),
            "not shuffled": lambda: in_ray(False, files=files, **common),
            "torchrun": lambda: in_torchrun(client=client, loaders=0, **common),
            "torchrun, 1 loader": lambda: in_torchrun(client=client, loaders=1, **common),
        }
        in_ray(True, names[:256], files, away, 1)  # the first run starts processes that the others find
        measure(ways, results, options.repeat)
    rows = len(names) * options.epochs
    results.finish(results.ratio("all epochs", "torchrun"), json=options.json, rows=rows)


if __name__ == "__main__":
    main()
