"""The lessons' pictures: whole, for both colour schemes, described, and shown by a lesson."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
SVG = "{http://www.w3.org/2000/svg}"
LESSONS = sorted((ROOT / "lessons").glob("*.py"))
PICTURES = sorted((ROOT / "lessons" / "images").iterdir())


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture(path):
    root = ET.fromstring(path.read_text())
    width, height = float(root.get("width")), float(root.get("height"))
    for box in root.iter(f"{SVG}rect"):
        x, y = float(box.get("x", 0)), float(box.get("y", 0))
        assert x + float(box.get("width")) <= width and y + float(box.get("height")) <= height
    assert all(0 < float(text.get("y")) < height for text in root.iter(f"{SVG}text"))
    assert len(root.findtext(f"{SVG}title")) > 10 and len(root.findtext(f"{SVG}desc")) > 100
    # Each kind of box and line has a colour for dark backgrounds too.
    light, _, dark = root.findtext(f"{SVG}style").partition("@media (prefers-color-scheme:dark)")
    coloured = set(re.findall(r"\.(\w+)\{(?:fill|stroke):#", light))
    assert coloured and coloured <= set(re.findall(r"\.(\w+)\{", dark))


def test_a_lesson_shows_each_picture():
    text = "".join(path.read_text() for path in LESSONS)
    assert [path.name for path in PICTURES if f"(images/{path.name})" not in text] == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_says_what_its_pictures_show(path):
    for alt, name in re.findall(r"!\[([^\]]*)\]\(images/([\w-]+)\.svg\)", path.read_text()):
        assert len(alt.split()) >= 4, f"{name}: say in words what it shows"


def test_readme_has_a_picture_that_moves_and_one_that_stands_still():
    shown = re.search(r"<picture>.*?</picture>", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    still, moving = (ROOT / re.search(rf'{name}="(docs/[^"]+)"', shown)[1] for name in ("srcset", "src"))
    assert "prefers-reduced-motion" in shown and 'alt="' in shown
    with Image.open(moving) as film, Image.open(still) as picture:
        assert film.n_frames >= 8 and getattr(picture, "n_frames", 1) == 1
