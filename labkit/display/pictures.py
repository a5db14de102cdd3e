"""Pictures that explain: SVG files that ship with the lab, in the colours of the page that shows them.

>>> pictures.names()
['life_of_metrics']
"""

import re
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabError

_FOLDER = Path(__file__).with_name("svg_files")


@dataclass(frozen=True)
class Picture:
    """An SVG picture; shows itself as a part of the page, so that JupyterLab's theme colours it."""

    name: str
    svg: str

    def __repr__(self) -> str:
        found = re.search(r"<title[^>]*>(.*?)</title>", self.svg)
        return f"<picture: {found.group(1) if found else self.name}>"

    def _repr_html_(self) -> str:
        return f'<div style="max-width:860px">{self.svg}</div>'


def names() -> list[str]:
    """The pictures that there are."""
    return sorted(path.stem for path in _FOLDER.glob("*.svg"))


def picture(name: str) -> Picture:
    """The picture `name`; as the value of a cell it is seen.

    Raises:
        LabError: there is none of that name.
    """
    if name not in names():
        raise LabError(f"show the picture {name!r}", "there is none", f"one of {', '.join(names())}")
    return Picture(name, (_FOLDER / f"{name}.svg").read_text(encoding="utf-8"))
