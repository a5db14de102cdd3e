"""Data of your own: rows of ``x`` and ``y`` in memory, and how they are split.

`from_folder`, `from_table` and `from_text` make it. Whether a row is for testing depends only on `seed` and
on the row's position, so every run has the same split.
"""

import functools
import html
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from labkit.datasets.images import column, fingerprint
from labkit.display.images import gallery
from labkit.errors import LabError, expect_int

if TYPE_CHECKING:
    import pyarrow.fs

_SHOWN = 8  # rows in the display
_FILE_ROWS, _FILE_BYTES = 4096, 64 << 20  # of a Parquet file, at most


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OwnData:
    """Rows of one kind, and their split into training and test rows.

    Attributes:
        name: of the folder or file.
        kind: what a row of ``x`` is: "images" uint8 [height, width] or [height, width, 3], "numbers" float32
            [columns], "tokens" int64 [length].
        task: "classification" (``y`` is int64, an index into `classes`), "regression" (``y`` is float32) or
            "language" (``y`` is int64 [length]: for each token of ``x``, the one that follows).
        x, y: all rows.
        columns: of "numbers", their names; a category has one per value, "colour=red".
        classes: their names; empty if the task has none.
        vocabulary: of "tokens": every token is smaller than this number.
        test: the probability with which a row is for testing, from 0 up to but not including 1.
        seed: decides which rows these are.
        text: of "tokens", returns the text of a row of ``x``.
    """

    name: str
    kind: str
    task: str
    x: np.ndarray
    y: np.ndarray
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    vocabulary: int = 0
    test: float
    seed: int
    text: Callable[[np.ndarray], str] = str

    def __post_init__(self) -> None:
        check_split(self.test, self.seed)

    def __len__(self) -> int:
        return len(self.y)

    @functools.cached_property
    def fingerprint(self) -> str:
        """12 digits of a hash of all rows, columns, classes and the split: equal for equal data."""
        given = (self.kind, self.task, self.columns, self.classes, self.vocabulary, self.x.shape)
        return fingerprint(repr((*given, float(self.test), int(self.seed))), self.x, self.y)

    def load(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of "train" or "test" as arrays ``x`` and ``y``.

        Raises:
            LabError: there is no such split, or it has no row.
        """
        attempt = f"load the split {split!r} of {self.name}"
        if split not in ("train", "test"):
            raise LabError(attempt, "there is no split of this name", "use 'train' or 'test'")
        # Not seed alone: if you made the data with default_rng(seed), values would decide where a row goes.
        chosen = np.random.default_rng([self.seed, *b"split"]).random(len(self)) < self.test
        rows = np.flatnonzero(chosen == (split == "test"))
        if not len(rows):
            fact = f"none of its {len(self):,} rows is in it"
            raise LabError(attempt, fact, "use more rows, or another test= or seed=")
        return self.x[rows], self.y[rows]

    def write(self, path: str, *, filesystem: "pyarrow.fs.FileSystem | None" = None) -> dict[str, int]:
        """Write Parquet files below ``path/train`` and ``path/test``, and return the number of rows of each.

        Args:
            path: a folder, or ``bucket/prefix`` of a store; `Store.bucket` makes a bucket.
            filesystem: where the path is (default: this machine).

        Raises:
            LabError: the folder isn't empty.
        """
        import pyarrow.fs
        import pyarrow.parquet

        files = pyarrow.fs.LocalFileSystem() if filesystem is None else filesystem
        if files.get_file_info(pyarrow.fs.FileSelector(path, recursive=True, allow_not_found=True)):
            raise LabError(f"write {self.name}", f"{path} is not empty", "use another folder")
        count = min(_FILE_ROWS, max(1, _FILE_BYTES // max(1, self.x[0].nbytes)))
        written = {"train": 0, "test": 0}
        for split in ("train", "test") if self.test else ("train",):
            x, y = self.load(split)
            files.create_dir(f"{path}/{split}")
            for first in range(0, len(y), count):
                rows = slice(first, first + count)
                table = pyarrow.table({"x": column(x[rows]), "y": column(y[rows])})
                file = f"{path}/{split}/part-{first // count:05}.parquet"
                pyarrow.parquet.write_table(table, file, filesystem=files, compression="zstd")
            written[split] = len(y)
        return written

    def __repr__(self) -> str:
        what = {
            "images": "images of " + "×".join(map(str, self.x.shape[1:])),
            "numbers": f"rows of {len(self.columns)} numbers",
            "tokens": f"rows of {self.x.shape[1]} tokens out of {self.vocabulary:,}",
        }[self.kind]
        classes = f", {len(self.classes)} classes" if self.classes else ""
        return f"<{self.name}: {len(self):,} {what}, {self.task}{classes}>"

    def _repr_html_(self) -> str:
        import pandas

        x, y = self.x[:_SHOWN], self.y[:_SHOWN]
        titles = [self.classes[label] for label in y] if self.classes else list(map(_start, y))
        if self.kind == "images":
            sample = gallery(x, titles)
        else:
            texts = {"text": map(self.text, x), "x": map(_start, x)} if self.kind == "tokens" else None
            rows = pandas.DataFrame(texts) if texts else pandas.DataFrame(x, columns=self.columns)
            rows.insert(rows.shape[1], "y", titles, allow_duplicates=True)  # a column may be "y"
            sample = rows.to_html(index=False)
        return f"<div>{html.escape(repr(self)[1:-1])}</div>{sample}"


def _start(values: np.ndarray) -> str:
    return " ".join(map(str, np.ravel(values)[:6])) + " …" * (np.size(values) > 6)


def check_split(test: object, seed: object) -> None:
    """Raise a `LabError` unless `test` is a share below 1 and `seed` a whole number from 0 on."""
    attempt = "split rows into training and test rows"
    if isinstance(test, bool) or not isinstance(test, numbers.Real) or not 0 <= test < 1:
        raise LabError(attempt, f"test is {test!r}", "pass the share of the rows for testing: test=0.2")
    expect_int(attempt, "seed", seed, least=0)
