"""What panels show, as text in tests/golden. `pytest --golden` writes these files instead of comparing."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "golden"


BLOCKS = {"div", "tr", "pre", "summary", "table", "svg"}


def lines(html: str) -> str:
    """Return the text of some HTML, each block of it on a line."""
    root = ET.fromstring(f"<all>{html.partition('</style>')[2] or html}</all>")
    for element in root.iter():
        if element.tag in BLOCKS:
            element.text = f"\n{element.text or ''}"
        element.tail = f"{' | ' if element.tag in ('th', 'td') else ' '}{element.tail or ''}"
    text = re.sub(r"[ |]*\n\s*", "\n", "".join(root.itertext()).strip())
    return re.sub(r" +", " ", text)


def compare(config: pytest.Config, name: str, shown: Mapping[str, str]) -> None:
    """Assert that the HTML of each case has the text that is in the file `name`.txt."""
    cases = [f"== {case}\n{lines(html)}\n" for case, html in shown.items()]
    text, path = "\n".join(cases), FOLDER / f"{name}.txt"
    if config.getoption("--golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
