"""Data of your own: a folder of images, a table, a text. Each becomes rows of two columns, ``x`` and ``y``.

    >>> cats = datasets.from_folder("photos", size=(32, 32))     # photos/cat/*.png, photos/dog/*.jpg
    >>> flats = datasets.from_table("flats.csv", target="price")
    >>> plays = datasets.from_text("plays.txt", length=64)
    >>> x, y = flats.load("test")
    >>> flats.write("lab-10/flats", filesystem=store.filesystem)  # ray.data.read_parquet reads it

The rows are read and checked a batch at a time, so the files may be larger than the memory; only `load` keeps
all of them. Which rows are for testing depends on the seed and on a row's place in the files alone.
"""

import contextlib
import functools
import hashlib
import html
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from labkit.display.images import gallery
from labkit.errors import DatasetError

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.fs

Batch = tuple[np.ndarray, np.ndarray]  # x and y of some rows

_IDS = 6  # of the tokens of a row, in a sample
_RELEASED = 4 << 20  # bytes that were written until freed memory goes back to the system
_HASHED = 16 << 20  # bytes of rows in a fingerprint: a second or two, however large the files are


@dataclass(frozen=True, kw_only=True, repr=False)
class OwnData:
    """Rows of one kind, in files, and how they divide into training and testing.

    Attributes:
        name: of the folder or file.
        kind: what a row of ``x`` is: "images" uint8 [height, width] or [height, width, 3], "numbers" float32
            [columns], "tokens" int64 [length].
        task: "classification" (``y`` is int64, an index into `classes`), "regression" (``y`` is float32) or
            "language" (``y`` is int64 [length], the token that follows each token of ``x``).
        columns: of "numbers", their names; a category has one per value, "colour=red".
        classes: their names; empty if the task has none.
        vocabulary: of "tokens", how many there are.
        test: the probability with which a row is for testing, 0 to 1.
        seed: which rows these are.
        read: the rows, a batch at a time.
        text: of "tokens", the text of a row of ``x``.
    """

    name: str
    kind: str
    task: str
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    vocabulary: int = 0
    test: float
    seed: int
    read: Callable[[], Iterator[Batch]] = field(compare=False)
    text: Callable[[np.ndarray], str] = field(compare=False, default=str)

    def __post_init__(self) -> None:
        if not (isinstance(self.test, (int, float)) and 0 <= self.test < 1):
            fact, fix = f"test is {self.test!r}", "pass the share of the rows for testing, such as 0.2"
            raise DatasetError(f"split {self.name}", fact, fix)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Equal for equal data: a hash of columns, classes, split and the first 16 MB of rows."""
        given = (self.kind, self.task, self.columns, self.classes, self.vocabulary, self.test, self.seed)
        digest, left = hashlib.sha256(repr(given).encode()), _HASHED
        for x, y in self.read():
            digest.update(np.ascontiguousarray(x))
            digest.update(np.ascontiguousarray(y))
            left -= x.nbytes + y.nbytes
            if left <= 0:
                break
        return digest.hexdigest()[:12]

    def batches(self, split: str) -> Iterator[Batch]:
        """Read the rows of "train" or "test", a few at a time.

        Raises:
            DatasetError: there is no such split, or a row is damaged.
        """
        if split not in ("train", "test"):
            raise DatasetError(f"read {self.name}", f"there is no split {split!r}", "use 'train' or 'test'")
        # Not default_rng(seed) alone: people make data with it, and all test rows would have small values.
        numbers = np.random.default_rng([self.seed, *b"split"])
        for x, y in self.read():
            mine = (numbers.random(len(y)) < self.test) == (split == "test")
            if mine.any():
                yield x[mine], y[mine]

    def load(self, split: str) -> Batch:
        """Read all rows of a split into memory, as arrays ``x`` and ``y``."""
        parts = list(self.batches(split))
        if not parts:
            fact, fix = f"{self.name} has no row for it", "give it more rows, or change test= or seed="
            raise DatasetError(f"load the split {split!r}", fact, fix)
        return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])

    def write(
        self, path: str, *, filesystem: "pyarrow.fs.FileSystem | None" = None, rows_per_file: int = 4096
    ) -> dict[str, int]:
        """Write Parquet files below ``path/train`` and ``path/test``, and return the rows of each.

        Args:
            path: a folder, or ``bucket/prefix`` of a store; `Store.bucket` makes a bucket.
            filesystem: where that is (default: this machine).
            rows_per_file: a file ends with the batch that reaches so many.

        Raises:
            DatasetError: a row is damaged, or the folder has something in it.
        """
        import pyarrow.fs
        import pyarrow.parquet

        files = pyarrow.fs.LocalFileSystem() if filesystem is None else filesystem
        if files.get_file_info(pyarrow.fs.FileSelector(path, recursive=True, allow_not_found=True)):
            raise DatasetError(f"write {self.name}", f"{path} is not empty", "name another folder")
        written = {}
        for split in ("train", "test"):
            files.create_dir(f"{path}/{split}")
            with contextlib.ExitStack() as stack:
                rows = number = freed = 0
                for x, y in self.batches(split):
                    part = pyarrow.table({"x": _column(x), "y": _column(y)})
                    if rows >= number * rows_per_file:
                        stack.close()
                        name = f"{path}/{split}/part-{number:05}.parquet"
                        writer = pyarrow.parquet.ParquetWriter
                        out = writer(name, part.schema, filesystem=files, compression="zstd")
                        stack.enter_context(out)
                        number += 1
                    out.write_table(part)
                    rows, freed = rows + len(y), freed + part.nbytes
                    if freed > _RELEASED:  # Arrow keeps what it has freed, in more and smaller pieces
                        pyarrow.default_memory_pool().release_unused()
                        freed = 0
            written[split] = rows
        return written

    def __repr__(self) -> str:
        what = {
            "images": "images of " + "×".join(map(str, self._first()[0].shape[1:])),
            "numbers": f"rows of {len(self.columns)} numbers",
            "tokens": f"rows of {self._first()[0].shape[1]} tokens out of {self.vocabulary:,}",
        }[self.kind]
        classes = f", {len(self.classes)} classes" if self.classes else ""
        return f"<{self.name}: {what}, {self.task}{classes}>"

    def _first(self) -> Batch:
        return next(iter(self.read()))

    def _repr_html_(self) -> str:
        import pandas

        x, y = (values[:8] for values in self._first())
        titles = [self.classes[label] for label in y] if self.classes else [str(label) for label in y]
        if self.kind == "images":
            sample = gallery(x, titles)
        elif self.kind == "numbers":
            rows = pandas.DataFrame(x, columns=self.columns)
            rows.insert(len(self.columns), "y", titles, allow_duplicates=True)  # a column may be named y, too
            sample = rows.to_html(index=False)
        else:
            titles = titles if self.classes else [_start(row) for row in y]
            rows = {"text": map(self.text, x), "x": map(_start, x), "y": titles}
            sample = pandas.DataFrame(rows).to_html(index=False)
        return f"<div>{html.escape(repr(self)[1:-1])}</div>{sample}"


def _start(tokens: np.ndarray) -> str:
    return " ".join(map(str, tokens[:_IDS])) + (" …" if len(tokens) > _IDS else "")


def _column(values: np.ndarray) -> "pyarrow.Array":
    """An Arrow column; Ray Data reads one of several dimensions as arrays of that shape."""
    import pyarrow

    if values.ndim == 1:
        return pyarrow.array(values)
    return pyarrow.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))
