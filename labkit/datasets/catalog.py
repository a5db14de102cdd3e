"""The data sets of the lab: all with 28×28 grey images and one of ten classes for each.

    >>> train = datasets.load()                    # what LABKIT_DATASET names; "digits" by default
    >>> test = datasets.load("mnist", "test", n=500, seed=3)
    >>> train.images.shape, train.labels.dtype
    ((1437, 28, 28), dtype('int64'))

`digits` ships with the lab, `rendered` is drawn on the spot in any number; `mnist` and
`fashion_mnist` are downloaded once, into ``LABKIT_HOME/datasets``: with the runs and the logs, so that
one variable moves all that the lab writes, and a checkout that cannot be written, or is shared, serves
as well. ``LABKIT_MIRROR`` names a server or a folder to take them from, and from nowhere else:
``MIRROR/mnist/train-images-idx3-ubyte.gz`` and so on.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.datasets.downloads import RemoteFile, fetch
from labkit.datasets.idx import read_idx
from labkit.datasets.images import SIDE, Dataset, read_parquet
from labkit.datasets.rendering import check_request, render
from labkit.display.progress import Waiting
from labkit.errors import DatasetError
from labkit.settings import DATASETS, PACKAGE_ROOT, Settings

_DIGITS = tuple("0123456789")
_DIGITS_SHA256 = "31c502b7acea0297e1bb114f8a85993f707e10584e7683721bc56fac0f34e630"
_DIGITS_TRAIN = 1437  # rows of the file that are for training; the other 360 are for testing
_RENDERED_ROWS = {"train": 60_000, "test": 10_000}  # as many as MNIST has, unless n says otherwise
_SMALL_ROWS = {"train": 1_500, "test": 400}  # in small mode, unless n says otherwise: as many as `digits` has


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a data set in IDX files comes from; one of your own can be given to `load`.

    Attributes:
        addresses: URLs or folders that hold the files, tried in this order.
        train, test: the file of images and the file of labels.
        classes: what the labels mean.
    """

    addresses: tuple[str, ...]
    train: tuple[RemoteFile, RemoteFile]
    test: tuple[RemoteFile, RemoteFile]
    classes: tuple[str, ...] = _DIGITS


def _mnist_files(*sums_and_sizes: tuple[str, int]) -> dict[str, tuple[RemoteFile, RemoteFile]]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = [
        RemoteFile(name=f"{name}-ubyte.gz", sha256=sha256, size=size)
        for name, (sha256, size) in zip(names, sums_and_sizes, strict=True)
    ]
    return {"train": (files[0], files[1]), "test": (files[2], files[3])}


SOURCES = {
    "mnist": Source(
        addresses=(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
        ),
        **_mnist_files(
            ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
            ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
            ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
            ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
        ),
    ),
    "fashion_mnist": Source(
        addresses=(
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        ),
        **_mnist_files(
            ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
            ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
            ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
            ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
        ),
        classes=(
            *("T-shirt", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
    ),
}


def load(
    name: str | None = None,
    split: str = "train",
    *,
    n: int | None = None,
    seed: int = 0,
    source: Source | None = None,
    settings: Settings | None = None,
) -> Dataset:
    """A data set by its name.

    Args:
        name: one of `DATASETS` (default: the setting ``LABKIT_DATASET``), or your own for a `source`.
        split: "train" or "test".
        n: how many rows (default: all, in their fixed order; where ``LABKIT_SMALL`` is set, at most 1,500
            for training and 400 for testing). A sample is drawn by `seed`; a larger one of the same seed
            starts with the smaller.
        seed: of the sample, and of the data set `rendered`.
        source: IDX files of your own.
        settings: for tests (default: the environment's).

    Raises:
        DatasetError: there is no such data set or split, fewer rows than `n`, or it cannot be had.
    """
    settings = settings or Settings.from_env()
    name = name or settings.dataset
    _check_name(name, source)
    check_request(1 if n is None else n, seed, split)
    if name == "rendered":
        rows = _SMALL_ROWS if settings.small else _RENDERED_ROWS
        return rendered(rows[split] if n is None else n, seed, split=split)
    whole = _digits(split) if name == "digits" else _idx(name, source or SOURCES[name], split, settings)
    if n is None and settings.small and len(whole) > _SMALL_ROWS[split]:
        n = _SMALL_ROWS[split]
    return whole if n is None else _sample(whole, n, seed)


def rendered(n: int, seed: int = 0, *, split: str = "train", threads: int | None = None) -> Dataset:
    """The first `n` digits of `seed` and `split`, drawn from fonts (see `labkit.datasets.rendering`).

    Raises:
        DatasetError: `n` images do not fit into the memory that is free.
    """
    import psutil

    check_request(n, seed, split)
    need, free = n * SIDE * SIDE, psutil.virtual_memory().available
    if need > free:
        fact = f"they take {need / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free"
        fix = "take fewer, or shards.rendered_to_parquet(folder, n) and stream them"
        raise DatasetError(f"render {n:,} digits", fact, fix)
    with Waiting("rendering digits", unit="images") as line:
        images, labels = render(0, n, seed=seed, split=split, threads=threads, progress=line)
    return Dataset(images, labels, "rendered", split, _DIGITS)


def _check_name(name: str, source: Source | None) -> None:
    import difflib

    attempt = f"load the data set {name!r}"
    if source is None and name not in DATASETS:
        close = difflib.get_close_matches(name, DATASETS, 1)
        guess = f"did you mean {close[0]!r}? There are" if close else "take one of"
        raise DatasetError(attempt, "there is none of this name", f"{guess} {', '.join(DATASETS)}")
    if source is not None and (name in DATASETS or not re.fullmatch(r"\w[\w-]*", name)):
        fact = "the name is taken" if name in DATASETS else "the name becomes a folder, and cannot be one"
        raise DatasetError(attempt, fact, "give your source another name, of letters, digits, _ and -")


def _digits(split: str) -> Dataset:
    path = shipped("digits.parquet")
    if hashlib.sha256(path.read_bytes()).hexdigest() != _DIGITS_SHA256:
        fact = f"{path} is not the file that ships with the lab"
        raise DatasetError(
            "load the digits",
            fact,
            "git checkout labkit/datasets/files/digits.parquet, or install labkit again",
        )
    whole = read_parquet(path, name="digits", split=split, classes=_DIGITS)
    return whole[:_DIGITS_TRAIN] if split == "train" else whole[_DIGITS_TRAIN:]


def shipped(name: str) -> Path:
    """The path of a file that ships with the lab, in ``labkit/datasets/files``."""
    path = PACKAGE_ROOT / "datasets" / "files" / name
    if path.is_file():
        return path
    raise DatasetError(
        f"find {name}",
        f"{path} does not exist",
        f"git checkout labkit/datasets/files/{name}, or install labkit again",
    )


def _idx(name: str, source: Source, split: str, settings: Settings) -> Dataset:
    addresses = (f"{settings.mirror.rstrip('/')}/{name}",) if settings.mirror else source.addresses
    with Waiting(f"fetching {name}", unit="bytes") as line:
        images, labels = (
            fetch(file, into=settings.home / "datasets" / name, addresses=addresses, progress=line)
            for file in getattr(source, split)
        )
    pixels = read_idx(images, shape=(None, SIDE, SIDE))
    classes = read_idx(labels, shape=(len(pixels),)).astype(np.int64)
    return Dataset(pixels, classes, name, split, source.classes)


def _sample(whole: Dataset, n: int, seed: int) -> Dataset:
    if n > len(whole):
        fact = f"{whole.name} has {len(whole):,} rows for {whole.split}"
        raise DatasetError(f"take {n:,} rows", fact, f"take up to {len(whole):,}, or the data set 'rendered'")
    return whole[np.random.default_rng(seed).permutation(len(whole))[:n]]
