"""Images of your own: one folder per class.

>>> datasets.from_folder("photos", size=(32, 32))     # photos/cat/1.png, photos/dog/2.jpg, …
<photos: 140 images of 32×32×3, classification, 2 classes>
"""

import contextlib
import os
import re
import unicodedata
import warnings
from pathlib import Path

import numpy as np

from labkit import machine
from labkit.datasets.own import OwnData, check_split, copied_first, files_below, visible
from labkit.errors import LabError, expect_installed

_SPLITS = {"train", "training", "trainval", "trn", "test", "testing", "tst", "val", "valid", "validation"}
_SPLITS |= {"eval", "evaluation", "dev", "holdout", "pred", "predict"}
_FILLERS = {"", "images", "image", "imgs", "img", "pictures", "folder", "split"}


def from_folder(
    path: str | Path, *, size: tuple[int, int] | None = None, test: float = 0.2, seed: int = 0
) -> OwnData:
    """Read images from one folder per class, with all folders below it.

    Every visible file must be an image that Pillow opens, whatever its name. The result is grey if all images
    are, else in colour. Transparent parts are white, and images are turned as their EXIF data say.

    Args:
        path: the folder of the classes.
        size: (height, width) that each image is scaled to, whatever its aspect ratio; default: that of the
            first, which all must have.
        test, seed: as in `OwnData`; the order of the rows depends on the seed, too.
    """
    given = path if isinstance(path, os.PathLike) else str(path)
    folder, attempt = Path(os.path.expanduser(given)), f"load images from {str(given)[:200]}"
    expect_installed(attempt, "PIL")
    check_split(test, seed)
    numbers = np.asarray((1, 1) if size is None else size, object)
    right = (isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in numbers.ravel())
    if numbers.shape != (2,) or not all(right) or not 1 <= numbers.min() <= numbers.max() < 2**15:
        raise LabError(attempt, f"size={size!r} is no height and width", "for example size=(32, 48)")
    if not os.path.isdir(folder):  # False for a text that is too long for a path
        fix = copied_first(path, "unpack it, and pass the folder")
        fix = fix or "pass the folder that has one folder per class"
        raise LabError(attempt, "there is no such folder", fix)
    classes = _classes(folder, attempt)
    x = _read([file for files in classes.values() for file in files], size, attempt)
    y = np.repeat(np.arange(len(classes)), [len(files) for files in classes.values()])
    rows, about = np.random.default_rng((seed, 1)).permutation(len(y)), {"test": test, "seed": seed}
    about |= {"name": folder.resolve().name, "kind": "images", "task": "classification"}
    return OwnData(**about, classes=tuple(classes), x=x[rows], y=y[rows])


def _classes(folder: Path, attempt: str) -> dict[str, list[Path]]:
    """The images of each class, in order."""
    folders = [one for one in visible(folder, attempt) if one.is_dir()]
    if alone := [one for one in visible(folder, attempt) if one not in folders]:
        fact = f"{alone[0]} is in no class folder"
        raise LabError(attempt, fact, "move it into the folder of its class, or elsewhere")
    classes = {one.name: files_below(one, attempt, (folder.resolve(),)) for one in folders}
    parents = {parent for files in classes.values() for file in files for parent in file.parents}
    for parent in (folder, *sorted(one for one in parents if folder in one.parents)):
        _refuse_splits(parent, attempt)
    if len(classes) < 2:
        fact = f"its only folder is {folders[0].name}" if folders else "it has no folder"
        fix = "put the images of each class into a folder of its own"
        fix += "".join(f"; or, if it has the classes, from_folder({str(one)!r})" for one in folders)
        raise LabError(attempt, fact, fix)
    if empty := [name for name, files in classes.items() if not files]:
        raise LabError(attempt, f"{empty[0]} has no image", "put images into it, or remove it")
    if len({unicodedata.normalize("NFC", name).strip() for name in classes}) < len(classes):
        fact = f"two of its folders have the same name, written in two ways: {list(classes)!r:.200}"
        raise LabError(attempt, fact, "move the images of that class into one folder")
    return classes


def _refuse_splits(folder: Path, attempt: str) -> None:
    """Raise a `LabError` if the folders in it are splits: seg_train and seg_test, but not train and bus."""
    names = [one.name for one in visible(folder, attempt) if one.is_dir()]
    splits: dict[str, set[str]] = {}  # "seg": {"train", "test"}
    for name in names:
        words = re.findall("[a-z]+", re.sub("([a-z])([A-Z])", r"\1 \2", name).lower())  # also of trainingSet
        words = [re.sub("(data|set)+$", "", word) for word in words]
        found = [word for word in words if word in _SPLITS]
        rest = " ".join(word for word in words if word not in _SPLITS | _FILLERS)
        splits.setdefault(rest if found else name, set()).update(found[:1])
    if any(len(found) > 1 for found in splits.values()) or splits.keys() == {""}:
        one = folder / next((name for name in names if "train" in name.lower()), names[0])
        fact = f"{', '.join(names[:6])} in {folder} have the names of splits, not of classes"
        fix = f"read one of them: from_folder({str(one)!r}); or move all images into one folder per class"
        raise LabError(attempt, fact, fix)


def _read(files: list[Path], size: tuple | None, attempt: str) -> np.ndarray:
    """All images, of the same size; one error names the first five files that are none."""
    from labkit.display.progress import Waiting

    images, wrong, free = [], [], machine.memory()[1]
    with Waiting("reading images", unit="images") as line, warnings.catch_warnings(action="ignore"):
        for number, file in enumerate(files):
            try:
                images.append(_pixels(file, size))
            except Exception as error:  # a damaged image can raise anything
                wrong.append(f"\n    {file}: {str(error).replace(str(file), 'the file')}")
                continue
            shape, first = images[-1].shape[:2], images[0].shape[:2]
            if shape != first:
                fact = f"{file} has {shape[0]}×{shape[1]} pixels, and {files[0]} has "
                fact += f"{first[0]}×{first[1]} (height×width)"
                raise LabError(attempt, fact, f"scale all of them, whatever their aspect ratio: size={first}")
            if 2 * len(files) * images[0].nbytes > 0.75 * free:
                fact = f"they don't fit into the {free / 1e9:,.1f} GB of memory that are free"
                fix = "pass a smaller size=; larger data are a job for Ray Data, lesson 02"
                raise LabError(attempt, fact, fix)
            line(number, len(files))
    if wrong:
        counted = "1 file isn't an image" if len(wrong) == 1 else f"{len(wrong):,} files aren't images"
        fact = f"{counted} that Pillow can read:{''.join(wrong[:5])}" + "\n    …" * (len(wrong) > 5)
        fix = (
            "repair what is damaged, save huge ones smaller and other formats as PNG, move the rest elsewhere"
        )
        raise LabError(attempt, fact, fix)
    return _array(images)


def _pixels(file: Path, size: tuple | None) -> np.ndarray:
    """What a viewer shows on a white page: uint8 [height, width] or, in colour, [height, width, 3].

    An image of more than 8 bits is float32 [height, width].
    """
    from PIL import Image, ImageOps

    # Not by its name: Pillow would map an uncompressed TIFF into memory, in the wrong shape if it is turned.
    with open(file, "rb") as content, Image.open(content) as image:
        if size is not None:
            image.draft(None, (max(size), max(size)))  # JPEG: read an eighth of the pixels if that's enough
        image.load()
        with contextlib.suppress(Exception):  # EXIF data that can't be read
            image = ImageOps.exif_transpose(image)
        palette = image.mode == "P"
        mode = "F" if image.mode[0] in "IF" else "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
        if image.has_transparency_data and mode != "F":
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        image = image.convert(mode)
        if palette and not np.ptp(np.asarray(image), axis=-1).any():  # all are grey, as in many a GIF
            image = image.convert("L")
        return np.asarray(image if size is None else image.resize((int(size[1]), int(size[0]))))


def _array(images: list[np.ndarray]) -> np.ndarray:
    """uint8 [n, height, width] if all are grey, else [n, height, width, 3].

    All images of more than 8 bits are divided by the same number, so they stay comparable; below 0 is black.
    """
    deep = [image for image in images if image.dtype != np.uint8]
    brightest = max([image[np.isfinite(image)].max(initial=0) for image in deep], default=0)
    white = 2.0 ** np.ceil(np.log2(max(brightest, 0) + 1)) - 1 or 1  # 1, 255, 1023, 4095, …
    x = np.empty((len(images), *images[0].shape[:2], 3), np.uint8)
    for row, image in zip(x, images, strict=True):
        if image.dtype != np.uint8:
            image = (np.nan_to_num(image, posinf=white) / white * 255).round().clip(0, 255)
        row[:] = image.reshape(*image.shape[:2], -1)
    return x[..., 0] if all(image.ndim == 2 for image in images) else x
