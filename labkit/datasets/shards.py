"""Rendered digits as Parquet files, as many as the disk holds, while memory holds a few megabytes.

    >>> files = rendered_to_parquet("data/many", 1_000_000)
    >>> ray.data.read_parquet("data/many")

The folder appears when all of its files are whole. Made again, it is found again: its files know which
digits they hold.
"""

import contextlib
import json
import os
import platform
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.datasets import rendering
from labkit.datasets.images import PARQUET_OPTIONS, ROW_GROUP, schema, to_arrow
from labkit.display.progress import Waiting
from labkit.errors import DatasetError

if TYPE_CHECKING:
    import pyarrow.parquet

_BYTES_PER_ROW = 500  # on the disk, measured 480
_KEY = b"labkit.rendered"  # in the schema of each file: which digits these are


def rendered_to_parquet(
    folder: str | Path,
    n: int,
    seed: int = 0,
    *,
    split: str = "train",
    rows_per_file: int = 65_536,
    threads: int | None = None,
) -> list[Path]:
    """Write the first `n` digits of `seed` and `split` as Parquet files into `folder`.

    Args:
        folder: is made; or holds exactly these digits already, and then nothing is written.
        rows_per_file: of each file but the last, which may have fewer.
        threads: how many draw and write (default: one for each core).

    Returns:
        the files, in the order of their rows.

    Raises:
        DatasetError: the folder holds something else, or the disk has no room for them.
    """
    rendering.check_request(n, seed, split)
    folder = Path(folder).absolute()
    attempt = f"write {n:,} rendered digits to {folder}"
    if rows_per_file < 1:
        raise DatasetError(attempt, f"rows_per_file is {rows_per_file}", "take 1 or more; 65_536 make 30 MB")
    wanted = {"n": n, "seed": seed, "split": split, "rows_per_file": rows_per_file, "form": rendering.FORM}
    try:
        if not _holds(folder, wanted, attempt):
            folder.parent.mkdir(parents=True, exist_ok=True)
            _check_room(folder.parent, n, attempt)
            with _unfinished(folder) as partial, Waiting("rendering digits", unit="images") as line:
                _write_all(partial, wanted, threads or os.cpu_count() or 1, line)
                _publish(partial, folder, wanted, attempt)
    except OSError as error:
        fix = "make room, or name a folder that can be written"
        raise DatasetError(attempt, error.strerror or str(error), fix) from None
    return _files(folder)


def _write_all(folder: Path, wanted: dict, threads: int, progress: rendering.Progress) -> None:
    """Each thread draws and writes files of its own: to compress them is as much work as to draw them."""
    from concurrent.futures import ThreadPoolExecutor

    n, size = wanted["n"], wanted["rows_per_file"]
    starts = range(0, n, size)
    at_once = min(threads, len(starts))
    options = {"seed": wanted["seed"], "split": wanted["split"], "threads": threads // at_once}
    stop, lock, written = threading.Event(), threading.Lock(), 0

    def count(rows: int) -> None:
        nonlocal written
        with lock:
            written += rows
            progress(written, n)

    def write(number: int, start: int) -> None:
        path, end = folder / f"part-{number:05}.parquet", min(start + size, n)
        try:
            with _writer(path, wanted) as writer:
                for first in range(start, end, ROW_GROUP):
                    if stop.is_set():
                        return
                    last = min(first + ROW_GROUP, end)
                    writer.write_table(to_arrow(*rendering.render(first, last, **options)))
                    count(last - first)
        except BaseException:
            stop.set()  # what one file met, the others need not find out
            raise

    pool = ThreadPoolExecutor(at_once, thread_name_prefix="labkit-shards")
    try:
        list(pool.map(write, *zip(*enumerate(starts), strict=True)))
    finally:
        stop.set()  # an interrupt ends the files that are being written, too
        pool.shutdown(cancel_futures=True)


def _writer(path: Path, wanted: dict) -> "pyarrow.parquet.ParquetWriter":
    import pyarrow.parquet

    noted = schema().with_metadata({_KEY: json.dumps(wanted)})
    return pyarrow.parquet.ParquetWriter(path, noted, **PARQUET_OPTIONS)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def _holds(folder: Path, wanted: dict, attempt: str) -> bool:
    """Whether `folder` holds what is wanted; False if there is nothing, an error if it is anything else."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    found = [_note(path) for path in _files(folder)] if folder.is_dir() else []
    sizes = [rows for rows, note in found if note == wanted]
    if len(sizes) == len(found) and sum(sizes) == wanted["n"]:
        return True
    fact = "it exists and holds something else, or not all of it"
    raise DatasetError(attempt, fact, "name another folder, or remove that one if it is not needed")


def _note(path: Path) -> tuple[int, dict]:
    """(rows, what they are) of a file; (0, {}) if it is none of ours."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            return file.metadata.num_rows, json.loads(file.schema_arrow.metadata[_KEY])
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError):
        return 0, {}


def _check_room(folder: Path, n: int, attempt: str) -> None:
    need, free = n * _BYTES_PER_ROW, shutil.disk_usage(folder).free
    if need > free:
        fact = f"they take about {need / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        raise DatasetError(attempt, fact, "write fewer, make room, or name a folder on another disk")


@contextlib.contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """A hidden folder beside `folder`. Those that killed processes of this host left go first."""
    import psutil

    here = f".{folder.name}.{platform.node()}"
    for left in folder.parent.glob(f"{here}-*-*"):
        owner = re.fullmatch(r"-(\d+)-\d+", left.name.removeprefix(here))
        if owner and not psutil.pid_exists(int(owner[1])):
            shutil.rmtree(left, ignore_errors=True)
    partial = folder.with_name(f"{here}-{os.getpid()}-{threading.get_ident()}")
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _publish(partial: Path, folder: Path, wanted: dict, attempt: str) -> None:
    try:
        partial.rename(folder)
    except OSError:
        # Another process was faster; if it made the same, all is well.
        if not _holds(folder, wanted, attempt):
            raise
