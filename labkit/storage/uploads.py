"""A data set into an object store: one PNG for each image, or Parquet files with many rows each.

    >>> upload(train, store, "digits")           # digits/train/7/00042.png and 1,436 more
    >>> upload_shards(train, store, "digits", rows_per_shard=256)

The key of an image is ``NAME/SPLIT/LABEL/ROW.png``, so that a reader gets the label without another request.
If an upload was interrupted, call it again: what the store lists already is not sent twice.
"""

import contextlib
import hashlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.datasets.images import PARQUET_OPTIONS, ROW_GROUP, Dataset
from labkit.display.progress import Waiting
from labkit.errors import StorageError
from labkit.storage.store import Store

_BATCH = 64  # objects in memory and on their way at once


@dataclass(frozen=True, kw_only=True)
class Uploaded:
    """What an upload did.

    Attributes:
        path: ``bucket/prefix`` of the objects.
        objects, bytes: all that are there now.
        sent, skipped: objects that were sent, and those that were there already.
        seconds: of all of it.
    """

    path: str
    objects: int
    bytes: int
    sent: int
    skipped: int
    seconds: float

    @property
    def objects_per_second(self) -> float:
        """Of those that were sent."""
        return self.sent / self.seconds if self.seconds else 0.0

    def __repr__(self) -> str:
        return (
            f"<{self.path}: {self.objects:,} objects, {self.bytes / 1e6:.1f} MB; {self.sent:,} sent in "
            f"{self.seconds:.1f} s ({self.objects_per_second:,.0f} objects/s), {self.skipped:,} were there>"
        )


def upload(dataset: Dataset, store: Store, bucket: str, *, prefix: str | None = None) -> Uploaded:
    """Send each image as one PNG object, many at once.

    Args:
        bucket: is made if it does not exist.
        prefix: of the keys; default: ``NAME/SPLIT`` of the data set.

    Raises:
        StorageError: the store failed, or other objects are below the prefix already.
    """
    _check(dataset, store, bucket)
    keys = [f"{label}/{row:05}.png" for row, label in enumerate(dataset.labels.tolist())]
    prefix = f"{dataset.name}/{dataset.split}" if prefix is None else prefix
    return _send(store, bucket, prefix, keys, lambda row: _png(dataset.images[row]))


def upload_shards(
    dataset: Dataset, store: Store, bucket: str, *, rows_per_shard: int = 512, prefix: str | None = None
) -> Uploaded:
    """Send the same rows as Parquet objects of `rows_per_shard` rows each (the last may have fewer).

    Args, Raises: as in `upload`; default of the prefix: ``NAME/SPLIT-shards``.
    """
    _check(dataset, store, bucket)
    if not isinstance(rows_per_shard, int) or rows_per_shard < 1:
        fact = f"rows_per_shard is {rows_per_shard!r}"
        raise StorageError("upload shards", fact, "pass a whole number from 1 on")
    starts = range(0, len(dataset), rows_per_shard)
    keys = [f"part-{number:05}.parquet" for number in range(len(starts))]
    prefix = f"{dataset.name}/{dataset.split}-shards" if prefix is None else prefix

    def body(number: int) -> bytes:
        return _parquet(dataset[starts[number] : starts[number] + rows_per_shard])

    return _send(store, bucket, prefix, keys, body)


def _send(
    store: Store, bucket: str, prefix: str, keys: Sequence[str], body: Callable[[int], bytes]
) -> Uploaded:
    """Send the objects `keys` below the prefix, unless they are there; the k-th consists of ``body(k)``."""
    prefix = str(prefix).strip("/")
    if not set(prefix.split("/")).isdisjoint({"", ".", ".."}):
        raise StorageError("upload", f"the prefix is {prefix!r}", 'pass one such as "digits/train"')
    path, began, sent, size = f"{bucket}/{prefix}", time.monotonic(), 0, 0
    with _resumable(store, f"upload to {path}"), Waiting(f"uploading to {path}", unit="objects") as line:
        store.bucket(bucket)
        there = store.files.find(path, detail=True)
        if strangers := sorted(there.keys() - {f"{path}/{key}" for key in keys}):
            fact = f"{len(strangers):,} other objects are there too, {strangers[0]} for one"
            fix = f'store.files.rm("{path}", recursive=True), or another prefix=…'
            raise StorageError(f"upload to {path}", fact, fix)
        for first in range(0, len(keys), _BATCH):
            batch = range(first, min(first + _BATCH, len(keys)))
            bodies = {f"{path}/{keys[number]}": body(number) for number in batch}
            size += sum(map(len, bodies.values()))
            missing = {key: data for key, data in bodies.items() if not _is_same(there.get(key), data)}
            if missing:
                # With fewer at once, fsspec warns of coroutines that it leaves behind after an error.
                store.files.pipe(missing, batch_size=_BATCH)
            sent += len(missing)
            line(batch.stop, len(keys))
    return Uploaded(
        path=path, objects=len(keys), bytes=size, sent=sent, skipped=len(keys) - sent,
        seconds=time.monotonic() - began,
    )  # fmt: skip


def _is_same(there: dict | None, data: bytes) -> bool:
    """Whether a listed object consists of `data`, as far as its ETag tells.

    It is the MD5, unless the store encrypts the object (KMS) or got it in parts. Then it is sent again.
    """
    return (
        there is not None and there["ETag"].strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest()
    )


@contextlib.contextmanager
def _resumable(store: Store, attempt: str) -> Iterator[None]:
    """As `Store.explained`, and the fix says how to continue."""
    try:
        with store.explained(attempt):
            yield
    except StorageError as error:
        fix = f"{error.fix}; then upload again: what is there is not sent twice"
        raise type(error)(error.attempt, error.fact, fix) from None


def _check(dataset: Dataset, store: Store, bucket: str) -> None:
    """Raise StorageError unless the arguments have the right types, and the data set has rows."""
    attempt = "upload a data set"
    if not isinstance(dataset, Dataset):
        fact = f"the first argument is a {type(dataset).__name__}, not a Dataset of images"
        fix = "for images: labkit.datasets.Dataset(images, labels, name, split, classes). For a table: "
        fix += 'store.bucket("tables"), then pyarrow.parquet.write_table('
        raise StorageError(attempt, fact, fix + 'table, "tables/mine.parquet", filesystem=store.filesystem)')
    if not len(dataset):
        raise StorageError(attempt, f"{dataset!r} has no rows", "upload one that has some")
    if not isinstance(store, Store):
        fact = f"the second argument is a {type(store).__name__}, not a store"
        raise StorageError(attempt, fact, "store = storage.start(), then upload(dataset, store, bucket)")
    if not isinstance(bucket, str) or not bucket:
        raise StorageError(attempt, f"the bucket is {bucket!r}", 'pass its name, such as "digits"')


def _png(image: np.ndarray) -> bytes:
    """uint8 [height, width] as a grey PNG."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image).save(stream, format="PNG")
    return stream.getvalue()


def _parquet(rows: Dataset) -> bytes:
    import pyarrow.parquet

    stream = io.BytesIO()
    pyarrow.parquet.write_table(rows.to_arrow(), stream, row_group_size=ROW_GROUP, **PARQUET_OPTIONS)
    return stream.getvalue()
