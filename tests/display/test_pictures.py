"""The pictures of the lessons: well formed, without a script, in the colours of whoever shows them."""

import re
import xml.etree.ElementTree as ET

import pytest

from labkit.display import pictures
from labkit.errors import LabError


@pytest.mark.parametrize("name", pictures.names())
def test_a_picture_can_be_shown(name):
    picture = pictures.picture(name)
    root = ET.fromstring(picture.svg)
    kinds = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert kinds <= {"svg", "title", "desc", "style", "g", "rect", "path", "text", "tspan", "circle"}
    assert root.get("role") == "img" and root.find("{*}title").text
    assert picture.svg in picture._repr_html_()
    assert repr(picture) == f"<picture: {root.find('{*}title').text}>"


@pytest.mark.parametrize("name", pictures.names())
def test_it_has_no_colour_of_its_own(name):
    """Each is one of JupyterLab's, with a fallback for other places."""
    svg = pictures.picture(name).svg
    without = re.sub(r"var\(--jp-[\w-]+,#\w+\)", "", svg)
    assert without != svg
    assert not re.search(r"#[0-9a-fA-F]{3,6}\b|rgb", without)


@pytest.mark.parametrize("name", pictures.names())
def test_no_text_leaves_the_picture(name):
    root = ET.fromstring(pictures.picture(name).svg)
    width = float(root.get("viewBox").split()[2])
    for text in root.iter("{*}text"):
        words, x = "".join(text.itertext()), float(text.get("x"))
        kind = (text.get("class") or "").split()
        long = len(words) * (6.8 if "c" in kind else 6.4)  # a letter of 12 (or of 11, of equal width)
        left, right = (x - long / 2, x + long / 2) if {"m", "on"} & set(kind) else (x, x + long)
        assert left >= 0 and right <= width, words


def test_one_that_is_not_there():
    with pytest.raises(LabError, match="life_of_metrics"):
        pictures.picture("life")
