"""Small images side by side in a notebook, as HTML that holds the images and shows on light and dark.

>>> gallery(images[:2], ["7", "2"]).startswith("<div")
True
"""

import base64
import html
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from labkit.errors import LabError

if TYPE_CHECKING:
    import numpy as np

_ROW = "display:flex;flex-wrap:wrap;gap:8px;margin:6px 0"
_FIGURE = "margin:0;text-align:center;font-size:12px;line-height:1.5"
_IMAGE = (  # twice its own size, so that pixels can be seen
    "display:block;width:56px;height:56px;margin:0 auto;border-radius:4px;"
    "image-rendering:pixelated;border:1px solid var(--jp-border-color2,#8886)"
)


def gallery(images: Iterable["np.ndarray"], captions: Sequence[str]) -> str:
    """HTML of `images` in a row that wraps, with a caption under each.

    Args:
        images: each uint8 [height, width] or, in colour, [height, width, 3].
    """
    try:
        figures = [_figure(image, text) for image, text in zip(images, captions, strict=True)]
    except (TypeError, ValueError, AttributeError, OSError):
        fact = "each image is a uint8 array [height, width] or [height, width, 3], and each has a caption"
        raise LabError("show images", fact, "gallery(images[:2], ['7', '2'])") from None
    return f'<div style="{_ROW}">{"".join(figures)}</div>'


def png(image: "np.ndarray") -> bytes:
    """A uint8 array [height, width] or, in colour, [height, width, 3] as a PNG."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def _figure(image: "np.ndarray", caption: str) -> str:
    text, data = html.escape(caption), base64.b64encode(png(image)).decode()
    img = f'<img src="data:image/png;base64,{data}" alt="{text}" style="{_IMAGE}">'
    return f'<figure style="{_FIGURE}">{img}<figcaption>{text}</figcaption></figure>'
