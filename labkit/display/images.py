"""Small images side by side in a notebook.

    >>> gallery(images[:2], ["7", "2"]).startswith("<div")
    True

All of it is inside the page, legible on light and dark, and still there when a notebook is reopened.
"""

import base64
import html
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.errors import LabError

_PIXELS = 56  # side of an image on the page: twice its own, so that pixels can be seen
_ROW = "display:flex;flex-wrap:wrap;gap:8px;margin:6px 0"
_FIGURE = "margin:0;text-align:center;font-size:12px;line-height:1.5"
_IMAGE = (
    f"display:block;width:{_PIXELS}px;height:{_PIXELS}px;margin:0 auto;border-radius:4px;"
    "image-rendering:pixelated;border:1px solid var(--jp-border-color2,#8886)"
)


@dataclass(frozen=True)
class Picture:
    """HTML that shows itself at the end of a cell; `name` is what a terminal shows."""

    name: str
    html: str

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def _repr_html_(self) -> str:
        return self.html


def gallery(images: Iterable[np.ndarray], captions: Sequence[str]) -> str:
    """HTML of `images` in a row that wraps, with a caption under each.

    Args:
        images: each uint8 [height, width] or, in colour, [height, width, 3].
    """
    arrays = images if isinstance(images, np.ndarray) else list(images)
    shapes = [getattr(one, "shape", ()) for one in arrays]
    good = len(arrays) == len(captions) and all(len(s) == 2 or (len(s) == 3 and s[2] == 3) for s in shapes)
    if not good or not all(one.dtype == np.uint8 for one in arrays):
        fact = "each image is a uint8 array [height, width] or [height, width, 3], and each has a caption"
        raise LabError("show images", fact, "gallery(images[:2], ['7', '2'])")
    return f'<div style="{_ROW}">{"".join(map(_figure, arrays, captions))}</div>'


def png(image: np.ndarray) -> bytes:
    """A uint8 array [height, width] or, in colour, [height, width, 3] as a PNG."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def _figure(image: np.ndarray, caption: str) -> str:
    text, data = html.escape(caption), base64.b64encode(png(image)).decode()
    img = f'<img src="data:image/png;base64,{data}" alt="{text}" style="{_IMAGE}">'
    return f'<figure style="{_FIGURE}">{img}<figcaption>{text}</figcaption></figure>'
