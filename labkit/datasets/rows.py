"""Rows of a data set that lie in a store, or a part of them, as arrays. Light: each validation imports it."""

import numpy as np
import pyarrow.fs
import pyarrow.parquet

from labkit.datasets.images import SIDE


def read_rows(
    path: str, filesystem: pyarrow.fs.FileSystem | None = None, *, part: int = 0, parts: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """(images uint8 [n, 28, 28], labels int64 [n]) of the Parquet objects at `path`.

    Args:
        part, parts: of all rows, those at the places part, part + parts, part + 2 · parts, …: each row is in
            exactly one part. (A shard of `ray.train.get_dataset_shard` will not do for a mean: Ray drops
            rows until all shards are equally long.)
    """
    table = pyarrow.parquet.read_table(path, filesystem=filesystem).combine_chunks()
    images = table["image"].chunk(0).storage.flatten().to_numpy().reshape(-1, SIDE, SIDE)
    return images[part::parts].copy(), table["label"].to_numpy()[part::parts].copy()
