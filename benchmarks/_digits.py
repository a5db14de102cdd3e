"""Digits drawn from fonts: any number of them, offline, the same for the same seed.

    >>> data = rendered(1000, seed=7)                           # a Dataset of 1000 images
    >>> data.images[:500] == rendered(500, seed=7).images       # a larger set starts with the smaller one

Each digit of each font is drawn once, large, and blurred by the width of one pixel of the result. An image
then takes one value per pixel from there, at positions that are rotated, scaled, slanted and shifted.
"""

import functools
import io
import math
from pathlib import Path
from typing import Any

import numpy as np

from course.datasets import Dataset

SPLITS = ("train", "test")  # sets of one seed that have nothing in common
_SIDE = 28  # pixels
_DIGIT_HEIGHT = 20  # pixels, before scaling, as in MNIST
_FINE = 8  # glyphs are drawn this many times finer than the images
_GLYPH = _SIDE * _FINE  # side of a glyph's picture
_AT_ONCE = 128  # images per numpy call: arrays of 400 kB, which stay in a core's cache

# How far an image may differ from its glyph, in either direction.
_TURN = math.radians(15)
_SLANT = 0.2  # columns per row
_SHIFT = 2.0  # pixels
_SCALE = 0.2
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


def rendered(n: int, *, seed: int = 0, split: str = "train") -> Dataset:
    """Draw the first `n` digits of `seed` and `split`, white on black."""
    images = np.empty((n, _SIDE, _SIDE), np.uint8)
    kinds, noise = (np.random.default_rng((seed, SPLITS.index(split), stream)) for stream in (0, 1))
    rolls = kinds.random((n, 9), np.float32)
    labels = (rolls[:, 0] * 10).astype(np.int64)
    for first in range(0, n, _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        images[some] = _draw(labels[some, None, None], rolls[some].T, noise)
    return Dataset(images, labels, "rendered", split, tuple("0123456789"))


def _draw(labels: np.ndarray, rolls: np.ndarray, noise: np.random.Generator) -> np.ndarray:
    """Draw one image for each of `labels` [n, 1, 1]; `rolls` are random numbers from 0 to 1 [9, n]."""
    _, fonts, ink, strength, *place = rolls[:, :, None, None]
    turn, slant, right, down, larger = (
        (2 * roll - 1) * most
        for roll, most in zip(place, (_TURN, _SLANT, _SHIFT, _SHIFT, _SCALE), strict=True)
    )
    shrink = _FINE / (1 + larger)
    cos, sin = np.cos(turn) * shrink, np.sin(turn) * shrink
    y, x = np.mgrid[:_SIDE, :_SIDE].astype(np.float32) - (_SIDE - 1) / 2  # of each pixel, from the centre
    column = (cos - slant * sin) * x + (sin + slant * cos) * y + _FINE * right
    row = cos * y - sin * x + _FINE * down
    row, column = ((_GLYPH / 2 + place).clip(0, _GLYPH - 1).astype(np.int64) for place in (row, column))
    fonts = (fonts * len(_FONTS)).astype(np.int64)
    pixels = _glyphs()[labels, fonts, row, column] * (_INK[0] + (_INK[1] - _INK[0]) * ink)
    pixels += noise.standard_normal(pixels.shape, np.float32) * (_NOISE * strength)
    return pixels.clip(0, 255)


@functools.cache
def _glyphs() -> np.ndarray:
    """uint8 [10 digits, fonts, height, width]: every digit in every font, large."""
    return np.array([[_glyph(font, digit) for font in _FONTS] for digit in range(10)])


def _glyph(font: str, digit: int) -> np.ndarray:
    import matplotlib
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
    text, layout = str(digit), ImageFont.Layout.BASIC
    _, top, _, bottom = ImageFont.truetype(path, 100, layout_engine=layout).getbbox(text)
    size = 100 * _DIGIT_HEIGHT * _FINE / (bottom - top)
    large = ImageFont.truetype(path, size, layout_engine=layout)
    left, top, right, bottom = large.getbbox(text)
    picture = Image.new("L", (_GLYPH, _GLYPH))
    middle = ((_GLYPH - left - right) / 2, (_GLYPH - top - bottom) / 2)
    ImageDraw.Draw(picture).text(middle, text, fill=255, font=large)
    # The mean over one pixel of the result, so that one value per pixel leaves no steps.
    return np.asarray(picture.filter(ImageFilter.BoxBlur((_FINE - 1) / 2)))


def upload(data: Dataset, store: Any, path: str) -> None:
    """Send each image as a PNG object ``PATH/LABEL/ROW.png``; the first part of the path is a bucket."""
    from PIL import Image

    store.bucket(path.partition("/")[0])
    objects = {}
    for row, (image, label) in enumerate(zip(data.images, data.labels, strict=True)):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        objects[f"{path}/{label}/{row:05}.png"] = file.getvalue()
    store.files.pipe(objects)
