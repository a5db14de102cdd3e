"""Data sets: those that ship, those that are downloaded or rendered, and your own.

    >>> train = datasets.load()                                   # the one that LABKIT_DATASET names
    >>> flats = datasets.from_table("flats.csv", target="price")  # your own; also from_folder, from_text
    >>> x, y = flats.load("train")

pandas, pyarrow, Pillow, matplotlib and pooch are imported by the functions that use them.
"""

from labkit.datasets.catalog import load, rendered, shipped
from labkit.datasets.folders import from_folder
from labkit.datasets.images import Dataset, read_rows
from labkit.datasets.own import OwnData
from labkit.datasets.tables import from_table, from_text

__all__ = [
    "Dataset", "OwnData", "from_folder", "from_table", "from_text", "load", "read_rows", "rendered",
    "shipped",
]  # fmt: skip
