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
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import _throughput
from benchmarks._digits import rendered, upload
from benchmarks._paired import Found, measure
from labkit.local import cluster, storage
from labkit.settings import Settings

_SIZE = 32  # rows of a worker in a step


def image_of(files: Any, name: str, away: float) -> tuple[Any, int]:
    """The (image, label) of one object in a store that is `away` seconds away."""
    import numpy as np
    import PIL.Image

    time.sleep(away)
    with files.open_input_stream(name) as stream:
        image = np.asarray(PIL.Image.open(io.BytesIO(stream.read())), np.float32)
    return image / 255, int(name.split("/")[-2])


def fetch(batch: dict[str, Any], *, files: Any, away: float) -> dict[str, Any]:
    """What a data task does with a batch of names."""
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
    """The plan that fetches these objects."""
    import ray.data

    named = ray.data.from_items(names, override_num_blocks=max(len(names) // 90, 1))
    return named.map_batches(fetch, fn_kwargs={"files": files, "away": away}, num_cpus=0.25)


def ray_loop(config: dict[str, Any]) -> None:
    """The training loop of each worker; the seconds go into a file."""
    import numpy as np
    import ray.data
    import ray.train
    from ray.train.torch import prepare_model

    ray.data.DataContext.get_current().execution_options.preserve_order = True
    rank, names = ray.train.get_context().get_world_rank(), config["names"]

    def batches(epoch: int) -> Iterable[tuple[Any, Any]]:
        if config["shuffled"]:
            order = np.random.default_rng((7, epoch)).permutation(names).tolist()
            rows = plan_of(order[rank :: _throughput.WORKERS], config["files"], config["away"])
        else:
            rows = ray.train.get_dataset_shard("train")
        for batch in rows.iter_torch_batches(batch_size=_SIZE):
            yield batch["x"], batch["y"]

    seconds = train(config["epochs"], batches, prepare_model)
    if rank == 0:
        Path(config["told"]).write_text(json.dumps(seconds))


def in_ray(shuffled: bool, names: list[str], files: Any, away: float, epochs: int) -> dict[str, float]:
    """A run in Ray."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    with tempfile.TemporaryDirectory() as place:
        told = f"{place}/seconds.json"
        config = {"names": names, "files": files, "epochs": epochs, "told": told}
        config |= {"shuffled": shuffled, "away": away}
        TorchTrainer(
            ray_loop,
            train_loop_config=config,
            datasets={} if shuffled else {"train": plan_of(names, files, away)},
            scaling_config=ScalingConfig(num_workers=_throughput.WORKERS),
            run_config=RunConfig(storage_path=f"{place}/runs"),
        ).fit()
        return {"all epochs": json.loads(Path(told).read_text())}


class Images:
    """A map-style data set of the store's objects; each process that reads has a client of its own."""

    def __init__(self, names: list[str], client: dict[str, str], away: float) -> None:
        self._names, self._client, self._away, self._files = names, client, away, None

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        from pyarrow.fs import S3FileSystem

        if self._files is None:
            self._files = S3FileSystem(**self._client)
        return image_of(self._files, self._names[row], self._away)


def torchrun(told: str, epochs: int, loaders: int) -> float | None:
    """What each process of torchrun does."""
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler

    about = json.loads(Path(told).read_text())
    dist.init_process_group("gloo")

    images = Images(about["names"], about["client"], about["away"])
    sampler = DistributedSampler(images, shuffle=True, drop_last=True)
    options = {"multiprocessing_context": "spawn", "persistent_workers": True} if loaders else {}
    loader = DataLoader(images, batch_size=_SIZE, sampler=sampler, num_workers=loaders, **options)

    def batches(epoch: int) -> Iterable[tuple[Any, Any]]:
        sampler.set_epoch(epoch)
        return loader

    seconds = train(epochs, batches, torch.nn.parallel.DistributedDataParallel)
    rank = dist.get_rank()
    dist.destroy_process_group()
    return seconds if rank == 0 else None


_PROGRAM = """
import json, sys
from benchmarks import streams
if __name__ == "__main__":
    seconds = streams.torchrun(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    if seconds:
        print("seen", json.dumps([seconds]), flush=True)
"""


def in_torchrun(
    names: list[str], client: dict[str, str], away: float, epochs: int, loaders: int
) -> dict[str, float]:
    """A run of two processes in torchrun."""
    with tempfile.TemporaryDirectory() as place:
        told, program = Path(place, "about.json"), Path(place, "program.py")
        told.touch(mode=0o600)  # it has the store's keys
        told.write_text(json.dumps({"names": names, "client": client, "away": away}))
        program.write_text(_PROGRAM)
        run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={_throughput.WORKERS}"]
        command = [sys.executable, *run, str(program), str(told), str(epochs), str(loaders)]
        environment = _throughput.program_environment()
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    seconds = _throughput.told_by(done.stdout)
    if done.returncode or seconds is None:
        raise SystemExit(f"torchrun failed:\n{done.stdout}\n{done.stderr}")
    return {"all epochs": seconds[0]}


def main() -> None:
    parsing = _throughput.arguments(__doc__)
    parsing.set_defaults(rows=1437, epochs=3)
    parsing.add_argument("--away", type=float, default=0, help="milliseconds that each request takes longer")
    options = parsing.parse_args()
    away = options.away / 1000
    os.environ["LABKIT_PANEL"] = "none"
    settings = Settings.from_env()
    found = Found("streams", ours="shuffled")
    with cluster.start(settings=settings), storage.start(settings=settings) as store:
        from pyarrow.fs import FileSelector, S3FileSystem

        data, prefix = rendered(options.rows), f"streams-{options.rows}"
        upload(data, store, f"benchmarks/{prefix}")
        access_key, secret_key = store.read_keys()
        client = {"endpoint_override": store.endpoint, "access_key": access_key, "secret_key": secret_key}
        files = S3FileSystem(**client)
        listed = files.get_file_info(FileSelector(f"benchmarks/{prefix}", recursive=True))
        names = sorted(one.path for one in listed if one.is_file)
        names = names[: len(names) // (2 * _SIZE) * 2 * _SIZE]
        ways: dict[str, Callable[[], dict[str, float]]] = {
            "shuffled": lambda: in_ray(True, names, files, away, options.epochs),
            "not shuffled": lambda: in_ray(False, names, files, away, options.epochs),
            "torchrun": lambda: in_torchrun(names, client, away, options.epochs, 0),
            "torchrun, 1 loader": lambda: in_torchrun(names, client, away, options.epochs, 1),
        }
        ways = {way: do for way, do in ways.items() if not options.ways or way in options.ways}
        in_ray(True, names[:256], files, away, 1)  # the first run starts processes that the others find
        measure(ways, found, options.repeat)
        for way in itertools.islice(ways, 1, None):
            print(f"rows/s of the shuffled stream over {way}: {1 / found.ratio('all epochs', way):.2f}")
        rows = len(names) * options.epochs
        found.finish(found.ratio("all epochs", "torchrun"), json=options.json, rows=rows)


if __name__ == "__main__":
    main()
