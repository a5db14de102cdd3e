"""The data sets of the lab by their names. Both have 28×28 grey images of the ten digits.

    >>> train = datasets.load()                    # the one that LABKIT_DATASET names; "digits" by default
    >>> test = datasets.load("mnist", "test", n=500, seed=3)

`digits` ships with the lab. `mnist` is downloaded once into ``LABKIT_HOME/datasets``: four files, which are
checked against their SHA-256.
"""

import gzip
from pathlib import Path

import numpy as np

from course.datasets.images import Dataset, read_rows
from labkit.errors import BadInput, NotReachable, expect_installed, expect_int
from labkit.settings import CHECKOUT, DATASETS, Settings

_CLASSES = tuple("0123456789")
_DIGITS_TRAIN = 1437  # rows of the file that are for training; the other 360 are for testing
_SMALL_ROWS = {"train": 1_500, "test": 400}  # in small mode, unless n says otherwise: as many as `digits` has
_SILENCE = 20.0  # seconds without a byte until an address is given up

MNIST = {  # {file: its SHA-256}; for each split the images and then the labels
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
ADDRESSES = (  # of folders that hold the files, tried in this order
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)


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
        name: "digits" or "mnist" (default: the setting ``LABKIT_DATASET``).
        split: "train" or "test".
        n: how many rows (default: all, in their fixed order; where ``LABKIT_SMALL`` is set, at most 1,500
            for training and 400 for testing). They are sampled with `seed`; a larger sample of the same
            seed starts with the smaller one.
        seed: of the sample.
        settings: default: the environment's.

    Raises:
        BadInput: there is no such data set or split, or it has fewer rows than `n`.
        NotReachable: it cannot be fetched.
    """
    settings = settings or Settings.from_env()
    name = settings.dataset if name is None else name
    if name not in DATASETS:
        raise BadInput(
            f"load the data set {name!r}",
            "there is none of this name",
            f"use one of {', '.join(DATASETS)}",
        )
    attempt = f"take rows of the split {split!r}"
    if n is not None:
        expect_int(attempt, "n", n)
    if split not in _SMALL_ROWS:
        raise BadInput(
            attempt,
            f"there is no split {split!r}",
            f"use one of {', '.join(_SMALL_ROWS)}",
        )
    whole = _whole(name, split, settings)
    most = _SMALL_ROWS[split] if settings.small else len(whole)
    if n is None and len(whole) <= most:
        return whole
    n = n or most
    if n > len(whole):
        raise BadInput(
            f"take {n:,} rows",
            f"{name} has {len(whole):,} rows for {split}",
            f"take up to {len(whole):,}",
        )
    return whole[np.random.default_rng(seed).permutation(len(whole))[:n]]


def shipped(name: str) -> Path:
    """Return the path of a file that ships with the lab, in the checkout's ``datasets``.

    Raises:
        BadInput: this machine has no checkout, as a node of a remote cluster, or there is no such file.
    """
    path = CHECKOUT / "datasets" / name
    if path.is_file():
        return path
    raise BadInput(
        f"find the shipped file {name}",
        f"this machine doesn't have {path}",
        "check the name; in a worker of a remote cluster: load the data in the notebook, and pass the rows "
        "in train_loop_config",
    )


def _whole(name: str, split: str, settings: Settings) -> Dataset:
    """Read all rows of a split of "digits" or "mnist"."""
    if name == "mnist":
        images, labels = list(MNIST)[:2] if split == "train" else list(MNIST)[2:]
        images = _idx(_fetch(images, settings))
        labels = _idx(_fetch(labels, settings))
        return Dataset(images, labels.astype(np.int64), name, split, _CLASSES)
    expect_installed("load the digits", "pyarrow")
    whole = Dataset(*read_rows(str(shipped("digits.parquet"))), name, split, _CLASSES)
    return whole[:_DIGITS_TRAIN] if split == "train" else whole[_DIGITS_TRAIN:]


def _fetch(file: str, settings: Settings) -> Path:
    """Return the path of a file, after fetching it from the first address that has it."""
    expect_installed(f"fetch {file}", "pooch", "requests", "tqdm")
    import pooch

    pooch.get_logger().setLevel("WARNING")
    # "identity": the server must not decompress the file on the way.
    http = pooch.HTTPDownloader(progressbar=True, timeout=_SILENCE, headers={"Accept-Encoding": "identity"})
    folder = settings.home / "datasets" / "mnist"
    reasons = ""
    for address in ADDRESSES:
        try:
            return Path(pooch.retrieve(f"{address}/{file}", MNIST[file], file, folder, downloader=http))
        except (OSError, ValueError) as error:  # requests' own are OSErrors; ValueError: another SHA-256
            reasons += f"\n    {address}: {type(error).__name__}: {error}"
    raise NotReachable(
        f"fetch {file} of mnist",
        f"no address has it:{reasons}",
        f"put the file (SHA-256 {MNIST[file]}) there yourself: {folder / file}\n"
        "    or work offline with LABKIT_DATASET=digits",
    )


def _idx(path: Path) -> np.ndarray:
    """Read a file in MNIST's format, compressed by gzip.

    It is: two zero bytes, the type (8: unsigned byte), the number of dimensions, each dimension as a
    big-endian 32-bit number, then the values in C order.
    """
    content = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(content, ">u4", content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape).copy()
