"""Digits drawn from fonts: as many as one likes, offline, the same for the same seed.

    >>> images, labels = render(0, 1000, seed=7)        # uint8 [1000, 28, 28], int64 [1000]
    >>> images[500:] == render(500, 1000, seed=7)[0]    # any part of the endless set, by itself

The set of a seed is endless, and image i depends on the seed and on i alone: not on how many are drawn,
nor on how many threads draw them.

How: each digit of each font is drawn once, large and blurred by the width of one pixel of the
result. An image then takes one value per pixel from there, at places that are turned, scaled, slanted and
shifted. All arithmetic on pixels is in whole numbers, so that it is the same on every processor.
Threads do it, not processes: numpy lets go of the interpreter for nearly all of it, and nothing
has to be started or copied.
"""

import functools
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from labkit.errors import DatasetError

Progress = Callable[[int, int], None]  # called with the images drawn and the images wanted

SPLITS = ("train", "test")  # sets of one seed that have nothing in common
FORM = 1  # of the images of a seed; the next number when anything changes them
BLOCK = 1024  # images that are drawn from one random stream: the unit of work
_SIDE = 28  # pixels
_DIGIT_HEIGHT = 20  # pixels, before scaling; the same as in MNIST
_FINE = 8  # glyphs are drawn this many times finer than the images
_GLYPH = _SIDE * _FINE  # side of a glyph's picture
_WORDS = _SIDE * _SIDE // 8  # of 64 random bits each, for the noise of one image
_FIXED = 12  # binary digits behind the point in coordinates
_AT_ONCE = 128  # images per numpy call: arrays of 400 kB, which stay in a core's cache

# Range of each property of an image; 0 turns nothing, 1 scales nothing.
_TURN = math.radians(15)
_SCALE = (0.8, 1.2)
_SLANT = 0.2  # columns per row
_SHIFT = 2.0  # pixels
_INK = (0.6, 1.0)  # of 255
_NOISE = 30.0  # at most this standard deviation, of 255

# matplotlib brings these, so they are the same on every machine.
_FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmss10", "cmtt10"),
)

_DRAWING = threading.Lock()


def check_request(n: int, seed: int, split: str) -> None:
    """Raise DatasetError unless n is 1 or more, seed 0 or more, and split one of `SPLITS`."""
    attempt = f"take rows of the split {split!r}"
    if not isinstance(n, (int, np.integer)) or n < 1:
        raise DatasetError(attempt, f"their number is {n!r}", "take a whole number from 1 on, or leave n out")
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise DatasetError(attempt, f"the seed is {seed!r}", "take a whole number from 0 on")
    if split not in SPLITS:
        raise DatasetError(attempt, f"there is no split {split!r}", f"take one of {', '.join(SPLITS)}")


def render(
    start: int,
    stop: int,
    *,
    seed: int = 0,
    split: str = "train",
    threads: int | None = None,
    progress: Progress = lambda done, total: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Images `start` to `stop` (not included) of the endless set of `seed` and `split`.

    Args:
        threads: how many draw (default: one for each core). It changes nothing in the images.
        progress: called in this thread with the images drawn and the images wanted.

    Returns:
        images uint8 [stop - start, 28, 28], white on black, and labels int64 [stop - start].

    Raises:
        DatasetError: the arguments cannot be used, or the fonts are not there.
    """
    from concurrent.futures import ThreadPoolExecutor

    check_request(stop - start, seed, split)
    images = np.empty((stop - start, _SIDE, _SIDE), np.uint8)
    labels = np.empty(stop - start, np.int64)
    glyphs = _glyphs()

    def draw(block: int) -> None:
        first = block * BLOCK
        skip = max(start - first, 0)
        part = slice(first + skip - start, min(first + BLOCK, stop) - start)
        _draw_block((seed, SPLITS.index(split), block), skip, images[part], labels[part], glyphs)

    blocks = range(start // BLOCK, -(-stop // BLOCK))
    threads = max(1, min(threads or os.cpu_count() or 1, len(blocks)))
    pool = ThreadPoolExecutor(threads, thread_name_prefix="labkit-render")
    try:
        for block, _ in zip(blocks, pool.map(draw, blocks), strict=True):
            progress(min((block + 1) * BLOCK, stop) - start, stop - start)
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt ends it now and not when all is drawn
    return images, labels


def _draw_block(
    key: tuple[int, ...], skip: int, images: np.ndarray, labels: np.ndarray, glyphs: np.ndarray
) -> None:
    """Draw a block into `images` and `labels`, without its first `skip` images."""
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))
    drawn = slice(skip, skip + len(images))
    # Always for the whole block, so that image i is the same however many are drawn.
    rolls = random.random((9, BLOCK))[:, drawn]
    noise = np.random.Generator(np.random.PCG64(random.integers(1 << 63)).advance(skip * _WORDS))
    labels[:] = rolls[0] * 10
    font = (rolls[1] * len(_FONTS)).astype(np.int32)
    places = _places(rolls[2:7]) + ((labels.astype(np.int32) * len(_FONTS) + font) * _GLYPH**2,)
    ink = _fixed(_INK[0] + (_INK[1] - _INK[0]) * rolls[7], 8)
    strength = np.rint(_NOISE * rolls[8]).astype(np.int16)
    for i in range(0, len(images), _AT_ONCE):
        some = slice(i, i + _AT_ONCE)
        pixels = glyphs.take(_look_up(*(place[some] for place in places))).astype(np.int32)
        pixels *= ink[some, None, None]
        pixels >>= 8
        pixels += _noise(noise, strength[some])
        np.clip(pixels, 0, 255, out=pixels)
        images[some] = pixels


def _places(rolls: np.ndarray) -> tuple[np.ndarray, ...]:
    """From five random numbers per image [5, n]: where its pixels lie in the glyph.

    A pixel at (x, y), counted from the centre in half pixels, lies in the glyph at
    (ax x + bx y + cx, ay x + by y + cy); the six are int32 [n] in units of 2**-12 of the glyph's pixels.
    """
    turn, slant, right, down = (2 * rolls[[0, 2, 3, 4]] - 1) * [[_TURN], [_SLANT], [_SHIFT], [_SHIFT]]
    shrink = 1 / (_SCALE[0] + (_SCALE[1] - _SCALE[0]) * rolls[1])
    cos, sin = np.cos(turn) * shrink, np.sin(turn) * shrink
    half = _FINE / 2
    across = (half * (cos - slant * sin), half * (sin + slant * cos), _GLYPH / 2 + _FINE * right)
    along = (half * -sin, half * cos, _GLYPH / 2 + _FINE * down)
    return tuple(_fixed(number, _FIXED) for number in (*across, *along))


def _look_up(ax, bx, cx, ay, by, cy, glyph) -> np.ndarray:
    """int32 [n, 28, 28]: for each pixel, its place in the flat array of all glyphs."""
    steps = np.arange(1 - _SIDE, _SIDE, 2, dtype=np.int32)  # centres of pixels in half pixels
    x = (np.multiply.outer(bx, steps) + cx[:, None])[:, :, None] + np.multiply.outer(ax, steps)[:, None, :]
    y = (np.multiply.outer(by, steps) + cy[:, None])[:, :, None] + np.multiply.outer(ay, steps)[:, None, :]
    for places in (x, y):
        places >>= _FIXED
        np.clip(places, 0, _GLYPH - 1, out=places)  # the border of a glyph is black
    y *= _GLYPH
    y += x
    y += glyph[:, None, None]
    return y


def _noise(random: "np.random.Generator", strength: np.ndarray) -> np.ndarray:
    """int16 [n, 28, 28]: normal numbers of 256 values, from one random byte each; fast, and fine enough."""
    words = random.integers(1 << 64, size=len(strength) * _WORDS, dtype=np.uint64)
    chance = words.astype("<u8", copy=False).view(np.uint8).reshape(-1, _SIDE, _SIDE)
    return (_normal().take(chance) * strength[:, None, None]) >> 6


@functools.cache
def _normal() -> np.ndarray:
    """int16 [256]: 64 times the number that a standard normal variable stays below with chance i/256."""
    from statistics import NormalDist

    return np.array([round(64 * NormalDist().inv_cdf((i + 0.5) / 256)) for i in range(256)], np.int16)


def _fixed(numbers: np.ndarray, digits: int) -> np.ndarray:
    return np.rint(numbers * (1 << digits)).astype(np.int32)


def _glyphs() -> np.ndarray:
    """uint8 [10 digits * fonts * side * side], flat: every digit in every font, large."""
    with _DRAWING:  # it takes 0.2 s: the first thread draws, the others wait
        return _draw_glyphs()


@functools.cache
def _draw_glyphs() -> np.ndarray:
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return np.stack([_glyph(folder / f"{font}.ttf", digit) for digit in range(10) for font in _FONTS]).ravel()


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
    # The mean over one pixel of the result, so that taking one value per pixel leaves no steps.
    return np.asarray(picture.filter(ImageFilter.BoxBlur((_FINE - 1) / 2)))
