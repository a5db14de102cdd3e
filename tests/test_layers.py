"""What no contract of import-linter holds: importing a part of labkit loads nothing heavy but its topic."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import labkit

ROOT = Path(labkit.__file__).parents[1]
PARTS = sorted(
    ".".join(path.parent.relative_to(ROOT).parts)
    for package in ("labkit", "course")
    for path in (ROOT / package).rglob("__init__.py")
)
FACES = [*PARTS, "labkit.local.cluster", "labkit.local.storage", "labkit.local.spark"]
HEAVY = {"ray", "torch", "tensorflow", "keras", "pyspark", "pandas"}
HEAVY |= {"ipywidgets", "matplotlib", "PIL", "pooch", "s3fs"}
TOPICS = {"labkit.data": {"ray"}, "labkit.tune": {"ray", "pandas"}}  # Ray Tune imports pandas


@pytest.mark.parametrize("part", PARTS)
def test_an_import_is_light(part):
    """Each worker of each engine imports the parts that it unpickles something from."""
    code = f"import sys, {part}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(done.stdout.split()) <= TOPICS.get(part, set())


@pytest.mark.parametrize("part", FACES)
def test_public_names_are_there(part):
    module = import_module(part)
    for name in getattr(module, "__all__", []):
        assert getattr(module, name) is not None


def test_the_map_lists_all_public_names():
    rows = (Path(labkit.__file__).parent / "README.md").read_text().splitlines()
    for part in FACES:
        names = getattr(import_module(part), "__all__", [])
        if part == "labkit" or not names:
            continue
        title = part.removeprefix("labkit.").removeprefix("course.")
        (row,) = (row for row in rows if row.startswith(f"| `{title}` |"))
        assert [name for name in names if f"`{name}`" not in row] == []
