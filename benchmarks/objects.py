"""Reading many small objects from the store: Ray Data against a bare pool of threads with the same client.

    .venv/bin/python -m benchmarks.objects [--objects 4000] [--rounds 5]

The same PNG objects, the same server, the same client (`store.filesystem`), the same decoding. "Pool" is 16
threads in this process. "Tasks" is lesson 02's fetch with 16 threads in `map_batches`, "read_images" is Ray
Data's own reader. In each round all three are measured, in turn; Ray's workers run already. The figure is
the median over the rounds of objects per second, and of the ratio to the pool of the same round.
"""

import argparse
import io
import itertools
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from labkit import cluster, datasets, storage
from labkit.data_progress import quiet
from labkit.settings import Settings
from labkit.uploads import upload

_THREADS = 16
_BLOCKS = 8


def ways(store: storage.Store, path: str, names: list[str]) -> dict[str, Callable[[], int]]:
    """What is compared: each reads and decodes all objects, and returns how many there were."""
    import PIL.Image
    import ray.data

    filesystem = store.filesystem

    def fetch(name: str) -> np.ndarray:
        with filesystem.open_input_stream(name) as stream:
            return np.asarray(PIL.Image.open(io.BytesIO(stream.read())).convert("L"))

    def fetch_many(batch: dict[str, Any]) -> dict[str, np.ndarray]:
        with ThreadPoolExecutor(_THREADS) as pool:
            return {"image": np.stack(list(pool.map(fetch, batch["item"])))}

    def pool() -> int:
        return len(fetch_many({"item": names})["image"])

    def tasks() -> int:
        named = ray.data.from_items(names, override_num_blocks=_BLOCKS)
        return named.map_batches(fetch_many, batch_size=None).materialize().count()

    def read_images() -> int:
        return ray.data.read_images(path, filesystem=filesystem, mode="L").materialize().count()

    return {"pool": pool, "tasks": tasks, "read_images": read_images}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--objects", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    settings = Settings.from_env()
    images = datasets.rendered(options.objects, seed=0)
    with cluster.start(settings=settings), storage.start(settings=settings) as store:
        quiet()
        sent = upload(images, store, "benchmark-objects")
        print(f"upload: {sent!r}")
        names = [name for name in store.files.find(sent.path) if name.endswith(".png")]
        rates: dict[str, list[float]] = {}
        compared = ways(store, sent.path, names)
        orders = itertools.cycle(itertools.permutations(compared))
        for number, order in zip(range(-1, options.rounds), orders, strict=False):
            for way in order:
                began = time.perf_counter()
                found = compared[way]()
                rate = found / (time.perf_counter() - began)
                if found != len(images):
                    raise SystemExit(f"{way} read {found} of {len(images)} objects")
                if number >= 0:  # the first round starts Ray's workers
                    rates.setdefault(way, []).append(rate)
        for way, found in rates.items():
            ratio = statistics.median(one / other for one, other in zip(found, rates["pool"], strict=True))
            print(f"{way:12} {statistics.median(found):6,.0f} objects/s, {ratio:.2f} × the pool of its round")
        store.files.rm("benchmark-objects", recursive=True)


if __name__ == "__main__":
    main()
