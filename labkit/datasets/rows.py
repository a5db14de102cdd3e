"""Rows of a data set in Parquet files as arrays. Small, because each validation imports it."""

import numpy as np
import pyarrow
import pyarrow.fs
import pyarrow.parquet

from labkit.errors import DatasetError


def read_rows(
    path: str, filesystem: pyarrow.fs.FileSystem | None = None, *, part: int = 0, parts: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Read the images (uint8 [n, height, width]) and labels (int64 [n]) of the Parquet files at `path`.

    Args:
        path: a file, or a folder of files, with the columns of `Dataset.to_arrow`.
        filesystem: where the path is (default: this machine).
        part, parts: read only the rows part, part + parts, part + 2 · parts, …, so that each row is in
            exactly one part. The shards of `ray.train.get_dataset_shard` are no substitute when you average
            over all rows, because Ray drops rows to make them equally long.

    Raises:
        DatasetError: the files are damaged or have other columns, or there is no such part.
    """
    attempt = f"read images from {path}"
    if not (isinstance(part, int) and isinstance(parts, int) and 0 <= part < parts):
        fact = f"part is {part!r}, parts is {parts!r}"
        raise DatasetError(attempt, fact, "pass a part from 0 to parts - 1")
    try:
        table = pyarrow.parquet.read_table(path, filesystem=filesystem, page_checksum_verification=True)
        table = table.combine_chunks()
        images = table["image"].chunk(0).to_numpy_ndarray()
        labels = table["label"].to_numpy()
    except (pyarrow.ArrowInvalid, OSError, LookupError, AttributeError, TypeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the file system: no such file, no right to read it
        fact = str(error).partition("\n")[0] or type(error).__name__
        fix = "name files that Dataset.to_parquet or upload_shards wrote"
        raise DatasetError(attempt, fact, fix) from None
    # Arrow's memory is read-only, and torch warns about such arrays.
    return images[part::parts].copy(), labels[part::parts].copy()
