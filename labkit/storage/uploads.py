"""A data set into an object store: one PNG for each image, or Parquet files with many rows each.

    upload(train, store, "digits")           # digits/digits/train/7/00042.png and 1,436 more
    upload_shards(train, store, "digits", rows_per_shard=256)

The key of an image is ``NAME/SPLIT/LABEL/ROW.png``, so that a reader gets the label without another request.
If an upload was interrupted, call it again.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.errors import LabError, expect_int
from labkit.storage.store import Store

if TYPE_CHECKING:  # a worker that opens the store's file system doesn't import numpy for it
    from labkit.datasets import Dataset

_BATCH = 64  # objects in memory and on their way at once


@dataclass(frozen=True, kw_only=True)
class Uploaded:
    """What an upload did: how many `objects` are below `path`, which is ``bucket/prefix``."""

    path: str
    objects: int


def upload(dataset: "Dataset", store: Store, bucket: str, *, prefix: str | None = None) -> Uploaded:
    """Send each image as one PNG object, many at once.

    Args:
        bucket: is made if it does not exist.
        prefix: of the keys; default: ``NAME/SPLIT`` of the data set.

    Raises:
        LabError: the store failed, or other objects are below the prefix already.
    """
    from labkit.display.images import png

    _check(dataset, store)
    keys = [f"{label}/{row:05}.png" for row, label in enumerate(dataset.labels.tolist())]
    path = f"{bucket}/{prefix or f'{dataset.name}/{dataset.split}'}"
    return _send(store, bucket, path, keys, lambda row: png(dataset.images[row]))


def upload_shards(
    dataset: "Dataset", store: Store, bucket: str, *, rows_per_shard: int = 512, prefix: str | None = None
) -> Uploaded:
    """Send the same rows as Parquet objects of `rows_per_shard` rows each (the last may have fewer).

    Args, Raises: as in `upload`; default of the prefix: ``NAME/SPLIT-shards``.
    """
    import pyarrow.parquet

    from labkit.datasets.images import PARQUET_OPTIONS

    _check(dataset, store)
    expect_int("upload a data set", "rows_per_shard", rows_per_shard)
    starts = range(0, len(dataset), rows_per_shard)
    keys = [f"part-{number:05}.parquet" for number in range(len(starts))]
    path = f"{bucket}/{prefix or f'{dataset.name}/{dataset.split}-shards'}"

    def body(number: int) -> bytes:
        rows, stream = dataset[starts[number] : starts[number] + rows_per_shard], io.BytesIO()
        pyarrow.parquet.write_table(rows.to_arrow(), stream, **PARQUET_OPTIONS)
        return stream.getvalue()

    return _send(store, bucket, path, keys, body)


def _send(
    store: Store, bucket: str, path: str, keys: Sequence[str], body: Callable[[int], bytes]
) -> Uploaded:
    """Send the objects `keys` below `path`; the k-th consists of ``body(k)``."""
    from labkit.display.progress import Waiting  # with tqdm, which a node that reads from the store may lack

    with (
        store.explained(f"upload to {path}", "; then upload again"),
        Waiting(f"uploading to {path}", unit="objects") as line,
    ):
        store.bucket(bucket)
        if strangers := sorted(set(store.files.find(path)) - {f"{path}/{key}" for key in keys}):
            fact = f"{len(strangers):,} other objects are there too, {strangers[0]} for one"
            fix = f'store.files.rm("{path}", recursive=True), or another prefix=…'
            raise LabError(f"upload to {path}", fact, fix)
        for first in range(0, len(keys), _BATCH):
            batch = range(first, min(first + _BATCH, len(keys)))
            # With a smaller batch_size, fsspec warns of coroutines that it leaves behind after an error.
            bodies = {f"{path}/{keys[number]}": body(number) for number in batch}
            store.files.pipe(bodies, batch_size=_BATCH)
            line(batch.stop, len(keys))
    return Uploaded(path=path, objects=len(keys))


def _check(dataset: "Dataset", store: Store) -> None:
    from labkit.datasets import Dataset

    if not isinstance(dataset, Dataset) or not len(dataset) or not isinstance(store, Store):
        fact = f"it takes a Dataset of images with rows and a Store, not {dataset!r:.60} and {store!r:.60}"
        fix = "for a table: "
        fix += 'pyarrow.parquet.write_table(table, "bucket/a.parquet", filesystem=store.filesystem)'
        raise LabError("upload a data set", fact, fix)
