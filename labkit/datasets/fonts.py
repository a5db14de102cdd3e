"""Digits drawn from fonts: any number of them, offline, the same for the same seed.

    >>> images, labels = render(1000, seed=7)        # uint8 [1000, 28, 28], int64 [1000]
    >>> images[:500] == render(500, seed=7)[0]       # a larger set starts with the smaller one

Each digit of each font is drawn once, large, and blurred by the width of one pixel of the result. An image
then takes one value per pixel from there, at positions that are rotated, scaled, slanted and shifted.
"""

import functools
import math
from pathlib import Path

import numpy as np

from labkit.errors import DatasetError

SPLITS = ("train", "test")  # sets of one seed that have nothing in common
BLOCK = 1024  # images that are drawn from one random stream
_SIDE = 28  # pixels
_DIGIT_HEIGHT = 20  # pixels, before scaling; the same as in MNIST
_FINE = 8  # glyphs are drawn this many times finer than the images
_GLYPH = _SIDE * _FINE  # side of a glyph's picture
_AT_ONCE = 128  # images per numpy call: arrays of 400 kB, which stay in a core's cache

# Range of each property of an image; 0 turns nothing, 1 scales nothing.
_TURN = math.radians(15)
_SCALE = (0.8, 1.2)
_SLANT = 0.2  # columns per row
_SHIFT = 2.0  # pixels
_INK = (0.6, 1.0)  # of 255
_NOISE = 30.0  # at most this standard deviation, of 255

# matplotlib ships these fonts, so they are the same on every machine.
_FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmss10", "cmtt10"),
)


def render(n: int, *, seed: int = 0, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Draw the first `n` digits of `seed` and `split`.

    Returns:
        images uint8 [n, 28, 28], white on black, and labels int64 [n].
    """
    images, labels = np.empty((n, _SIDE, _SIDE), np.uint8), np.empty(n, np.int64)
    for first in range(0, n, BLOCK):
        some = slice(first, min(first + BLOCK, n))
        random = np.random.default_rng((seed, SPLITS.index(split), first // BLOCK))
        _draw(random, images[some], labels[some])
    return images, labels


def _draw(random: np.random.Generator, images: np.ndarray, labels: np.ndarray) -> None:
    """Fill up to `BLOCK` images and labels."""
    # Numbers for a whole block, so that an image does not depend on how many are drawn.
    rolls = random.random((9, BLOCK), dtype=np.float32)[:, : len(images)]
    labels[:] = rolls[0] * 10
    glyphs = labels * len(_FONTS) + (rolls[1] * len(_FONTS)).astype(np.int64)
    ink = (_INK[0] + (_INK[1] - _INK[0]) * rolls[2])[:, None, None]
    strength = (_NOISE * rolls[3])[:, None, None]
    affine = _affine(rolls[4:])
    for first in range(0, len(images), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        pixels = _glyphs().take(_positions(affine[:, some], glyphs[some])) * ink[some]
        pixels += random.standard_normal(pixels.shape, dtype=np.float32) * strength[some]
        images[some] = np.clip(pixels, 0, 255)


def _affine(rolls: np.ndarray) -> np.ndarray:
    """From five random numbers per image [5, n], the maps from its pixels to those of the glyph: [6, n].

    A pixel at (x, y), counted from the centre, takes its value from (ax x + bx y + cx, ay x + by y + cy).
    """
    turn, slant, right, down = (2 * rolls[:4] - 1) * [[_TURN], [_SLANT], [_SHIFT], [_SHIFT]]
    shrink = _FINE / (_SCALE[0] + (_SCALE[1] - _SCALE[0]) * rolls[4])
    cos, sin = np.cos(turn) * shrink, np.sin(turn) * shrink
    across = (cos - slant * sin, sin + slant * cos, _GLYPH / 2 + _FINE * right)
    down = (-sin, cos, _GLYPH / 2 + _FINE * down)
    return np.stack([*across, *down]).astype(np.float32)


def _positions(affine: np.ndarray, glyphs: np.ndarray) -> np.ndarray:
    """int64 [n, 28, 28]: for each pixel, its index in the flat array of all glyphs."""
    steps = np.arange(_SIDE, dtype=np.float32) - (_SIDE - 1) / 2  # centres of pixels
    ax, bx, cx, ay, by, cy = affine[:, :, None, None]
    x, y = (
        np.clip(a * steps + b * steps[:, None] + c, 0, _GLYPH - 1).astype(np.int64)
        for a, b, c in ((ax, bx, cx), (ay, by, cy))
    )
    return (glyphs[:, None, None] * _GLYPH + y) * _GLYPH + x  # the border of a glyph is black


@functools.cache
def _glyphs() -> np.ndarray:
    """float32 [10 digits * fonts * side * side], flat: every digit in every font, large."""
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    drawn = [_glyph(folder / f"{font}.ttf", digit) for digit in range(10) for font in _FONTS]
    return np.stack(drawn).ravel().astype(np.float32)


def _glyph(path: Path, digit: int) -> np.ndarray:
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    text, layout = str(digit), ImageFont.Layout.BASIC
    try:
        _, top, _, bottom = ImageFont.truetype(path, 100, layout_engine=layout).getbbox(text)
        font = ImageFont.truetype(path, 100 * _DIGIT_HEIGHT * _FINE / (bottom - top), layout_engine=layout)
    except OSError as error:
        fact = f"matplotlib's font {path.name} cannot be read: {error}"
        raise DatasetError("draw digits", fact, "pip install --force-reinstall matplotlib") from None
    left, top, right, bottom = font.getbbox(text)
    picture = Image.new("L", (_GLYPH, _GLYPH))
    middle = ((_GLYPH - left - right) / 2, (_GLYPH - top - bottom) / 2)
    ImageDraw.Draw(picture).text(middle, text, fill=255, font=font)
    # The mean over one pixel of the result, so that one value per pixel leaves no steps.
    return np.asarray(picture.filter(ImageFilter.BoxBlur((_FINE - 1) / 2)))
