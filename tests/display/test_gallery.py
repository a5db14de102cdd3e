"""Images as HTML: whole in themselves, and safe whatever a caption says."""

import base64
import io
import re

import numpy as np
from PIL import Image

from labkit.display.images import Gallery, gallery

IMAGES = np.arange(2 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(2, 28, 28)


def test_the_page_holds_the_very_pixels():
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', gallery(IMAGES, ["0", "1"]))
    assert len(found) == 2
    for text, image in zip(found, IMAGES, strict=True):
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))
        assert np.array_equal(shown, image)


def test_captions_are_text_and_say_what_a_picture_shows():
    page = gallery(IMAGES, ["<script>", 'a "bag"'])
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") == 2  # under the picture, and for those who do not see it
    assert 'alt="a &quot;bag&quot;"' in page


def test_a_gallery_shows_itself():
    shown = Gallery(IMAGES, ["7", "is 2, said 3"])
    assert shown._repr_html_() == gallery(IMAGES, ["7", "is 2, said 3"])
    assert repr(shown) == "<Gallery of 2 images: 7, is 2, said 3>"
