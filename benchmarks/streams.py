"""Rows per second of a stream of images from a store: shuffled by names, not shuffled, and a DataLoader.

    .venv/bin/python -m benchmarks streams [--rows 1437] [--repeat 3] [--epochs 3] [--json FILE]

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
from benchmarks._paired import Found, measure
from labkit import cluster, datasets, storage
from labkit.settings import Settings

_SIZE = 32  # rows of a worker in a step


def image_of(files: Any, name: str) -> tuple[Any, int]:
    """The (image, label) of one object."""
    import numpy as np
    import PIL.Image

    with files.open_input_stream(name) as stream:
        image = np.asarray(PIL.Image.open(io.BytesIO(stream.read())), np.float32)
    return image / 255, int(name.split("/")[-2])


def fetch(batch: dict[str, Any], *, files: Any) -> dict[str, Any]:
    """What a data task does with a batch of names."""
    import numpy as np

    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda name: image_of(files, name), batch["item"]))
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


def plan_of(names: list[str], files: Any) -> Any:
    """The plan that fetches these objects."""
    import ray.data

    named = ray.data.from_items(names, override_num_blocks=max(len(names) // 90, 1))
    return named.map_batches(fetch, fn_kwargs={"files": files}, num_cpus=0.25)


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
            rows = plan_of(order[rank :: _throughput.WORKERS], config["files"])
        else:
            rows = ray.train.get_dataset_shard("train")
        for batch in rows.iter_torch_batches(batch_size=_SIZE):
            yield batch["x"], batch["y"]

    seconds = train(config["epochs"], batches, prepare_model)
    if rank == 0:
        Path(config["told"]).write_text(json.dumps(seconds))


def in_ray(shuffled: bool, names: list[str], files: Any, epochs: int) -> dict[str, float]:
    """A run in Ray."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    with tempfile.TemporaryDirectory() as place:
        told = f"{place}/seconds.json"
        config = {"names": names, "files": files, "epochs": epochs, "told": told, "shuffled": shuffled}
        TorchTrainer(
            ray_loop,
            train_loop_config=config,
            datasets={} if shuffled else {"train": plan_of(names, files)},
            scaling_config=ScalingConfig(num_workers=_throughput.WORKERS),
            run_config=RunConfig(storage_path=f"{place}/runs"),
        ).fit()
        return {"all epochs": json.loads(Path(told).read_text())}


def torchrun(told: str, epochs: int, loaders: int) -> float | None:
    """What each process of torchrun does."""
    import torch
    import torch.distributed as dist
    from pyarrow.fs import S3FileSystem
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    about = json.loads(Path(told).read_text())
    dist.init_process_group("gloo")

    class Images(Dataset):
        """The objects of the store; each process that reads has a client of its own."""

        files = None

        def __len__(self) -> int:
            return len(about["names"])

        def __getitem__(self, row: int) -> tuple[Any, int]:
            self.files = self.files or S3FileSystem(**about["client"])
            return image_of(self.files, about["names"][row])

    images = Images()
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


def in_torchrun(names: list[str], client: dict[str, str], epochs: int, loaders: int) -> dict[str, float]:
    """A run of two processes in torchrun."""
    with tempfile.TemporaryDirectory() as place:
        told, program = Path(place, "about.json"), Path(place, "program.py")
        told.touch(mode=0o600)  # it has the store's keys
        told.write_text(json.dumps({"names": names, "client": client}))
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
    options = parsing.parse_args()
    os.environ["LABKIT_PANEL"] = "none"
    settings = Settings.from_env()
    found = Found("streams", ours="shuffled")
    with cluster.start(settings=settings), storage.start(settings=settings) as store:
        from pyarrow.fs import FileSelector, S3FileSystem

        from labkit.data import quiet

        quiet()
        data, prefix = datasets.load("rendered", "train", n=options.rows), f"streams-{options.rows}"
        storage.upload(data, store, "benchmarks", prefix=prefix)
        access_key, secret_key = store.read_keys()
        client = {"endpoint_override": store.endpoint, "access_key": access_key, "secret_key": secret_key}
        files = S3FileSystem(**client)
        listed = files.get_file_info(FileSelector(f"benchmarks/{prefix}", recursive=True))
        names = sorted(one.path for one in listed if one.is_file)
        names = names[: len(names) // (2 * _SIZE) * 2 * _SIZE]
        ways: dict[str, Callable[[], dict[str, float]]] = {
            "shuffled": lambda: in_ray(True, names, files, options.epochs),
            "not shuffled": lambda: in_ray(False, names, files, options.epochs),
            "torchrun": lambda: in_torchrun(names, client, options.epochs, 0),
            "torchrun, 1 loader": lambda: in_torchrun(names, client, options.epochs, 1),
        }
        ways = {way: do for way, do in ways.items() if not options.ways or way in options.ways}
        in_ray(True, names[:256], files, 1)  # the first run starts processes that the others find
        measure(ways, found, options.repeat)
        for way in itertools.islice(ways, 1, None):
            print(f"rows/s of the shuffled stream over {way}: {1 / found.ratio('all epochs', way):.2f}")
        found.finish(found.ratio("all epochs", "torchrun"), json=options.json, rows=options.rows)


if __name__ == "__main__":
    main()
