"""Labelled images as one class, which becomes an Arrow table or a Parquet file.

>>> Dataset(images, labels, name="digits", split="train", classes=tuple("0123456789"))
<Dataset digits, train: 1,437 images of 28×28, 10 classes>
"""

import dataclasses
import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.display.formatting import plural
from labkit.errors import BadInput, Damaged
from labkit.files import atomic_path

if TYPE_CHECKING:
    import pyarrow

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
    """Images (uint8 [n, height, width], 0 is black) and labels (int64 [n], indices into `classes`).

    Other arrays are `BadInput`. `name` and `split` say where they come from ("digits", "train").
    """

    images: np.ndarray
    labels: np.ndarray
    name: str
    split: str
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        images = np.asarray(self.images)
        labels = np.asarray(self.labels)
        are_arrays = images is self.images and labels is self.labels
        has_types = images.dtype == np.uint8 and labels.dtype == np.int64
        has_shapes = images.ndim == 3 and labels.shape == images.shape[:1]
        if not (are_arrays and has_types and has_shapes):
            fact = (
                f"the images are {images.dtype} {list(images.shape)}, "
                f"the labels are {labels.dtype} {list(labels.shape)}"
            )
        elif len(labels) and not 0 <= labels.min() <= labels.max() < len(self.classes):
            fact = f"labels go from {labels.min()} to {labels.max()}, with {len(self.classes)} classes"
        else:
            return
        raise BadInput(
            f"use the data set {self.name}",
            fact,
            "pass images as a numpy array uint8 [n, height, width] and labels as int64 [n], from 0 on",
        )

    def __len__(self) -> int:
        return len(self.labels)

    @functools.cached_property
    def fingerprint(self) -> str:
        """12 digits of a hash of images and labels."""
        digest = hashlib.sha256(str(self.images.shape).encode())
        digest.update(np.ascontiguousarray(self.images))
        digest.update(np.ascontiguousarray(self.labels))
        return digest.hexdigest()[:12]

    def __getitem__(self, which: Any) -> Any:
        """Return one row as (image, label); for a slice, a mask or an array of indices, a `Dataset`."""
        if isinstance(which, (int, np.integer)):
            return self.images[which], int(self.labels[which])
        return dataclasses.replace(
            self,
            images=self.images[which],
            labels=self.labels[which],
        )

    def __repr__(self) -> str:
        height, width = self.images.shape[1:]
        size = f"{plural(len(self), 'image')} of {height}×{width}"
        return f"<Dataset {self.name}, {self.split}: {size}, {len(self.classes)} classes>"

    def to_arrow(self) -> "pyarrow.Table":
        """Return a table for ``ray.data.from_arrow``: an image as a uint8 tensor, its label as int64."""
        import pyarrow

        # Ray Data reads tensors as arrays of that shape, and would read lists as objects.
        images = pyarrow.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(self.images))
        return pyarrow.table({"image": images, "label": self.labels})

    def to_parquet(self, path: str | Path) -> Path:
        """Write a Parquet file, completely or not at all, and return its path."""
        import pyarrow.parquet

        with atomic_path(path) as partial:
            pyarrow.parquet.write_table(self.to_arrow(), partial, **PARQUET_OPTIONS)
        return Path(path)


def read_rows(path: str, filesystem: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Read the images (uint8 [n, height, width]) and labels (int64 [n]) of the Parquet files at `path`.

    It is a file or a folder of files that `Dataset.to_parquet` or pyarrow wrote, on this machine or on
    pyarrow's `filesystem`. Damaged files and other columns are `Damaged`, a missing file is an OSError.
    """
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(
            path,
            filesystem=filesystem,
            page_checksum_verification=True,
        )
        images = table.combine_chunks()["image"].chunk(0).to_numpy_ndarray()
        # Arrow's memory is read-only, and torch warns about such arrays.
        return images.copy(), table["label"].to_numpy().copy()
    except (pyarrow.ArrowInvalid, OSError, LookupError, AttributeError, TypeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the file system
        first_line = str(error).partition("\n")[0]
        raise Damaged(
            f"read images from {path}",
            first_line or type(error).__name__,
            "name files that Dataset.to_parquet wrote",
        ) from None
