"""Small images side by side, as HTML that reads well on a light and on a dark page.

    >>> gallery(images[:2], ["7", "2"]).startswith("<div")
    True

Each image is a PNG inside the page, so it is still there when a notebook is reopened or converted.
"""

import base64
import html
import io
from collections.abc import Iterable, Sequence

import numpy as np

from labkit.errors import LabError

_PIXELS = 56  # side of an image on the page: twice its own, so that pixels can be seen
_ROW = "display:flex;flex-wrap:wrap;gap:8px;margin:6px 0"
_FIGURE = "margin:0;text-align:center;font-size:12px;line-height:1.5"
_IMAGE = (
    f"display:block;width:{_PIXELS}px;height:{_PIXELS}px;margin:0 auto;border-radius:4px;"
    "image-rendering:pixelated;border:1px solid var(--jp-border-color2,#8886)"
)


class Gallery:
    """Images with captions that show themselves at the end of a cell.

    Args:
        images: uint8 [n, height, width], 0 is black.
        captions: one text for each image.
    """

    def __init__(self, images: np.ndarray, captions: Sequence[str]) -> None:
        self._images, self._captions = images, list(captions)

    def __repr__(self) -> str:
        return f"<Gallery of {len(self._images)} images: {', '.join(self._captions)}>"

    def _repr_html_(self) -> str:
        return gallery(self._images, self._captions)


def gallery(images: Iterable[np.ndarray], captions: Sequence[str]) -> str:
    """HTML of `images` (each uint8 [height, width]) in a row that wraps, with a caption under each."""
    arrays = images if isinstance(images, np.ndarray) else list(images)
    good = len(arrays) == len(captions) and all(getattr(one, "ndim", 0) == 2 for one in arrays)
    if not good or not all(one.dtype == np.uint8 for one in arrays):
        fact = "each image is a uint8 array [height, width], and each has a caption"
        raise LabError("show images", fact, "gallery(images[:2], ['7', '2'])")
    return f'<div style="{_ROW}">{"".join(map(_figure, arrays, captions))}</div>'


def _figure(image: np.ndarray, caption: str) -> str:
    text = html.escape(caption)
    picture = f'<img src="data:image/png;base64,{_png(image)}" alt="{text}" style="{_IMAGE}">'
    return f'<figure style="{_FIGURE}">{picture}<figcaption>{text}</figcaption></figure>'


def _png(image: np.ndarray) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
