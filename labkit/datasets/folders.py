"""Images of your own: one folder per class.

>>> datasets.from_folder("photos", size=(32, 32))     # photos/cat/*.png, photos/dog/*.jpg
<photos: images of 32×32×3, classification, 2 classes>
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from labkit.datasets.own import Batch, OwnData
from labkit.errors import DatasetError

_SUFFIXES = (".png", ".jpg", ".jpeg")
_AT_ONCE = 64  # images in memory


def from_folder(
    path: str | Path, *, size: tuple[int, int] | None = None, test: float = 0.2, seed: int = 0
) -> OwnData:
    """Images in one folder per class: ``PATH/CLASS/*.png`` or ``.jpg``, grey or in colour.

    Args:
        path: the folder of the classes.
        size: (height, width) that each image is scaled to; default: that of the first, which all must have.
        test, seed: as in `OwnData`; the order of the images depends on the seed, too.

    Raises:
        DatasetError: there is no such folder, it has no images, or an image cannot be read (while reading).
    """
    from PIL import Image, UnidentifiedImageError

    folder, attempt = Path(path).expanduser(), f"load images from {path}"
    if not folder.is_dir():
        raise DatasetError(
            attempt, "there is no such folder", "name the folder that has one folder per class"
        )
    found = {
        one.name: sorted(file for file in one.rglob("*") if file.suffix.lower() in _SUFFIXES)
        for one in sorted(folder.iterdir())
        if one.is_dir() and not one.name.startswith(".")
    }
    classes = tuple(name for name, files in found.items() if files)
    files = [(file, label) for label, name in enumerate(classes) for file in found[name]]
    if not files:
        fact, fix = (
            "no folder in it has a PNG or JPEG file",
            "put the images of each class into a folder of its own",
        )
        raise DatasetError(attempt, fact, fix)

    def opened(file: Path, mode: str | None, size: tuple[int, int] | None) -> np.ndarray:
        try:
            with Image.open(file) as image:
                grey = image.mode in ("L", "1", "I", "I;16", "LA")
                pixels = image.convert(mode or ("L" if grey else "RGB"))
                return np.asarray(pixels.resize(size[::-1]) if size else pixels)
        except (
            OSError,
            UnidentifiedImageError,
            ValueError,
            SyntaxError,
            Image.DecompressionBombError,
        ) as error:
            raise DatasetError(
                attempt, f"{file} is no image: {error}", "repair or remove that file"
            ) from None

    first = opened(files[0][0], None, size)
    mode = "L" if first.ndim == 2 else "RGB"

    def read() -> Iterator[Batch]:
        order = np.random.default_rng((seed, 1)).permutation(len(files))
        for begin in range(0, len(files), _AT_ONCE):
            some = [files[place] for place in order[begin : begin + _AT_ONCE]]
            images = [opened(file, mode, size) for file, _ in some]
            for (file, _), image in zip(some, images, strict=True):
                if image.shape != first.shape:
                    fact = f"{file} has {image.shape[0]}×{image.shape[1]} pixels, and {files[0][0]} has "
                    fix = f"size={first.shape[:2]} scales all of them"
                    raise DatasetError(attempt, fact + f"{first.shape[0]}×{first.shape[1]}", fix)
            yield np.stack(images), np.array([label for _, label in some], np.int64)

    return OwnData(
        name=folder.name,
        kind="images",
        task="classification",
        classes=classes,
        test=test,
        seed=seed,
        read=read,
    )
