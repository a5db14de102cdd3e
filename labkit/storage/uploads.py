"""A data set into an object store: one PNG for each image, or Parquet files with many rows each.

    upload(train, store, "digits")           # digits/digits/train/7/00042.png and 1,436 more
    upload_shards(train, store, "digits", rows_per_shard=256)

Both return the path ``bucket/prefix``. If an upload was interrupted, call it again.
"""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

from labkit.errors import LabError, expect_int
from labkit.storage.store import Store

if TYPE_CHECKING:  # a worker that opens the store's file system doesn't import numpy for it
    from labkit.datasets import Dataset

_BATCH = 64  # objects in memory and on their way at once


def upload(dataset: "Dataset", store: Store, bucket: str, *, prefix: str | None = None) -> str:
    """Send each image as one PNG object, ``LABEL/ROW.png``: a reader gets the label without another request.

    The bucket is made if it does not exist. The prefix of the keys is ``NAME/SPLIT`` of the data set unless
    given; no other objects may be below it.
    """
    from labkit.display.figures import png

    _check(dataset, store)
    rows = {f"{label}/{row:05}.png": row for row, label in enumerate(dataset.labels.tolist())}
    path = f"{bucket}/{prefix or f'{dataset.name}/{dataset.split}'}"
    return _send(store, path, rows, lambda row: png(dataset.images[row]))


def upload_shards(
    dataset: "Dataset", store: Store, bucket: str, *, rows_per_shard: int = 512, prefix: str | None = None
) -> str:
    """Send the same rows as Parquet objects of `rows_per_shard` rows each; prefix ``NAME/SPLIT-shards``."""
    import pyarrow.parquet

    from labkit.datasets.images import PARQUET_OPTIONS

    _check(dataset, store)
    expect_int("upload a data set", "rows_per_shard", rows_per_shard)
    path = f"{bucket}/{prefix or f'{dataset.name}/{dataset.split}-shards'}"
    starts = enumerate(range(0, len(dataset), rows_per_shard))

    def body(first: int) -> bytes:
        stream = io.BytesIO()
        table = dataset[first : first + rows_per_shard].to_arrow()
        pyarrow.parquet.write_table(table, stream, **PARQUET_OPTIONS)
        return stream.getvalue()

    return _send(store, path, {f"part-{number:05}.parquet": first for number, first in starts}, body)


def _send(store: Store, path: str, rows: dict[str, int], body: Callable[[int], bytes]) -> str:
    """Send an object for each key in `rows`, below `path`; it consists of ``body(row)``."""
    from labkit.display.progress import Waiting

    with store.explained(f"upload to {path}"), Waiting(f"uploading to {path}", unit="objects") as line:
        store.bucket(path.partition("/")[0])
        if strangers := sorted(set(store.files.find(path)) - {f"{path}/{key}" for key in rows}):
            fact = f"{len(strangers):,} other objects are there too, {strangers[0]} for one"
            fix = f'store.files.rm("{path}", recursive=True), or another prefix=…'
            raise LabError(f"upload to {path}", fact, fix)
        keys = list(rows)
        for first in range(0, len(keys), _BATCH):
            batch = keys[first : first + _BATCH]
            # With a smaller batch_size, fsspec warns of coroutines that it leaves behind after an error.
            store.files.pipe({f"{path}/{key}": body(rows[key]) for key in batch}, batch_size=_BATCH)
            line(first + len(batch), len(keys))
    return path


def _check(dataset: "Dataset", store: Store) -> None:
    from labkit.datasets import Dataset

    if not isinstance(dataset, Dataset) or not len(dataset) or not isinstance(store, Store):
        fact = f"it takes a Dataset of images with rows and a Store, not {dataset!r:.60} and {store!r:.60}"
        fix = 'for a table: pyarrow.parquet.write_table(table, "bucket/a", filesystem=store.filesystem)'
        raise LabError("upload a data set", fact, fix)
