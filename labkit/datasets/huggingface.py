"""Data sets of Hugging Face that were saved on disk: tables, texts and images.

>>> datasets.from_huggingface("saved/reviews", target="stars", column="text", length=64)
<train: rows of 64 tokens out of 256, classification, 5 classes>
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.datasets.folders import from_images
from labkit.datasets.own import OwnData
from labkit.datasets.tables import ROWS, Frames, from_table
from labkit.datasets.texts import from_text
from labkit.errors import DatasetError

if TYPE_CHECKING:
    import pandas


def from_huggingface(
    source: Any, *, target: str | None = None, split: str | None = None, test: float = 0.2, seed: int = 0,
    **options: Any,
) -> OwnData:  # fmt: skip
    """A ``datasets.Dataset``, read in batches from its Arrow files: images, texts or a table.

    It has images if a column has the feature ``Image``, and `size` scales them; it has texts if you pass
    `length`; otherwise it is a table.

    Args:
        source: the folder of `Dataset.save_to_disk`, or a data set, or a ``DatasetDict`` of several.
        target: the column to predict; for a language model None.
        split: which one of several.
        test, seed: as in `OwnData`.
        options: of `from_folder`, `from_text` (where `column` has the texts) or `from_table`.

    Raises:
        DatasetError: `datasets` is missing, there is no such data set, split or column, or a row is damaged.
    """
    attempt = f"load the data set {source!r:.80}"
    try:
        import datasets
        import pyarrow
    except ImportError as error:
        raise DatasetError(attempt, str(error), "pip install datasets") from error
    if isinstance(source, (str, Path)):
        try:
            source = datasets.load_from_disk(str(Path(source).expanduser()))
        except (OSError, ValueError, KeyError) as error:
            fix = "name the folder that save_to_disk wrote"
            raise DatasetError(attempt, str(error).partition("\n")[0], fix) from None
    if isinstance(source, datasets.DatasetDict):
        if split not in source:
            fact = f"it has the splits {', '.join(source)}, and split is {split!r}"
            raise DatasetError(attempt, fact, "pass split= with one of these")
        source = source[split]
    if not isinstance(source, datasets.Dataset) or not len(source):
        fact = f"it is {type(source).__name__}, or has no rows"
        raise DatasetError(attempt, fact, "pass a datasets.Dataset with rows, or the folder that has one")
    try:
        source.data.validate(full=True)  # Arrow ends the process where an offset in a file is damaged
    except pyarrow.ArrowException as error:
        fact, fix = f"its files are damaged: {error}".splitlines()[0], "save the data set again"
        raise DatasetError(attempt, fact, fix) from None
    if target is not None and target not in source.features:
        fact = f"it has no column {target!r}, only {', '.join(source.features)}"
        raise DatasetError(attempt, fact, "pass target= with one of these")
    name, options = split or str(source.split or "dataset"), {"test": test, "seed": seed, **options}
    images = [column for column, kind in source.features.items() if isinstance(kind, datasets.Image)]
    if images:
        return _images(source, name, images[0], target, attempt, options)
    frames = Frames(name, lambda: _frames(source))
    return (from_text if "length" in options else from_table)(frames, target=target, **options)


def _frames(source: Any) -> "Iterator[pandas.DataFrame]":
    """The rows, with the names of their classes."""
    for frame in source.with_format("pandas").iter(ROWS):
        for column, kind in source.features.items():
            if names := getattr(kind, "names", None):  # -1 is no class
                frame[column] = frame[column].map(dict(enumerate(names)))
        yield frame


def _images(source: Any, name: str, column: str, target: str | None, attempt: str, options: Any) -> OwnData:
    from datasets import Image

    classes = getattr(source.features.get(target), "names", None)
    if not classes:
        fix = "dataset.class_encode_column(name) makes classes of a column; then target=name"
        raise DatasetError(attempt, f"the target {target!r} is no ClassLabel", fix)
    labels = np.array([-1 if label is None else label for label in source[target]], np.int64)
    if (labels < 0).any():
        fact = f"row {np.flatnonzero(labels < 0)[0]:,} has no class"
        raise DatasetError(attempt, fact, "leave such rows out: dataset.filter(...)")
    rows = source.cast_column(column, Image(decode=False))

    def found(row: int) -> tuple[str, Any]:
        image = rows[row][column] or {}
        content = image.get("bytes")
        return f"row {row:,}", io.BytesIO(content) if content is not None else image.get("path") or ""

    return from_images(name, tuple(classes), labels, found, attempt, **options)
