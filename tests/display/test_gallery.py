"""Images and pictures as HTML: whole in themselves, safe whatever a caption says, in the theme's colours."""

import base64
import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from labkit.display.images import gallery, picture
from labkit.errors import LabError

IMAGES = np.arange(2 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(2, 28, 28)


def test_the_page_holds_the_very_pixels_and_captions_are_text():
    page = gallery(IMAGES, ["<script>", 'a "bag"'])
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    shown = [np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) for text in found]
    assert np.array_equal(shown, IMAGES)
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") == 2  # under the picture, and for those who do not see it
    assert 'alt="a &quot;bag&quot;"' in page


def test_a_picture_is_well_formed_without_a_script_and_in_the_colours_of_the_page():
    shown = picture("life_of_metrics")
    assert repr(shown) == "<picture: life_of_metrics>"
    root = ET.fromstring(shown._repr_html_())[0]
    kinds = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert kinds <= {"svg", "title", "desc", "style", "g", "rect", "path", "text", "tspan", "circle"}
    assert root.get("role") == "img" and root.find("{*}title").text
    without = re.sub(r"var\(--jp-[\w-]+,#\w+\)", "", shown.html)  # JupyterLab's, with a fallback
    assert without != shown.html and not re.search(r"#[0-9a-fA-F]{3,6}\b|rgb", without)
    width = float(root.get("viewBox").split()[2])
    for text in root.iter("{*}text"):
        words, x = "".join(text.itertext()), float(text.get("x"))
        kind = (text.get("class") or "").split()
        long = len(words) * (6.8 if "c" in kind else 6.4)  # a letter of 12 (or of 11, of equal width)
        left, right = (x - long / 2, x + long / 2) if {"m", "on"} & set(kind) else (x, x + long)
        assert left >= 0 and right <= width, words
    with pytest.raises(LabError, match="life_of_metrics"):
        picture("life")
