"""Labelled images as one class, which becomes an Arrow table or a Parquet file.

    >>> data = Dataset(images, labels, name="digits", split="train", classes=tuple("0123456789"))
    >>> data
    <Dataset digits, train: 1,437 images of 28×28, 10 classes>
    >>> data.to_arrow().schema          # image: uint8 tensor [28, 28], label: int64

The image column is Arrow's own ``fixed_shape_tensor``, because Ray Data reads it as uint8 [n, 28, 28]
batches, for numpy and torch alike. Columns of lists would arrive as objects or flat.
"""

import dataclasses
import functools
import hashlib
import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.display.images import gallery
from labkit.errors import LabError
from labkit.files import atomic_path

if TYPE_CHECKING:
    import pyarrow

_SHOWN = 10  # images in the display of a data set

# Arrow keeps a pixel as a 32-bit number. BYTE_STREAM_SPLIT with zstd gives the same size as Arrow's
# dictionaries with zstd, in half the time.
PARQUET_OPTIONS: dict[str, Any] = {
    "row_group_size": 8192,  # rows that a reader of a file holds at once: 6 MB
    "compression": "zstd",
    "use_dictionary": ["label"],
    "column_encoding": {"image.list.element": "BYTE_STREAM_SPLIT"},
    "write_page_checksum": True,  # so that a reader can tell a damaged page from strange pixels
}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images and their labels.

    Attributes:
        images: uint8 [n, height, width], 0 is black.
        labels: int64 [n], each an index into `classes`.
        name, split: where they come from ("digits", "train").
        classes: names of the classes.

    Raises:
        LabError: the arrays have another shape or type, or a label is not a class.
    """

    images: np.ndarray
    labels: np.ndarray
    name: str
    split: str
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        images, labels = np.asarray(self.images), np.asarray(self.labels)
        shapes = images.ndim == 3 and labels.shape == images.shape[:1]
        types = images.dtype == np.uint8 and labels.dtype == np.int64
        if not (shapes and types and images is self.images and labels is self.labels):
            fact = f"the images are {images.dtype} {list(images.shape)}"
            fact += f", the labels are {labels.dtype} {list(labels.shape)}"
        elif len(labels) and not 0 <= labels.min() <= labels.max() < len(self.classes):
            fact = f"labels go from {labels.min()} to {labels.max()}, with {len(self.classes)} classes"
        else:
            return
        fix = "pass images as a numpy array uint8 [n, height, width] and labels as int64 [n], from 0 on"
        raise LabError(f"use the data set {self.name}", fact, fix)

    def __len__(self) -> int:
        return len(self.labels)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Equal for equal images and labels: 12 digits of a hash of them."""
        return fingerprint(str(self.images.shape), self.images, self.labels)

    def __getitem__(self, which: Any) -> Any:
        """Return one row as (image, label); for a slice, a mask or an array of indices, a `Dataset`."""
        if isinstance(which, (int, np.integer)):
            return self.images[which], int(self.labels[which])
        return dataclasses.replace(self, images=self.images[which], labels=self.labels[which])

    def __repr__(self) -> str:
        height, width = self.images.shape[1:]
        size = f"{len(self):,} image{'s' * (len(self) != 1)} of {height}×{width}"
        return f"<Dataset {self.name}, {self.split}: {size}, {len(self.classes)} classes>"

    def _repr_html_(self) -> str:
        captions = [self.classes[label] for label in self.labels[:_SHOWN]]
        return f"<div>{html.escape(repr(self)[1:-1])}</div>{gallery(self.images[:_SHOWN], captions)}"

    def to_arrow(self) -> "pyarrow.Table":
        """Return a table for ``ray.data.from_arrow``. It shares the arrays' memory."""
        import pyarrow

        return pyarrow.table({"image": column(self.images), "label": self.labels})

    def to_parquet(self, path: str | Path) -> Path:
        """Write a Parquet file, completely or not at all, and return its path."""
        import pyarrow.parquet

        with atomic_path(path) as partial:
            pyarrow.parquet.write_table(self.to_arrow(), partial, **PARQUET_OPTIONS)
        return Path(path)


def read_rows(path: str, filesystem: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Read the images (uint8 [n, height, width]) and labels (int64 [n]) of the Parquet files at `path`.

    Args:
        path: a file, or a folder of files, with the columns of `Dataset.to_arrow`.
        filesystem: pyarrow's, where the path is (default: this machine).

    Raises:
        LabError: the files are damaged or have other columns.
        OSError: there is no such file, or it may not be read.
    """
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, filesystem=filesystem, page_checksum_verification=True)
        images = table.combine_chunks()["image"].chunk(0).to_numpy_ndarray()
        # Arrow's memory is read-only, and torch warns about such arrays.
        return images.copy(), table["label"].to_numpy().copy()
    except (pyarrow.ArrowInvalid, OSError, LookupError, AttributeError, TypeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the file system
        fact = str(error).partition("\n")[0] or type(error).__name__
        fix = "name files that Dataset.to_parquet or upload_shards wrote"
        raise LabError(f"read images from {path}", fact, fix) from None


def fingerprint(about: str, *arrays: np.ndarray) -> str:
    """12 digits of a hash of a text and of arrays."""
    digest = hashlib.sha256(about.encode())
    for values in arrays:
        digest.update(np.ascontiguousarray(values))
    return digest.hexdigest()[:12]


def column(values: np.ndarray) -> "pyarrow.Array":
    """An Arrow column; Ray Data reads one of several dimensions as arrays of that shape."""
    import pyarrow

    if values.ndim == 1:
        return pyarrow.array(values)
    return pyarrow.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))
