"""Labelled images: one shape and one schema, whatever data set they come from.

    >>> data = Dataset(images, labels, name="digits", split="train", classes=tuple("0123456789"))
    >>> data
    <Dataset digits, train: 1,437 images of 28×28, 10 classes>
    >>> data.to_arrow().schema          # image: uint8 tensor [28, 28], label: int64

The image column is Arrow's own ``fixed_shape_tensor``. Ray Data reads it from a table and from a
Parquet file as uint8 [n, 28, 28] batches, for numpy and torch alike; lists (fixed-size ones too) come as
objects or flat. Without Ray, any reader of Arrow and Parquet understands it.
"""

import dataclasses
import html
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.display.images import Gallery, gallery
from labkit.errors import DatasetError

if TYPE_CHECKING:
    import pyarrow

SIDE = 28  # pixels
MOST_ROWS = 2_000_000  # of one file read into memory: 1.6 GB
_SHOWN = 10  # images in the display of a data set

ROW_GROUP = 8192  # rows that a reader of a file holds at once: 6 MB
# Arrow keeps a pixel as a 32-bit number. To split those into bytes and compress them by zstd gives the
# size that Arrow's dictionaries with zstd give, in half the time.
PARQUET_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": ["label"],
    "column_encoding": {"image.list.element": "BYTE_STREAM_SPLIT"},
    "write_page_checksum": True,  # a reader can tell a damaged page from strange pixels
}


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images and what they show.

    Attributes:
        images: uint8 [n, 28, 28], 0 is black.
        labels: int64 [n], each an index of `classes`.
        name, split: where they come from ("digits", "train").
        classes: names of the classes.

    Raises:
        DatasetError: the arrays have another shape or type, or a label is no class.
    """

    images: np.ndarray
    labels: np.ndarray
    name: str
    split: str
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if fault := _fault(self.images, self.labels, len(self.classes)):
            fix = "give images as uint8 [n, 28, 28] and labels as int64 [n], from 0 on"
            raise DatasetError(f"use the data set {self.name}", fault, fix)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, which: Any) -> Any:
        """One row as (image, label); for a slice, a mask or an array of places, a `Dataset`."""
        if isinstance(which, (int, np.integer)):
            return self.images[which], int(self.labels[which])
        return dataclasses.replace(self, images=self.images[which], labels=self.labels[which])

    def __repr__(self) -> str:
        size = f"{len(self):,} image{'s' * (len(self) != 1)} of {SIDE}×{SIDE}"
        return f"<Dataset {self.name}, {self.split}: {size}, {len(self.classes)} classes>"

    def _repr_html_(self) -> str:
        captions = [self.classes[label] for label in self.labels[:_SHOWN]]
        return f"<div>{html.escape(repr(self)[1:-1])}</div>{gallery(self.images[:_SHOWN], captions)}"

    def show(self, which: Sequence[int] = range(_SHOWN), captions: Sequence[str] | None = None) -> Gallery:
        """The images at the places `which`, each above its caption (default: its class)."""
        places = [place for place in which if place < len(self)]
        if captions is None:
            captions = [self.classes[self.labels[place]] for place in places]
        return Gallery(self.images[places], captions)

    def to_arrow(self) -> "pyarrow.Table":
        """A table of the one schema, for ``ray.data.from_arrow``; it shares the arrays' memory."""
        return to_arrow(self.images, self.labels)

    def to_parquet(self, path: str | Path) -> Path:
        """Write a Parquet file of the one schema: whole, or not at all."""
        import pyarrow.parquet

        path = Path(path)
        # A name of its own for each writer; the leading dot hides it from readers of a folder.
        partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            pyarrow.parquet.write_table(self.to_arrow(), partial, row_group_size=ROW_GROUP, **PARQUET_OPTIONS)
            partial.replace(path)
        except OSError as error:
            fact = error.strerror or str(error)
            raise DatasetError(f"write {path}", fact, "name a file in a folder that can be written") from None
        finally:
            partial.unlink(missing_ok=True)
        return path


def schema() -> "pyarrow.Schema":
    """The schema of every data set of the lab."""
    import pyarrow

    image = pyarrow.fixed_shape_tensor(pyarrow.uint8(), (SIDE, SIDE))
    return pyarrow.schema([("image", image), ("label", pyarrow.int64())])


def to_arrow(images: np.ndarray, labels: np.ndarray) -> "pyarrow.Table":
    """Images uint8 [n, 28, 28] and labels int64 [n] as a table of the one schema, without a copy."""
    import pyarrow

    pixels = pyarrow.array(np.ascontiguousarray(images).reshape(-1))
    tensors = pyarrow.FixedSizeListArray.from_arrays(pixels, SIDE * SIDE)
    columns = [
        pyarrow.ExtensionArray.from_storage(schema().field("image").type, tensors),
        pyarrow.array(labels),
    ]
    return pyarrow.table(columns, schema=schema())


def read_parquet(path: str | Path, *, name: str, split: str, classes: tuple[str, ...]) -> Dataset:
    """Read a Parquet file of the one schema that nobody has to trust.

    Raises:
        DatasetError: it is no such file, it is damaged, or it has more than `MOST_ROWS` rows.
    """
    import pyarrow
    import pyarrow.parquet

    path = Path(path)
    fix = f"put a good copy of it to {path}, or name another file"
    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            if fault := _fault_of_parquet(file):
                raise DatasetError(f"read {path.name}", fault, fix)
            table = file.read().combine_chunks()
        pixels = table["image"].chunk(0).storage.flatten()
        if table["image"].null_count or pixels.null_count or table["label"].null_count:
            raise DatasetError(f"read {path.name}", "some pixels or labels are missing (null)", fix)
        # Arrow's memory cannot be written, and torch warns about such arrays: hence the copies.
        images = pixels.to_numpy().reshape(-1, SIDE, SIDE).copy()
        labels = table["label"].to_numpy().copy()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        fact = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(f"read {path.name}", fact, fix) from None
    if fault := _fault(images, labels, len(classes)):
        raise DatasetError(f"read {path.name}", fault, fix)
    return Dataset(images, labels, name, split, classes)


def _fault_of_parquet(file: Any) -> str | None:
    """What is wrong with the file, by its footer and before any row is read."""
    found, rows = file.schema_arrow.remove_metadata(), file.metadata.num_rows
    if not found.equals(schema()):
        columns = ", ".join(f"{field.name}: {field.type}" for field in list(found)[:4])
        return f"its columns are ({columns}), and (image: uint8 tensor [28, 28], label: int64) are expected"
    if not 0 < rows <= MOST_ROWS:
        return f"it has {rows:,} rows, and from 1 to {MOST_ROWS:,} can be read at once"
    return None


def _fault(images: np.ndarray, labels: np.ndarray, classes: int) -> str | None:
    if images.shape != (len(images), SIDE, SIDE) or images.dtype != np.uint8:
        return f"the images are {images.dtype} {list(images.shape)}"
    if labels.shape != (len(images),) or labels.dtype != np.int64:
        return f"the labels are {labels.dtype} {list(labels.shape)} for {len(images):,} images"
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        return f"the labels go from {labels.min()} to {labels.max()}, and there are {classes} classes"
    return None
