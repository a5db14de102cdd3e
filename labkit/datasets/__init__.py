"""Data sets of 28×28 digits: those that ship, and those that are downloaded or rendered.

    >>> train = datasets.load()          # the one that LABKIT_DATASET names
    >>> train.images, train.labels

For data of your own, `notebooks/own_experiment` has readers that you copy and change. pyarrow, Pillow,
matplotlib and pooch are imported by the functions that use them.
"""

from labkit.datasets.catalog import load, rendered, shipped
from labkit.datasets.images import Dataset, read_rows

__all__ = ["Dataset", "load", "read_rows", "rendered", "shipped"]
