"""A data set into an object store: one PNG for each image, or Parquet shards.

    >>> upload(train, store, "digits")           # digits/train/7/00042.png and 1,436 more
    >>> upload_shards(train, store, "digits", rows_per_shard=256)

The key of an image is ``NAME/SPLIT/LABEL/ROW.png``: a reader gets the label from the name alone, without
another request. Beside it, ``NAME/SPLIT.json`` (the manifest) names all objects with their sizes and MD5
sums; it is written last, so that where it stands, all stands.

Done again, an upload sends only what is not there yet: after an interrupt, call it once more. (A store that
encrypts by KMS does not say what is there: it gets all of it again.)
"""

import contextlib
import hashlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from labkit.datasets.images import PARQUET_OPTIONS, ROW_GROUP, Dataset
from labkit.display.progress import Waiting
from labkit.errors import StorageError
from labkit.storage.store import Store

_WORKERS = 16  # requests at once: enough to hide the way to a store that is near
_PAGE = 1000  # objects in one answer to a list

_Body = Callable[[], bytes]


@dataclass(frozen=True, kw_only=True)
class Uploaded:
    """What an upload did.

    Attributes:
        path: ``bucket/prefix`` of the objects.
        manifest: path of the manifest.
        objects, bytes: all that are there now, the manifest left out.
        sent, skipped: objects that were sent, and those that were there already.
        seconds: of the whole, the check at the end included.
    """

    path: str
    manifest: str
    objects: int
    bytes: int
    sent: int
    skipped: int
    seconds: float

    @property
    def objects_per_second(self) -> float:
        return self.sent / self.seconds if self.seconds else 0.0

    def __repr__(self) -> str:
        return (
            f"<{self.path}: {self.objects:,} objects, {self.bytes / 1e6:.1f} MB; {self.sent:,} sent in "
            f"{self.seconds:.1f} s ({self.objects_per_second:,.0f} objects/s), {self.skipped:,} were there>"
        )


@dataclass(frozen=True)
class _Sum:
    """What an object is known by.

    Attributes:
        md5: in a listing its ETag, which is the MD5 in most stores, and never an MD5 that is not.
    """

    bytes: int
    md5: str


def upload(
    dataset: Dataset, store: Store, bucket: str, *, prefix: str | None = None, workers: int = _WORKERS
) -> Uploaded:
    """Each image as one PNG object, many at once.

    Args:
        bucket: is made if it is not there.
        prefix: of the keys; default: ``NAME/SPLIT`` of the data set.
        workers: objects on their way at once.

    Raises:
        StorageError: the store failed, or what it holds at the end is not what was sent.
    """
    _check(dataset, store, bucket)
    prefix = _prefix(prefix, f"{dataset.name}/{dataset.split}")
    keys = [f"{prefix}/{label}/{row:05}.png" for row, label in enumerate(dataset.labels.tolist())]
    bodies = [lambda row=row: _png(dataset.images[row]) for row in range(len(dataset))]
    return _upload(dataset, store, bucket, prefix, keys, bodies, "png", workers)


def upload_shards(
    dataset: Dataset,
    store: Store,
    bucket: str,
    *,
    rows_per_shard: int = 512,
    prefix: str | None = None,
    workers: int = _WORKERS,
) -> Uploaded:
    """The same rows as Parquet objects of `rows_per_shard` each (the last may have fewer).

    Args, Raises: as in `upload`; default of the prefix: ``NAME/SPLIT-shards``.
    """
    _check(dataset, store, bucket)
    if not isinstance(rows_per_shard, int) or rows_per_shard < 1:
        raise StorageError("upload shards", f"rows_per_shard is {rows_per_shard!r}", "take 1 or more")
    prefix = _prefix(prefix, f"{dataset.name}/{dataset.split}-shards")
    starts = range(0, len(dataset), rows_per_shard)
    keys = [f"{prefix}/part-{number:05}.parquet" for number in range(len(starts))]
    bodies = [lambda first=first: _parquet(dataset[first : first + rows_per_shard]) for first in starts]
    return _upload(dataset, store, bucket, prefix, keys, bodies, "parquet", workers)


def _upload(
    dataset: Dataset,
    store: Store,
    bucket: str,
    prefix: str,
    keys: Sequence[str],
    bodies: Sequence[_Body],
    form: str,
    workers: int,
) -> Uploaded:
    if not isinstance(workers, int) or workers < 1:
        raise StorageError("upload", f"workers is {workers!r}", "take 1 or more")
    began = time.monotonic()
    attempt = f"upload {dataset.name} to {bucket}/{prefix}"
    with _continuable(store, attempt):
        store.bucket(bucket)
        there = _listed(store, bucket, prefix)
        with Waiting(f"uploading {dataset.name}", unit="objects") as line:
            sums, sent = _send_all(store, bucket, dict(zip(keys, bodies, strict=True)), there, workers, line)
        _check_listing(sums, _listed(store, bucket, prefix), attempt, f"{bucket}/{prefix}")
        manifest = f"{prefix}.json"
        about = _manifest(dataset, form, sums)
        store.files.call("put_object", Bucket=bucket, Key=manifest, Body=about)
    return Uploaded(
        path=f"{bucket}/{prefix}", manifest=f"{bucket}/{manifest}", objects=len(sums),
        bytes=sum(s.bytes for s in sums.values()), sent=sent, skipped=len(sums) - sent,
        seconds=time.monotonic() - began,
    )  # fmt: skip


def _send_all(
    store: Store,
    bucket: str,
    wanted: dict[str, _Body],
    there: dict[str, _Sum],
    workers: int,
    progress: Callable[[int, int], None],
) -> tuple[dict[str, _Sum], int]:
    """Send what is not there; returns the sums of all, by key, and how many were sent."""
    stop, lock, sums, sent = threading.Event(), threading.Lock(), {}, 0

    def send(items: Iterator[tuple[str, _Body]]) -> None:
        nonlocal sent
        while not stop.is_set():
            with lock:  # a generator serves one thread at a time
                key, make = next(items, ("", None))
            if make is None:
                return
            body = make()
            known = _Sum(len(body), hashlib.md5(body, usedforsecurity=False).hexdigest())
            missing = there.get(key) != known  # not provably the same; to send it once more does no harm
            if missing:
                store.files.call("put_object", Bucket=bucket, Key=key, Body=body)
            with lock:
                sums[key] = known
                sent += missing
                progress(len(sums), len(wanted))

    items = iter(wanted.items())
    pool = ThreadPoolExecutor(workers, thread_name_prefix="labkit-upload")
    try:
        _first_error([pool.submit(send, items) for _ in range(workers)])
    finally:
        stop.set()  # an interrupt, or an error of one, ends the others after their object
        pool.shutdown(cancel_futures=True)
    return {key: sums[key] for key in wanted}, sent


def _first_error(futures: list[Future]) -> None:
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in done:
        future.result()


@contextlib.contextmanager
def _continuable(store: Store, attempt: str) -> Iterator[None]:
    """As `Store.explained`, and the fix says how to go on."""
    try:
        with store.explained(attempt):
            yield
    except StorageError as error:
        fix = f"{error.fix}; then upload again: what is there is not sent twice"
        raise type(error)(error.attempt, error.fact, fix) from None


def _listed(store: Store, bucket: str, prefix: str) -> dict[str, _Sum]:
    """All objects below the prefix, by key."""
    found, more = {}, {}
    while True:
        page = store.files.call("list_objects_v2", Bucket=bucket, Prefix=f"{prefix}/", MaxKeys=_PAGE, **more)
        for entry in page.get("Contents", []):
            found[entry["Key"]] = _Sum(entry["Size"], entry.get("ETag", "").strip('"'))
        if not page.get("IsTruncated"):
            return found
        more = {"ContinuationToken": page["NextContinuationToken"]}


def _check_listing(sums: dict[str, _Sum], there: dict[str, _Sum], attempt: str, path: str) -> None:
    """Raise StorageError unless all objects are there, each of its size, and no others.

    Their ETags say nothing here: that of an object which the store encrypts, or took in parts, is no MD5.
    """
    missing = [key for key in sums if key not in there]
    other = [key for key in sums if key in there and there[key].bytes != sums[key].bytes]
    if missing or other:
        count = f"{len(missing):,} of {len(sums):,} objects are missing and {len(other):,} have another size"
        fact = f"{count} in the store, {(missing + other)[0]} for one"
        raise StorageError(attempt, fact, "see who else writes or deletes there")
    if strangers := sorted(there.keys() - sums.keys()):
        fact = f"{len(strangers):,} other objects are there too, {strangers[0]} for one"
        raise StorageError(attempt, fact, f'store.files.rm("{path}", recursive=True), or another prefix=…')


def _manifest(dataset: Dataset, form: str, sums: dict[str, _Sum]) -> bytes:
    about = {
        "dataset": dataset.name,
        "split": dataset.split,
        "rows": len(dataset),
        "classes": dataset.classes,
        "form": form,
        "objects": [{"key": key, "bytes": s.bytes, "md5": s.md5} for key, s in sums.items()],
    }
    return json.dumps(about, ensure_ascii=False).encode()


def _check(dataset: Dataset, store: Store, bucket: str) -> None:
    """Raise StorageError unless these can be what they stand for."""
    attempt = "upload a data set"
    if not isinstance(dataset, Dataset):
        fact = f"the first argument is a {type(dataset).__name__}, and a labkit Dataset of images is wanted"
        fix = "images and labels: Dataset(images, labels, name, split, classes) of labkit.images; a table: "
        fix += 'store.bucket("tables"), then pyarrow.parquet.write_table('
        raise StorageError(attempt, fact, fix + 'table, "tables/mine.parquet", filesystem=store.filesystem)')
    if not len(dataset):
        raise StorageError(attempt, f"{dataset!r} has no rows", "upload one that has some")
    if not isinstance(store, Store):
        fact = f"the second argument is a {type(store).__name__}, and a store is wanted"
        raise StorageError(attempt, fact, "store = storage.start(), then upload(dataset, store, bucket)")
    if not isinstance(bucket, str) or not bucket:
        raise StorageError(attempt, f"the bucket is {bucket!r}", 'give its name, such as "digits"')


def _prefix(given: str | None, default: str) -> str:
    prefix = default if given is None else str(given).strip("/")
    if not set(prefix.split("/")).isdisjoint({"", ".", ".."}):
        raise StorageError("upload", f"the prefix is {given!r}", 'take one such as "digits/train"')
    return prefix


def _png(image: np.ndarray) -> bytes:
    """uint8 [28, 28] as a grey PNG."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image).save(stream, format="PNG")
    return stream.getvalue()


def _parquet(rows: Dataset) -> bytes:
    import pyarrow.parquet

    stream = io.BytesIO()
    pyarrow.parquet.write_table(rows.to_arrow(), stream, row_group_size=ROW_GROUP, **PARQUET_OPTIONS)
    return stream.getvalue()
