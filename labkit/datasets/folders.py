"""Images of your own: one folder per class.

>>> datasets.from_folder("photos", size=(32, 32))     # photos/cat/*.png, photos/dog/*.jpg
<photos: images of 32×32×3, classification, 2 classes>
"""

import contextlib
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.datasets.own import Batch, OwnData
from labkit.errors import DatasetError

if TYPE_CHECKING:
    from PIL import Image

_SUFFIXES = (".png", ".jpg", ".jpeg")
_OTHER_IMAGES = (".webp", ".bmp", ".gif", ".tif", ".tiff", ".heic", ".avif")  # refused, not passed over
_SPLITS = ("train", "test", "val", "valid", "validation", "dev")
_GREY = ("L", "1", "I", "I;16", "LA")  # Pillow's modes
_FAULTS = (OSError, ValueError, SyntaxError, struct.error)  # what Pillow raises for a damaged image
_LOOK, _NAMED = 2.0, 10  # seconds in which to look for more damaged images; how many of them an error names
_AT_ONCE, _BYTES = 64, 1 << 19  # images in memory; to write them takes 30 times as much


def from_folder(
    path: str | Path, *, size: tuple[int, int] | None = None, test: float = 0.2, seed: int = 0
) -> OwnData:
    """Images in one folder per class: ``PATH/CLASS/*.png`` or ``.jpg``, grey if all are, else in colour.

    Args:
        path: the folder of the classes.
        size: (height, width) that each image is scaled to, whatever its aspect ratio; default: that of the
            first, which all must have.
        test, seed: as in `OwnData`; the order of the images depends on the seed, too.

    Raises:
        DatasetError: there is no such folder, a class has no images or one of another format, the folders
            are splits, or an image cannot be read (perhaps only while reading).
    """
    folder, attempt = Path(path).expanduser(), f"load images from {path}"
    if not folder.is_dir():
        raise DatasetError(
            attempt, "there is no such folder", "name the folder that has one folder per class"
        )
    folders = [one for one in sorted(folder.iterdir()) if one.is_dir() and not one.name.startswith(".")]
    classes = tuple(one.name for one in folders)
    if classes and all(name.lower() in _SPLITS for name in classes):
        one = folder / ("train" if "train" in classes else classes[0])
        fact = f"its folders {', '.join(classes)} have the names of splits, not of classes"
        fix = f"from_folder({str(one)!r}) reads one of them; to use all, move them into one folder per class"
        raise DatasetError(attempt, fact, fix)
    files = [(file, label) for label, one in enumerate(folders) for file in _images_of(one, attempt)]
    if not files:
        fact, fix = (
            "no folder in it has a PNG or JPEG file",
            "put the images of each class into a folder of its own",
        )
        raise DatasetError(attempt, fact, fix)
    labels = np.array([label for _, label in files], np.int64)
    return from_images(
        folder.name, classes, labels, lambda row: (files[row][0], files[row][0]), attempt,
        size=size, test=test, seed=seed,
    )  # fmt: skip


def _images_of(folder: Path, attempt: str) -> list[Path]:
    """The PNG and JPEG files of a class, in any folder below its own; hidden ones are left out."""
    seen = [
        file
        for file in sorted(folder.rglob("*"))
        if not any(part.startswith(".") for part in file.relative_to(folder).parts)
    ]
    for file in seen:
        if file.suffix.lower() in _OTHER_IMAGES:
            fix = "save such images as PNG or JPEG, or move them out of the folder"
            raise DatasetError(attempt, f"{file} is neither PNG nor JPEG", fix)
    images = [file for file in seen if file.suffix.lower() in _SUFFIXES]
    if not images:
        fact = f"{folder} is a class without a PNG or JPEG file"
        raise DatasetError(attempt, fact, "put its images there, or remove the folder")
    return images


def from_images(
    name: str,
    classes: tuple[str, ...],
    labels: np.ndarray,
    found: Callable[[int], tuple[Any, Any]],
    attempt: str,
    *,
    size: tuple[int, int] | None = None,
    test: float,
    seed: int,
) -> OwnData:
    """Images from anywhere: `found` returns how a row is called, and its file."""
    from PIL import Image, ImageOps

    pair = isinstance(size, (tuple, list)) and len(size) == 2
    if size is not None and not (pair and all(isinstance(n, int) and n > 0 for n in size)):
        raise DatasetError(attempt, f"size={size!r} is no height and width", "size=(32, 48), for example")

    @contextlib.contextmanager
    def opened(row: int) -> "Iterator[Image.Image]":
        where, file = found(row)
        try:
            with Image.open(file) as image:
                yield image
        except (*_FAULTS, Image.DecompressionBombError) as error:
            fact, fix = f"{where} is no image: {error}", "repair it, or move it elsewhere"
            if also := _damaged_besides(row, len(labels), found):
                more = ", …" if len(also) > _NAMED else ""
                fact = f"{fact}; no images either: {', '.join(also[:_NAMED])}{more}"
                fix = "repair them, or move them elsewhere"
            raise DatasetError(attempt, fact, fix) from None

    def is_grey(row: int) -> bool:
        with opened(row) as image:  # reads the header alone
            return image.mode in _GREY

    def pixels(row: int) -> np.ndarray:
        with opened(row) as image:
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I"):  # 16 bits, of which `convert` would cut off the high ones
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            upright = upright.convert(mode)
            return np.asarray(upright.resize(size[::-1]) if size else upright)

    mode = "L" if all(is_grey(row) for row in range(len(labels))) else "RGB"
    first = pixels(0)
    at_once = max(1, min(_AT_ONCE, _BYTES // first.nbytes))

    def read() -> Iterator[Batch]:
        order = np.random.default_rng((seed, 1)).permutation(len(labels))
        for begin in range(0, len(labels), at_once):
            rows = order[begin : begin + at_once]
            images = [pixels(int(row)) for row in rows]
            for row, image in zip(rows, images, strict=True):
                if image.shape != first.shape:
                    shapes = [f"{one.shape[0]}×{one.shape[1]}" for one in (image, first)]
                    fact = f"{found(int(row))[0]} has {shapes[0]} pixels, and {found(0)[0]} has {shapes[1]}"
                    fix = f"size={first.shape[:2]} (height, width) scales all of them"
                    raise DatasetError(attempt, fact, f"{fix}, whatever their aspect ratio")
            yield np.stack(images), labels[rows]

    return OwnData(
        name=name, kind="images", task="classification", classes=classes, test=test, seed=seed, read=read
    )


def _damaged_besides(row: int, rows: int, found: Callable[[int], tuple[Any, Any]]) -> list[str]:
    """More damaged images, as many as are found in `_LOOK` seconds: who repairs one repairs all of them."""
    from PIL import Image

    damaged, until = [], time.monotonic() + _LOOK
    for other in range(rows):
        if other == row:
            continue
        if time.monotonic() > until:
            break
        where, file = found(other)
        try:
            with Image.open(file) as image:
                image.load()
        except (*_FAULTS, Image.DecompressionBombError):
            damaged.append(str(where))
    return damaged
