"""Images as HTML: whole in themselves, and safe whatever a caption says."""

import base64
import io
import re

import numpy as np
from PIL import Image

from labkit.display.figures import gallery

IMAGES = np.arange(2 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(2, 28, 28)


def test_the_page_holds_the_very_pixels_and_captions_are_text():
    page = gallery(IMAGES, ["<script>", 'a "bag"'])
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    shown = [np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) for text in found]
    assert np.array_equal(shown, IMAGES)
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") == 2  # under the picture, and for those who do not see it
    assert 'alt="a &#34;bag&#34;"' in page
