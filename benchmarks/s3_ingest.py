"""Reading many small objects from the store: Ray Data against a bare pool of threads with the same client.

    .venv/bin/python -m benchmarks s3_ingest [--rows 4000] [--repeat 5] [--json FILE]

The same PNG objects, the same server, the same client (`store.filesystem`), the same decoding. "Pool" is 16
threads in this process. "Tasks" is lesson 02's fetch with 16 threads in `map_batches`, "read_images" is Ray
Data's own reader. In each round all three are measured, in turn; Ray's workers run already. The
last line is ``s3_ingest: ratio=…``, seconds of lesson 02's tasks over those of the pool in the same round.
"""

import io
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks._paired import Found, measure, parser
from labkit import cluster, datasets, storage
from labkit.data import quiet
from labkit.settings import Settings
from labkit.storage import upload

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
    options = parser(__doc__, repeat=5, rows=4000).parse_args()
    settings = Settings.from_env()
    images = datasets.rendered(options.rows, seed=0)
    found = Found("s3_ingest", ours="tasks")
    with cluster.start(settings=settings), storage.start(settings=settings) as store:
        quiet()
        sent = upload(images, store, "benchmark-objects")
        print(f"upload: {sent!r}")
        names = [name for name in store.files.find(sent.path) if name.endswith(".png")]

        def timed(way: str, read: Callable[[], int]) -> dict[str, float]:
            began = time.perf_counter()
            count = read()
            if count != len(images):
                raise SystemExit(f"{way} read {count} of {len(images)} objects")
            return {"all objects": time.perf_counter() - began}

        compared = {
            way: lambda way=way, read=read: timed(way, read)
            for way, read in ways(store, sent.path, names).items()
        }
        for once in compared.values():  # starts Ray's workers
            once()
        measure(compared, found, options.repeat)
        store.files.rm("benchmark-objects", recursive=True)
    found.finish(found.ratio("all objects", "pool"), json=options.json, rows=options.rows)


if __name__ == "__main__":
    main()
