"""Data sets of 28×28 digits: one that ships, and one that is downloaded.

    >>> train = datasets.load()          # the one that LABKIT_DATASET names
    >>> train.images, train.labels

For data of your own, `notebooks/own_experiment` has readers that you copy and change. pyarrow
and pooch are imported by the functions that use them.
"""

from course.datasets.catalog import load, shipped
from course.datasets.images import Dataset, read_rows

__all__ = ["Dataset", "load", "read_rows", "shipped"]
