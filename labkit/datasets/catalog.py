"""The data sets of the lab by their names. All have 28×28 grey images and ten classes.

    >>> train = datasets.load()                    # the one that LABKIT_DATASET names; "digits" by default
    >>> test = datasets.load("mnist", "test", n=500, seed=3)

`digits` ships with the lab, and `rendered` is drawn on the spot, in any number. `mnist` and `fashion_mnist`
are downloaded once into ``LABKIT_HOME/datasets``, four files each, and checked against their SHA-256.
``LABKIT_MIRROR`` names a server or a folder to take them from instead:
``MIRROR/mnist/train-images-idx3-ubyte.gz`` and so on.
"""

import gzip
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from labkit.datasets.fonts import SPLITS, render
from labkit.datasets.images import Dataset, read_rows
from labkit.display.formatting import without_credentials
from labkit.errors import LabError, expect_installed, expect_int
from labkit.settings import CHECKOUT, DATASETS, PACKAGE_ROOT, Settings

_DIGITS = tuple("0123456789")
_DIGITS_TRAIN = 1437  # rows of the file that are for training; the other 360 are for testing
_RENDERED_ROWS = {"train": 60_000, "test": 10_000}  # as many as MNIST has, unless n says otherwise
_SMALL_ROWS = {"train": 1_500, "test": 400}  # in small mode, unless n says otherwise: as many as `digits` has
_SILENCE = 20.0  # seconds without a byte until an address is given up


FILES = (
    *("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    *("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
)
# {data set: URLs of folders that hold the files, tried in this order}
ADDRESSES = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    ),
    "fashion_mnist": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    ),
}
SHA256 = {  # of each of `FILES`
    "mnist": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "fashion_mnist": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
}
_FASHION = (
    "T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


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
    _check(1 if n is None else n, split)
    most = (_SMALL_ROWS if settings.small else _RENDERED_ROWS)[split]
    if name == "rendered":
        return rendered(n or most, seed, split=split)
    whole = _digits(split) if name == "digits" else _downloaded(name, split, settings)
    if n is None and len(whole) <= most:
        return whole
    n = n or most
    if n > len(whole):
        fact = f"{whole.name} has {len(whole):,} rows for {whole.split}"
        raise LabError(f"take {n:,} rows", fact, f"take up to {len(whole):,}, or the data set 'rendered'")
    return whole[np.random.default_rng(seed).permutation(len(whole))[:n]]


def rendered(n: int, seed: int = 0, *, split: str = "train") -> Dataset:
    """Draw the first `n` digits of `seed` and `split` from fonts (see `labkit.datasets.fonts`)."""
    _check(n, split)
    expect_installed("render digits", "PIL", "matplotlib")
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


def _check(n: object, split: str) -> None:
    attempt = f"take rows of the split {split!r}"
    expect_int(attempt, "n", n)
    if split not in SPLITS:
        raise LabError(attempt, f"there is no split {split!r}", f"use one of {', '.join(SPLITS)}")


def _digits(split: str) -> Dataset:
    expect_installed("load the digits", "pyarrow")
    whole = Dataset(*read_rows(str(shipped("digits.parquet"))), "digits", split, _DIGITS)
    return whole[:_DIGITS_TRAIN] if split == "train" else whole[_DIGITS_TRAIN:]


def _downloaded(name: str, split: str, settings: Settings) -> Dataset:
    """Load `name` from ``LABKIT_HOME/datasets``, where its files are downloaded to if they are missing."""
    images, labels = FILES[:2] if split == "train" else FILES[2:]
    images, labels = (_read(_fetch(file, name, settings)) for file in (images, labels))
    classes = _DIGITS if name == "mnist" else _FASHION
    return Dataset(images, labels.astype(np.int64), name, split, classes)


def _fetch(file: str, name: str, settings: Settings) -> Path:
    """Return the path of a file, after fetching it from the first address that has it."""
    expect_installed(f"fetch {file}", "pooch", "requests", "tqdm")
    import pooch

    pooch.get_logger().setLevel("WARNING")  # what it logs has the address in it, password included
    # "identity": the server must not decompress the file on the way.
    options = {"progressbar": True, "timeout": _SILENCE, "headers": {"Accept-Encoding": "identity"}}
    folder, known = settings.home / "datasets" / name, dict(zip(FILES, SHA256[name], strict=True))
    reasons = []
    for address in [f"{settings.mirror.rstrip('/')}/{name}"] if settings.mirror else ADDRESSES[name]:
        download = pooch.HTTPDownloader(**options) if "://" in address else _copy
        try:
            cache = pooch.create(path=folder, base_url=f"{address}/", registry=known)
            return Path(cache.fetch(file, downloader=download))
        except (OSError, ValueError) as error:  # requests' own are OSErrors; ValueError: another SHA-256
            reasons.append(without_credentials(f"\n    {address}: {type(error).__name__}: {error}"))
    raise LabError(
        f"fetch {file} of {name}",
        "no address has it:" + "".join(reasons),
        "name a server or a folder that has it: export LABKIT_MIRROR=…\n"
        f"    or put the file (SHA-256 {known[file]}) there yourself: {folder / file}\n"
        "    or work offline with LABKIT_DATASET=digits or LABKIT_DATASET=rendered",
    )


def _copy(source: str, path: str, _: Any) -> None:
    """What pooch calls for a file in a folder."""
    shutil.copyfile(Path(source).expanduser(), path)


def _read(path: Path) -> np.ndarray:
    """Read a file in the format of MNIST, IDX, compressed by gzip.

    IDX is: two zero bytes, the type (8: unsigned byte), the number of dimensions, each dimension as a
    big-endian 32-bit number, then the values in C order.
    """
    content = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(content, ">u4", content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape).copy()
