"""Small images side by side in a notebook, as HTML that holds the images and shows on light and dark."""

import base64
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from labkit.errors import LabError

if TYPE_CHECKING:
    import numpy as np

_ROW = Markup('<div style="display:flex;flex-wrap:wrap;gap:8px;margin:6px 0">{}</div>')
_FIGURE = Markup(  # twice its own size, so that pixels can be seen
    '<figure style="margin:0;text-align:center;font-size:12px;line-height:1.5">'
    '<img src="data:image/png;base64,{0}" alt="{1}" style="display:block;width:56px;height:56px;'
    "margin:0 auto;border-radius:4px;image-rendering:pixelated;"
    'border:1px solid var(--jp-border-color2,#8886)"><figcaption>{1}</figcaption></figure>'
)


def gallery(images: Iterable["np.ndarray"], captions: Sequence[str]) -> str:
    """HTML of `images` (uint8 [height, width] or [height, width, 3]) in a row, each with its caption."""
    try:
        pairs = zip(images, captions, strict=True)
        figures = [_FIGURE.format(base64.b64encode(png(image)).decode(), text) for image, text in pairs]
    except (TypeError, ValueError, AttributeError, OSError):
        fact = "each image is a uint8 array [height, width] or [height, width, 3], and each has a caption"
        raise LabError("show images", fact, "gallery(images[:2], ['7', '2'])") from None
    return str(_ROW.format(Markup().join(figures)))


def png(image: "np.ndarray") -> bytes:
    """A uint8 array [height, width] or, in colour, [height, width, 3] as a PNG."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()
