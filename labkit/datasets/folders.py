"""Images of your own: one folder per class.

>>> datasets.from_folder("photos", size=(32, 32))     # photos/cat/1.png, photos/dog/2.jpg, …
<photos: 140 images of 32×32×3, classification, 2 classes>
"""

import contextlib
import operator
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.datasets.own import OwnData, check_memory, check_split
from labkit.datasets.sources import is_system, visible
from labkit.errors import LabError

if TYPE_CHECKING:
    from PIL import Image

_SPLITS = {"train", "training", "trainval", "test", "testing", "val", "valid", "validation", "dev", "holdout"}
_FILLERS = {"", "images", "image", "imgs", "img", "pictures", "folder", "split"}
_MOST_PIXELS = 400_000_000  # of one image: 1.2 GB in colour
_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F")  # Pillow's modes
_NAMED = 5  # files in an error


def from_folder(
    path: str | Path, *, size: tuple[int, int] | None = None, test: float = 0.2, seed: int = 0
) -> OwnData:
    """Read images from one folder per class, with all folders below it.

    Every visible file must be an image that Pillow opens, whatever its name; hidden files and what systems
    leave in folders are passed over (`labkit.datasets.sources.is_system`). The result is grey if all images
    are, else in colour. Transparent parts are white, and images are turned as their EXIF data say.

    Args:
        path: the folder of the classes.
        size: (height, width) that each image is scaled to, whatever its aspect ratio; default: that of the
            first, which all must have.
        test, seed: as in `OwnData`; the order of the rows depends on the seed, too.

    Raises:
        LabError: there is no folder, its folders are splits, a file isn't an image, images differ in size
            and there is no `size`, or they don't fit into memory.
    """
    folder, attempt = Path(path).expanduser(), f"load images from {path}"
    check_split(test, seed, attempt)
    size = _pair(size, attempt)
    files = _labelled(folder, attempt)
    classes = sorted({name for name, _ in files})
    with _large_images():
        modes = _each("looking at images", files, _mode, attempt)
        mode = "L" if all(grey for grey, _ in modes) else "RGB"
        top = max(peak for _, peak in modes)

        def pixels(file: Path) -> np.ndarray:
            return _pixels(file, mode, top, size)

        shape = _each("reading an image", files[:1], pixels, attempt)[0].shape
        check_memory(2 * len(files) * int(np.prod(shape)), attempt, "pass a smaller size=")
        images = _each("reading images", files, pixels, attempt)
    for (_, file), image in zip(files, images, strict=True):
        if image.shape != shape:
            fact = f"{file} has {image.shape[0]}×{image.shape[1]} pixels, and {files[0][1]} has "
            fact += f"{shape[0]}×{shape[1]} (height×width)"
            raise LabError(attempt, fact, f"scale all of them, whatever their aspect ratio: size={shape[:2]}")
    order = np.random.default_rng((seed, 1)).permutation(len(files))
    return OwnData(
        name=folder.resolve().name, kind="images", task="classification", classes=tuple(classes),
        x=np.stack(images)[order], y=np.array([classes.index(name) for name, _ in files], np.int64)[order],
        test=test, seed=seed,
    )  # fmt: skip


def _pair(size: object, attempt: str) -> tuple[int, int] | None:
    if size is None:
        return None
    try:
        height, width = map(operator.index, size)
        if min(height, width) > 0:
            return height, width
    except (TypeError, ValueError):
        pass
    raise LabError(attempt, f"size={size!r} is no height and width", "for example size=(32, 48)")


def _labelled(folder: Path, attempt: str) -> list[tuple[str, Path]]:
    """(class, file) of each image, in order."""
    if not folder.is_dir():
        raise LabError(attempt, "there is no such folder", "pass the folder that has one folder per class")
    files = [(file.relative_to(folder).parts, file) for file in visible(folder, attempt)]
    if alone := [file for parts, file in files if len(parts) == 1]:
        fact = f"{alone[0]} is in no class folder"
        raise LabError(attempt, fact, "move it into the folder of its class, or elsewhere")
    inside: dict[Path, set[str]] = {}  # the folders in each folder
    for parts, _ in files:
        for depth, name in enumerate(parts[:-1]):
            inside.setdefault(folder.joinpath(*parts[:depth]), set()).add(name)
    for parent, names in inside.items():
        _refuse_splits(parent, sorted(names), attempt)
    classes = sorted(inside.get(folder, ()))
    if len(classes) == 1 and len(inside.get(folder / classes[0], ())) > 1:
        fact = f"its only folder is {classes[0]}, which has folders of its own"
        raise LabError(attempt, fact, f"if these are the classes, from_folder({str(folder / classes[0])!r})")
    there = {one.name for one in folder.iterdir() if one.is_dir() and not is_system(one.name)}
    if empty := sorted(there.difference(classes)) or (not classes and ["it"]):
        fact = f"{empty[0]} has no image"
        raise LabError(attempt, fact, "put the images of each class into a folder of its own")
    if len({unicodedata.normalize("NFC", name).strip() for name in classes}) < len(classes):
        fact = f"two of its folders have the same name, written in two ways: {classes!r:.200}"
        raise LabError(attempt, fact, "move the images of that class into one folder")
    return [(parts[0], file) for parts, file in files]


def _refuse_splits(folder: Path, names: list[str], attempt: str) -> None:
    """Raise a `LabError` if folders are splits: seg_train and seg_test, but not train and bus."""
    splits: dict[str, set[str]] = {}  # "seg": {"train", "test"}
    for name in names:
        words = re.findall("[a-z]+", re.sub("([a-z])([A-Z])", r"\1 \2", name).lower())  # also of trainingSet
        words = [re.sub("(data|set)+$", "", word) for word in words]
        found = [word for word in words if word in _SPLITS]
        rest = " ".join(word for word in words if word not in _SPLITS | _FILLERS)
        splits.setdefault(rest if found else name, set()).update(found[:1])
    if any(len(found) > 1 for found in splits.values()) or (splits.keys() == {""} and splits[""]):
        one = folder / next((name for name in names if "train" in name.lower()), names[0])
        fact = f"{', '.join(names[:6])} in {folder} have the names of splits, not of classes"
        fix = f"read one of them: from_folder({str(one)!r}); or move all images into one folder per class"
        raise LabError(attempt, fact, fix)


@contextlib.contextmanager
def _large_images() -> Iterator[None]:
    """Pillow takes an image of more than 179 million pixels for an attack, and warns of damaged EXIF data."""
    from PIL import Image

    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _each(what: str, files: list[tuple[str, Path]], look: Callable[[Path], Any], attempt: str) -> list:
    """`look` at each file; one error names all that aren't images."""
    from labkit.display.progress import Waiting

    found, wrong = [], []
    with Waiting(what, unit="images") as line:
        for number, (_, file) in enumerate(files):
            try:
                found.append(look(file))
            except LabError:
                raise
            except Exception as error:  # a damaged image can raise anything
                wrong.append(f"{file}: {str(error).replace(str(file), 'the file') or type(error).__name__}")
            line(number, len(files))
    if wrong:
        listed = "".join(f"\n    {one}" for one in wrong[:_NAMED])
        listed += f"\n    and {len(wrong) - _NAMED:,} more" if len(wrong) > _NAMED else ""
        counted = "1 file isn't an image" if len(wrong) == 1 else f"{len(wrong):,} files aren't images"
        fix = "repair what is damaged, save other formats as PNG or JPEG, and move the rest elsewhere"
        raise LabError(attempt, f"{counted} that Pillow can read:{listed}", fix)
    return found


@contextlib.contextmanager
def _opened(file: Path) -> "Iterator[Image.Image]":
    from PIL import Image

    with Image.open(file) as image:
        if image.width * image.height > _MOST_PIXELS:
            fact = f"{file} has {image.width:,}×{image.height:,} pixels"
            fix = f"scale it down, or cut it into images of up to {_MOST_PIXELS / 1e6:,.0f} million pixels"
            raise LabError("load a large image", fact, fix)
        yield image


def _mode(file: Path) -> tuple[bool, float]:
    """Whether an image is grey; and the brightest pixel of one with more than 8 bits, else 0."""
    with _opened(file) as image:
        deep = image.mode[0] in "IF"
        return image.mode in _GREY, float(np.nan_to_num(np.asarray(image)).max()) if deep else 0.0


def _pixels(file: Path, mode: str, top: float, size: tuple[int, int] | None) -> np.ndarray:
    """uint8 [height, width], or [height, width, 3]: what a viewer shows on a white page.

    Args:
        top: the brightest pixel of all images with more than 8 bits, which decides how many bits they use:
            8, 12 or 16, say. So they stay comparable.
    """
    from PIL import Image, ImageOps

    with _opened(file) as image:
        if size:
            image.draft(None, (max(size), max(size)))  # JPEG: read an eighth of the pixels if that's enough
        image.load()
        with contextlib.suppress(Exception):  # EXIF data that can't be read
            image = ImageOps.exif_transpose(image)
        if image.mode[0] in "IF":
            white = 1.0 if 0 < top <= 1 else max(255.0, 2.0 ** np.ceil(np.log2(top + 1)) - 1)
            grey = np.nan_to_num(np.asarray(image, np.float64)) / white * 255
            image = Image.fromarray(grey.round().clip(0, 255).astype(np.uint8))
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        image = image.convert(mode)
        return np.asarray(image.resize(size[::-1]) if size else image)
