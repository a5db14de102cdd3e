"""MNIST and Fashion-MNIST: four files each, downloaded once and checked against their SHA-256."""

import gzip
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit.datasets.images import Dataset
from labkit.display.formatting import without_credentials
from labkit.errors import LabError
from labkit.settings import Settings

_SILENCE = 20.0  # seconds without a byte until an address is given up


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the files of a data set are."""

    addresses: tuple[str, ...]  # URLs of folders that hold the files, tried in this order
    sha256: tuple[str, ...]  # of each of `FILES`, in their order
    classes: tuple[str, ...]  # their names


FILES = (
    *("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    *("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
)
SOURCES = {
    "mnist": Source(
        addresses=(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
        ),
        sha256=(
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        classes=tuple("0123456789"),
    ),
    "fashion_mnist": Source(
        addresses=(
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        ),
        sha256=(
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
        classes=(
            *("T-shirt", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
    ),
}


def load(name: str, split: str, settings: Settings) -> Dataset:
    """Load `name` from ``LABKIT_HOME/datasets``, where its files are downloaded to if they are missing.

    Raises:
        LabError: no address has a file, or the folder cannot be written to.
    """
    source = SOURCES[name]
    addresses = (f"{settings.mirror.rstrip('/')}/{name}",) if settings.mirror else source.addresses
    folder = settings.home / "datasets" / name
    known = dict(zip(FILES, source.sha256, strict=True))
    names = FILES[:2] if split == "train" else FILES[2:]
    images, labels = (_read(_fetch(name, known, folder, addresses)) for name in names)
    return Dataset(images, labels.astype(np.int64), name, split, source.classes)


def _fetch(name: str, known: Mapping[str, str], folder: Path, addresses: tuple[str, ...]) -> Path:
    """Return the path of the file in `folder`, after fetching it from the first address that has it."""
    import pooch

    pooch.get_logger().setLevel("WARNING")  # what it logs has the address in it, password included
    # "identity": the server must not decompress the file on the way.
    options = {"progressbar": True, "timeout": _SILENCE, "headers": {"Accept-Encoding": "identity"}}
    reasons = []
    for address in addresses:
        download = pooch.HTTPDownloader(**options) if "://" in address else _copy
        try:
            cache = pooch.create(path=folder, base_url=f"{address}/", registry=known)
            return Path(cache.fetch(name, downloader=download))
        except (OSError, ValueError) as error:  # requests' own are OSErrors; ValueError: another SHA-256
            reasons.append(without_credentials(f"{address}: {type(error).__name__}: {error}"))
    raise LabError(
        f"fetch {name} of {folder.name}",
        "no address has it:\n    " + "\n    ".join(reasons),
        "check the network and the proxy;\n"
        "    or name a server or a folder that has it: export LABKIT_MIRROR=…\n"
        f"    or put the file (SHA-256 {known[name]}) there yourself: {folder / name}\n"
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
