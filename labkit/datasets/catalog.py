"""The data sets of the lab by their names. Today's all have 28×28 grey images and ten classes.

    >>> train = datasets.load()                    # the one that LABKIT_DATASET names; "digits" by default
    >>> test = datasets.load("mnist", "test", n=500, seed=3)
    >>> train.images.shape, train.labels.dtype
    ((1437, 28, 28), dtype('int64'))

`digits` ships with the lab, and `rendered` is drawn on the spot, in any number. `mnist` and `fashion_mnist`
are downloaded once, into ``LABKIT_HOME/datasets``. ``LABKIT_MIRROR`` names a server or a folder to take them
from instead: ``MIRROR/mnist/train-images-idx3-ubyte.gz`` and so on.
"""

from pathlib import Path

import numpy as np

from labkit.datasets import mnist
from labkit.datasets.fonts import SPLITS, render
from labkit.datasets.images import Dataset, read_rows
from labkit.errors import LabError
from labkit.settings import CHECKOUT, DATASETS, PACKAGE_ROOT, Settings

_DIGITS = tuple("0123456789")
_DIGITS_TRAIN = 1437  # rows of the file that are for training; the other 360 are for testing
_RENDERED_ROWS = {"train": 60_000, "test": 10_000}  # as many as MNIST has, unless n says otherwise
_SMALL_ROWS = {"train": 1_500, "test": 400}  # in small mode, unless n says otherwise: as many as `digits` has


def load(
    name: str | None = None,
    split: str = "train",
    *,
    n: int | None = None,
    seed: int = 0,
    settings: Settings | None = None,
) -> Dataset:
    """Load a data set by its name.

    Args:
        name: one of `DATASETS` (default: the setting ``LABKIT_DATASET``).
        split: "train" or "test".
        n: how many rows (default: all, in their fixed order; where ``LABKIT_SMALL`` is set, at most 1,500
            for training and 400 for testing). They are sampled with `seed`; a larger sample of the same
            seed starts with the smaller one.
        seed: of the sample, and of the data set `rendered`.
        settings: default: the environment's.

    Raises:
        LabError: there is no such data set or split, it has fewer rows than `n`, or it cannot be fetched.
    """
    settings = Settings.given(settings)
    name = settings.dataset if name is None else name
    if name not in DATASETS:
        fix = f"use one of {', '.join(DATASETS)}"
        raise LabError(f"load the data set {name!r}", "there is none of this name", fix)
    _check(n, split)
    most = (_SMALL_ROWS if settings.small else _RENDERED_ROWS)[split]
    if name == "rendered":
        return rendered(n or most, seed, split=split)
    whole = _digits(split) if name == "digits" else mnist.load(name, split, settings)
    if n is None:
        if len(whole) <= most:
            return whole
        n = most
    if n > len(whole):
        fact = f"{whole.name} has {len(whole):,} rows for {whole.split}"
        raise LabError(f"take {n:,} rows", fact, f"take up to {len(whole):,}, or the data set 'rendered'")
    return whole[np.random.default_rng(seed).permutation(len(whole))[:n]]


def rendered(n: int, seed: int = 0, *, split: str = "train") -> Dataset:
    """Draw the first `n` digits of `seed` and `split` from fonts (see `labkit.datasets.fonts`)."""
    _check(n, split)
    return Dataset(*render(n, seed=seed, split=split), "rendered", split, _DIGITS)


def shipped(name: str) -> Path:
    """The path of a file that ships with the lab, in the checkout's ``datasets`` or in the installed package.

    Raises:
        LabError: this machine has neither, as a node of a remote cluster, or there is no such file.
    """
    folders = [PACKAGE_ROOT / "datasets" / "files"]
    if (CHECKOUT / "pyproject.toml").is_file():
        folders.insert(0, CHECKOUT / "datasets")
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    fact = f"this machine has it neither in {folders[0]} nor in an installed labkit"
    fix = "check the name; in a worker of a remote cluster: load the data in the notebook, and pass the rows "
    raise LabError(f"find the shipped file {name}", fact, f"{fix}in train_loop_config")


def _check(n: int | None, split: str) -> None:
    attempt = f"take rows of the split {split!r}"
    if n is not None and (not isinstance(n, (int, np.integer)) or n < 1):
        raise LabError(attempt, f"n is {n!r}", "pass a whole number from 1 on, or leave n out")
    if split not in SPLITS:
        raise LabError(attempt, f"there is no split {split!r}", f"use one of {', '.join(SPLITS)}")


def _digits(split: str) -> Dataset:
    whole = Dataset(*read_rows(str(shipped("digits.parquet"))), "digits", split, _DIGITS)
    return whole[:_DIGITS_TRAIN] if split == "train" else whole[_DIGITS_TRAIN:]
