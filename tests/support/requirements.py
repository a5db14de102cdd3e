"""What pyproject.toml and constraints.txt name, and what it brings, as pip would choose it here."""

import re
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
PINS = {
    canonicalize_name(name): version
    for name, version in re.findall(r"(?m)^([\w.-]+)==(\S+)$", (_ROOT / "constraints.txt").read_text())
}


def needed(lines: Iterable[str], *, without: Iterable[str] = ()) -> set[str]:
    """Return the names of these distributions and of all that they require, without some of them."""
    seen, queue = set(), [Requirement(line) for line in lines]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        key = (name, *sorted(requirement.extras))
        if key in seen or name in without:
            continue
        seen.add(key)
        extras = requirement.extras or {""}
        for further in map(Requirement, metadata.requires(name) or ()):
            if not further.marker or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                queue.append(further)
    return {name for name, *_ in seen}


def entries(lines: Iterable[str]) -> set[str]:
    """Return the names in site-packages that belong to what `needed` returns."""
    files = [file for name in needed(lines) for file in metadata.distribution(name).files or ()]
    return {file.parts[0] for file in files} - {"..", "__pycache__"}
